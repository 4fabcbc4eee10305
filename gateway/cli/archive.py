"""A backup: one compressed tar file that only its owner may read.

state/…          the state folder, each SQLite database as its own backup API copies it
policies/…       the policy folder
manifest.json    the last: which Tollgate made it and when, and the size and SHA-256 of every file
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.control.state_lock import LOCK
from gateway.files.folder import PARTIAL
from gateway.private import private_folder

FORMAT = 1
MANIFEST = "manifest.json"
ASIDE, BESIDE = ".before-restore-", ".restoring-"
"""Begin the names of folders that a restore leaves or has under way."""
MOST_MANIFEST = 2**28
"""Bytes: of a million files."""
SPARE = 2**26
"""Bytes of the disk that a restore leaves free."""
PATIENCE = 30.0
"""Seconds to wait for a database that is locked."""
_SQLITE = b"SQLite format 3\0"
_OF_SQLITE = ("-wal", "-shm", "-journal")
_PIECE = 2**20


class ArchiveError(Exception):
    """It cannot be written, or is not whole; the message says why."""


class Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    size: int
    sha256: str


class Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    version: str
    """Of the Tollgate that made it."""
    made: str
    """UTC, as ISO 8601 has it."""
    left_out: tuple[str, ...]
    """What the gateway keeps elsewhere."""
    files: Mapping[str, Stored]


def write(
    path: Path, folders: Mapping[str, Path], *, version: str, made: str, left_out: tuple[str, ...]
) -> Manifest:
    """Raises ``ArchiveError``, ``OSError``. It is there whole or not at all, and nothing is overwritten."""
    if path.exists():
        raise ArchiveError(f"{path} is there already: name another file")
    draft = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    files: dict[str, Stored] = {}
    try:
        opened = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ArchiveError(f"{path} cannot be made: {error.strerror or error}; name another file") from None
    try:
        with (
            os.fdopen(opened, "wb") as raw,
            tempfile.TemporaryDirectory(prefix=".tollgate-backup-", dir=path.absolute().parent) as scratch,
            tarfile.open(fileobj=raw, mode="w:gz", compresslevel=3, format=tarfile.PAX_FORMAT) as tar,
        ):
            for name, file in _found(folders):
                if (stored := _put(tar, name, file, Path(scratch) / "database")) is not None:
                    files[name] = stored
            manifest = Manifest(format=FORMAT, version=version, made=made, left_out=left_out, files=files)
            text = manifest.model_dump_json(indent=1).encode()
            tar.addfile(_entry(MANIFEST, len(text)), io.BytesIO(text))
            tar.close()
            raw.flush()
            os.fsync(raw.fileno())
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    return manifest


def _found(folders: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Databases before other files, as their rows name files; and both by name, which puts batches before the files
    that they name, and the ledger last, so that nothing that was done is missing from the bill."""
    found = [
        (f"{top}/{file.relative_to(folder)}", file)
        for top, folder in folders.items()
        for file in _files(folder)
    ]
    yield from sorted(found, key=lambda each: (not _is_database(each[1]), each[0]))


def links_to_nothing(folders: Iterable[Path]) -> Iterator[str]:
    """A line for each: what they led to may be on a disk that is away."""
    for each in (each for folder in folders for each in sorted(folder.rglob("*"))):
        if each.is_symlink() and not each.exists():
            yield f"what {each} leads to: {os.readlink(each)} is not there"


def _files(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Also behind links, as an operator may keep files on another disk. Raises ``OSError`` where a folder cannot be
    read: nothing is left out silently, except what is gone by now."""
    if (real := folder.resolve()) in above:
        return  # a link leads back
    try:
        held = list(folder.iterdir())
    except FileNotFoundError:
        return
    for each in held:
        try:
            mode = each.stat().st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISREG(mode) and not _is_passing(each):
            yield each
        elif stat.S_ISDIR(mode) and not each.name.startswith((ASIDE, BESIDE)):
            yield from _files(each, above | {real})


def _is_passing(file: Path) -> bool:
    return (
        file.name == LOCK
        or file.name.endswith(PARTIAL)
        or any(
            file.name.endswith(end) and _is_database(file.with_name(file.name.removesuffix(end)))
            for end in _OF_SQLITE
        )
    )


def _is_database(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


def _put(tar: tarfile.TarFile, name: str, file: Path, scratch: Path) -> Stored | None:
    """None where it is gone by now."""
    if _is_database(file):
        _copy_database(file, scratch)
        file = scratch
    try:
        stream = file.open("rb")
    except FileNotFoundError:
        return None
    with stream:
        size = os.fstat(stream.fileno()).st_size
        hashed = _Hashed(stream)
        tar.addfile(_entry(name, size), hashed)
    scratch.unlink(missing_ok=True)
    return Stored(size=size, sha256=hashed.digest.hexdigest())


def _copy_database(file: Path, target: Path) -> None:
    """One moment of it, whatever is written meanwhile; nobody waits for us."""
    try:
        source = sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True, timeout=PATIENCE)
        with closing(source), closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    except sqlite3.Error as error:
        raise ArchiveError(f"{file} cannot be copied: {error}") from error


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o600
    return entry


class _Hashed:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.digest.update(data)
        return data


def unpack(path: Path, into: Path) -> Manifest:
    """Unpack all of it, and compare that with the manifest. Raises ``ArchiveError``, ``OSError``."""
    found: dict[str, Stored] = {}
    told: Any = None
    try:
        with tarfile.open(path, "r|gz") as tar:
            for entry in tar:
                stream = tar.extractfile(entry) if entry.isreg() else None
                if stream is None or not _is_inside(entry.name):
                    raise ArchiveError(f"{path} is no backup of Tollgate's: it has {entry.name!r}")
                bound = MOST_MANIFEST if entry.name == MANIFEST else shutil.disk_usage(into).free - SPARE
                if entry.size > bound:
                    raise ArchiveError(
                        f"{entry.name} of {path} has {entry.size:,} bytes, and there is room for {max(bound, 0):,}"
                    )
                if entry.name == MANIFEST:
                    told = json.load(stream)
                else:
                    found[entry.name] = _take(stream, into / entry.name)
    except (tarfile.TarError, EOFError, ValueError, RecursionError, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise ArchiveError(f"{path} is damaged, or no backup of Tollgate's: {error}") from error
    if told is None:
        raise ArchiveError(f"{path} is no backup of Tollgate's, or only a part of one: it has no manifest")
    if isinstance(told, dict) and told.get("format") != FORMAT:
        raise ArchiveError(f"{path} has format {told.get('format')}, this Tollgate reads {FORMAT}")
    try:
        manifest = Manifest.model_validate(told)
    except ValidationError as error:
        raise ArchiveError(f"{path} has a manifest that cannot be read: {error}") from error
    if manifest.files != found:
        odd = sorted(
            name for name in {*manifest.files, *found} if manifest.files.get(name) != found.get(name)
        )
        raise ArchiveError(f"{path} is damaged: by its manifest {', '.join(odd[:5])} should be otherwise")
    return manifest


def _is_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return name == MANIFEST or (len(parts) > 1 and parts[0] in ("state", "policies") and ".." not in parts)


def _take(stream: IO[bytes], target: Path) -> Stored:
    for folder in reversed(target.relative_to(target.anchor).parents):
        private_folder(Path(target.anchor) / folder)
    size, digest = 0, sha256()
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        while piece := stream.read(_PIECE):
            out.write(piece)
            digest.update(piece)
            size += len(piece)
        out.flush()
        os.fsync(out.fileno())
    return Stored(size=size, sha256=digest.hexdigest())
