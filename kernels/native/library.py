"""Compiles a C file of this folder once, for this processor, and loads it.

Without a compiler, or the instructions that the file needs, the result is ``None``, and callers fall back to torch.
Libraries are cached in ``$XDG_CACHE_HOME/tollgate/native`` by source, processor and compiler, and end with a digest of
themselves, as a truncated one would load and then crash the process. They are trusted only if no other user could have
written them; otherwise, or if the cache is not writable, each process compiles its own.
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
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from kernels.launch import path

log = logging.getLogger("engine.kernels")

SOURCES = Path(__file__).parent
_FLAGS = ("-O3", "-march=native", "-std=c11", "-fPIC", "-fopenmp", "-ffp-contract=fast")
_TIMEOUT = 120
"""Seconds."""
_DIGEST = 32
"""Bytes of the digest that is appended to a library, which ``dlopen`` ignores."""


class Unavailable(Exception):
    """Why a library is not available."""


@cache
def load(name: str, *functions: str, folder: Path | None = None) -> ctypes.CDLL | None:
    """``name``.c as a library with these functions; ``None`` if it cannot be compiled here, or TOLLGATE_KERNELS selects
    another implementation."""
    if path() != "auto" or platform.system() != "Linux":
        return None
    source = (folder or SOURCES) / f"{name}.c"
    try:
        compiler = _compiler()
        try:
            kept_in = cache_folder()
            cache_key = f"{name}-{fingerprint(source)}"
            if compiler:
                kept = [kept_in / f"{cache_key}-{_version(*compiler)}.so"]
            else:  # whatever another one made of the same is better than nothing
                kept = sorted(kept_in.glob(f"{cache_key}-*.so"))
            for library in filter(Path.exists, kept):
                try:
                    return _open_kept(library, functions)
                except OSError as error:
                    log.info("%s is compiled again: %s", library, error)
            return _make(source, compiler, kept[0] if kept else kept_in, functions)
        except (OSError, RuntimeError) as error:
            # The cache is not writable, writable by others, or there is no home folder.
            log.info("a library for this process alone: %s", error)
        with tempfile.TemporaryDirectory(prefix="tollgate-") as scratch:
            return _make(source, compiler, Path(scratch) / f"{name}.so", functions)
    except (OSError, Unavailable) as error:
        log.info(
            "kernels/native/%s is not used on this machine, torch's own operations are slower: %s",
            source.name,
            error,
        )
        return None


def _open_kept(library: Path, functions: Sequence[str]) -> ctypes.CDLL:
    """Raises ``OSError`` if it is truncated, another user's, or does not load."""
    owner = library.stat().st_uid
    if owner not in (0, os.geteuid()):
        raise OSError(f"it belongs to user {owner}")
    content = library.read_bytes()
    if not content.endswith(_digest(content[:-_DIGEST])):
        raise OSError("it is damaged")
    return _open(library, functions)


def _open(library: Path, functions: Sequence[str]) -> ctypes.CDLL:
    """Raises ``OSError`` if it does not load, or lacks a function."""
    # OpenMP's functions resolve to the copy that torch has loaded: two copies would compete for the cores.
    torch.get_num_threads()
    found = ctypes.CDLL(str(library))
    if missing := [name for name in functions if not hasattr(found, name)]:
        raise OSError(f"it has no function {', '.join(missing)}")
    return found


def _make(source: Path, compiler: Sequence[str], library: Path, functions: Sequence[str]) -> ctypes.CDLL:
    """Compiles, loads and then caches it. Raises ``OSError`` if the cache is not writable, and ``Unavailable``."""
    if not compiler:
        raise Unavailable("no C compiler")
    start = time.monotonic()
    # Several processes may compile at once, each in its own folder; the last one's library is kept.
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        made, linked = Path(scratch) / "made.o", Path(scratch) / "linked.so"
        _run([*compiler, *_FLAGS, "-c", str(source), "-o", str(made)])
        # Without -fopenmp, so that OpenMP's library is not linked a second time.
        _run([*compiler, "-shared", str(made), "-lm", "-o", str(linked)])
        try:
            digest = _digest(linked.read_bytes())
            with linked.open("ab") as file:
                file.write(digest)
            found = _open(linked, functions)
        except OSError as error:
            raise Unavailable(str(error)) from error
        linked.replace(library)
    log.info("kernels/native/%s compiled in %.1f s", source.name, time.monotonic() - start)
    return found


def _compiler() -> list[str]:
    """``$CC`` as a command; empty if there is no such program."""
    command = shlex.split(os.environ.get("CC", "cc"))
    return command if command and shutil.which(command[0]) else []


@cache
def _version(*compiler: str) -> str:
    """A hash of the compiler's version: another or upgraded compiler makes another library. Asked once: starting a
    process from one with gigabytes takes a tenth of a second."""
    try:
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(
            [*compiler, "--version"], capture_output=True, timeout=_TIMEOUT, check=False, env=environment
        )
        version_text = done.stdout
    except (OSError, subprocess.TimeoutExpired):
        version_text = b""  # what is wrong with it shows when it compiles
    return _digest(version_text + b"\0" + "\0".join(compiler).encode()).hex()[:8]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(str(error)) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{command[0]} failed"]
        raise Unavailable(next((line for line in lines if "error" in line), lines[0]))


def cache_folder() -> Path:
    """The cache folder. Raises ``OSError`` if others can write to it, ``RuntimeError`` if there is no home folder."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache_home) / "tollgate" / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to user {found.st_uid}")
    if found.st_mode & 0o022:
        folder.chmod(0o700)
    return folder


def fingerprint(source: Path) -> str:
    """A hash of the source, its headers, the flags and the processor's instructions."""
    files = [source, *sorted(source.parent.glob("*.h"))]
    parts = [file.read_bytes() for file in files]
    parts.append(" ".join(_FLAGS).encode())
    if (cpuinfo := Path("/proc/cpuinfo")).exists():
        lines = cpuinfo.read_text().splitlines()
        parts += [line.encode() for line in lines if line.startswith(("flags", "Features", "model name"))][:2]
    return _digest(b"\0".join(parts)).hex()[:16]


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
