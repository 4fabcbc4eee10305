"""The engine's operations: each has a reference in plain torch and a Triton kernel; ``native`` has C for CPUs.

Importing this package is cheap on purpose: it pulls in neither torch nor triton. ``__version__`` stays below
0.18 because transformers probes for an unrelated package of the same name and tests its version.
"""

__version__ = "0.3.0.dev0"
__project__ = "tollgate"
"""Distinguishes it from that package, which has the same import name: engine/__main__.py checks it."""
