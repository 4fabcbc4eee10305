"""The engine's operations, one file each: a reference in plain torch, a Triton kernel, and C for CPUs in ``native``.

Importing this package is cheap on purpose: it pulls in neither torch nor triton. ``__version__`` stays below
0.18 because transformers probes for an unrelated package of the same name and tests its version.
"""

__version__ = "0.2.0"
__project__ = "tollgate"
"""What tells it from that package, which is installed in the same place (engine/__main__.py)."""
