"""Compiles a C file of this folder once, for this processor, and loads it.

Whoever has no compiler, or a processor without the instructions that the file asks for, gets ``None`` and does without.
Libraries are kept in ``$XDG_CACHE_HOME/tollgate/native`` by what they were made from; where nothing can be written
there, each process makes its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

import torch

from kernels.launch import path

log = logging.getLogger("engine.kernels")

_SOURCES = Path(__file__).parent
_FLAGS = ("-O3", "-march=native", "-std=c11", "-fPIC", "-fopenmp", "-ffp-contract=fast")
_TIMEOUT = 120
"""Seconds."""


class Unavailable(Exception):
    """Why there is no library."""


@cache
def load(name: str) -> ctypes.CDLL | None:
    """``name``.c as a library; ``None`` if it cannot be compiled here, or another path is asked for."""
    if path() != "auto" or platform.system() != "Linux":
        return None
    source = _SOURCES / f"{name}.c"
    try:
        try:
            kept = _folder() / f"{name}-{_fingerprint(source)}.so"
            return _open(kept) if kept.exists() else _make(source, kept)
        except (OSError, RuntimeError) as error:
            # Damaged, nothing can be written there, or nobody knows of a home.
            log.info("a library for this process alone: %s", error)
        with tempfile.TemporaryDirectory(prefix="tollgate-") as scratch:
            return _make(source, Path(scratch) / f"{name}.so")
    except (OSError, Unavailable) as error:
        log.info(
            "kernels/native/%s is not used on this machine, torch's own operations are slower: %s",
            source.name,
            error,
        )
        return None


def _open(library: Path) -> ctypes.CDLL:
    # OpenMP's functions are found in the copy that torch has loaded: two of them would fight over the cores.
    torch.get_num_threads()
    return ctypes.CDLL(str(library))


def _make(source: Path, library: Path) -> ctypes.CDLL:
    """Compiles, loads and then keeps it. Raises ``OSError`` if nothing can be written there, and ``Unavailable``."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if not compiler or shutil.which(compiler[0]) is None:
        raise Unavailable("no C compiler")
    library.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    # Several processes may do so at once: each in a folder of its own, and the last one's library stays.
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made, linked = Path(scratch) / "made.o", Path(scratch) / "linked.so"
        _run([*compiler, *_FLAGS, "-c", str(source), "-o", str(made)])
        # Without -fopenmp, so that no second copy of its library is asked for.
        _run([*compiler, "-shared", str(made), "-lm", "-o", str(linked)])
        try:
            found = _open(linked)
        except OSError as error:
            raise Unavailable(str(error)) from error
        linked.replace(library)
    log.info("kernels/native/%s compiled in %.1f s", source.name, time.monotonic() - start)
    return found


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{command[0]} failed"]
        raise Unavailable(next((line for line in lines if "error" in line), lines[0]))


def _folder() -> Path:
    """Raises ``RuntimeError`` where nobody knows of a home."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_home) / "tollgate" / "native"


def _fingerprint(source: Path) -> str:
    """Of the source, what it may include, the flags and the processor's instructions."""
    files = [source, *sorted(source.parent.glob("*.h"))]
    parts = [file.read_bytes() for file in files]
    # What a compiler is called does not matter, nor whether it is still there.
    parts.append(" ".join([*shlex.split(os.environ.get("CC", "cc"))[1:], *_FLAGS]).encode())
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        lines = cpuinfo.read_text().splitlines()
        parts += [line.encode() for line in lines if line.startswith(("flags", "Features", "model name"))][:2]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
