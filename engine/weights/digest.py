"""SHA-256 of a model's files: as pinned by ``--digest``, and as keys of what is cached of them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from engine.errors import ModelUnavailable
from engine.weights.source import gguf_file

_SETTLED = 2.0
"""Seconds since its last change after which a file's times tell whether it has been changed again."""


def file_digest(path: Path) -> str:
    """Raises ``ModelUnavailable`` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error


def known_digest(path: Path, folder: Path) -> str:
    """As ``file_digest``, but a file that has not been changed since (by its size, times and inode, as git does it)
    is not read again: its digest is kept in ``folder``."""
    path = path.resolve()
    found = path.stat()
    seen = f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino} {found.st_dev}"
    note = folder / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.digest"
    try:
        *before, digest = note.read_text().split()
        if " ".join(before) == seen and len(digest) == hashlib.sha256().digest_size * 2:
            return digest
    except (OSError, ValueError):
        pass  # none, or a damaged one
    digest = file_digest(path)
    if time.time() - max(found.st_mtime, found.st_ctime) > _SETTLED:
        scratch = note.with_suffix(f".{os.getpid()}")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch.write_text(f"{seen} {digest}\n")
            scratch.replace(note)
        except OSError:  # it is read again the next time
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
    return digest


def model_digest(model: Path, notes: Path | None) -> str:
    """Of what ranks have to have alike: config.json and the weights. ``notes``: the folder of known digests.

    Raises ``ModelUnavailable``."""
    weights = [file] if (file := gguf_file(model)) else sorted(model.glob("*.safetensors"))
    found = hashlib.sha256()
    for path in (model / "config.json", *weights):
        found.update(path.name.encode() + b"\0")
        found.update((known_digest(path, notes) if notes is not None else file_digest(path)).encode())
    return found.hexdigest()


def check_digests(model: Path, pinned: Sequence[tuple[str, str]]) -> None:
    """``pinned``: (name of a file in the folder ``model``, its SHA-256); an empty name stands for the only file of
    weights.

    Raises ``ModelUnavailable`` where a file is missing or has another digest.
    """
    files = [(_pinned_file(model, name), digest) for name, digest in pinned]
    with ThreadPoolExecutor() as threads:
        found = threads.map(file_digest, [path for path, _ in files])
        for (path, digest), actual in zip(files, found, strict=True):
            if actual != digest:
                raise ModelUnavailable(
                    f"{path} is not the file that --digest pins: its SHA-256 is {actual}, not {digest}. Download it "
                    "again, or correct --digest if the new file is meant."
                )


def _pinned_file(model: Path, name: str) -> Path:
    if name:
        path = model / name
        if Path(name).name != name or not path.is_file():
            raise ModelUnavailable(f"--digest names {name}, but {model} has no such file.")
        return path
    weights = [file] if (file := gguf_file(model)) else sorted(model.glob("*.safetensors"))
    if len(weights) != 1 or (file and "-00001-of-" in file.name):
        raise ModelUnavailable(
            f"--digest without a name is for a model in one file: give one "
            f"--digest NAME=SHA256 for each file of {model}."
        )
    return weights[0]
