"""Compiles a C file of this folder once, for this processor, and loads it.

Whoever has no compiler, or a processor without the instructions that the file asks for, gets ``None`` and does without.
Libraries are kept in ``$XDG_CACHE_HOME/tollgate/native`` by what they were made from.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from kernels.launch import path

log = logging.getLogger("engine.kernels")

_FLAGS = ("-O3", "-march=native", "-std=c11", "-fPIC", "-fopenmp", "-ffp-contract=fast")
_TIMEOUT = 120
"""Seconds."""


@cache
def load(name: str) -> ctypes.CDLL | None:
    """``name``.c as a library; ``None`` if it cannot be compiled here, or the reference is asked for."""
    if path() == "reference" or platform.system() != "Linux":
        return None
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        log.info("no C compiler: products and attention on the CPU take torch's own way, which is slower")
        return None
    source = Path(__file__).parent / f"{name}.c"
    library = _folder() / f"{name}-{_fingerprint(source, compiler)}.so"
    if not library.exists() and (reason := _compile(compiler, source, library)):
        log.info("kernels/native/%s is not used on this machine: %s", source.name, reason)
        return None
    # OpenMP's functions are found in the copy that torch has loaded: two of them would fight over the cores.
    torch.get_num_threads()
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        log.info("kernels/native/%s is not used on this machine: %s", source.name, error)
        return None


def _compile(compiler: str, source: Path, library: Path) -> str | None:
    """Why it could not be done, if it could not."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            made, linked = Path(scratch) / "made.o", Path(scratch) / "linked.so"
            for command in (
                [compiler, *_FLAGS, "-c", str(source), "-o", str(made)],
                # Without -fopenmp, so that no second copy of its library is asked for.
                [compiler, "-shared", str(made), "-o", str(linked), "-lm"],
            ):
                done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
                if done.returncode:
                    return (done.stderr.strip().splitlines() or ["the compiler failed"])[0]
            linked.replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


def _folder() -> Path:
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home) / "tollgate" / "native"


def _fingerprint(source: Path, compiler: str) -> str:
    """Of the source and all headers, the flags, the compiler and the processor's instructions."""
    headers = [header.read_bytes() for header in sorted(source.parent.glob("*.h"))]
    parts = [source.read_bytes(), *headers, " ".join(_FLAGS).encode(), os.path.realpath(compiler).encode()]
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        lines = cpuinfo.read_text().splitlines()
        parts += [line.encode() for line in lines if line.startswith(("flags", "Features", "model name"))][:2]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
