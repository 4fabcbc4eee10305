"""Adding and revoking the keys of a policy: in its folder or, where that is read-only, in the state folder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gateway.policy import yaml_tree
from gateway.policy.checks import aliases_of
from gateway.policy.files import TABLE, is_table, policy_files
from gateway.policy.folder import Folder, find, read_folder
from gateway.policy.key_file import ISSUED_FILE, NEW_FILE, CannotEdit, added, removed
from gateway.policy.key_table import ISSUED_TABLE, KeyTableReader, append
from gateway.policy.problems import Location, PolicyError, suggestion
from gateway.policy.schema.access import DEFAULT_TIER
from gateway.policy.yaml_tree import Map, Scalar, Sequence
from gateway.private import private_folder

FILE = "keys.yaml"
"""In the policy folder."""
FEW = 256
"""Keys in a YAML file, from which on new ones are added to a table beside it."""
ISSUED = "issued-keys.yaml"
"""In the state folder, and part of the policy, too: for a gateway that may not write to its policy folder."""
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


class KeyStoreError(Exception):
    """The change cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """An entry as it is written, valid or not."""

    location: Location
    position: int
    """Its index in its own file's list."""
    content: dict[str, Any]

    def text(self, key: str, default: str = "") -> str:
        value = self.content.get(key)
        return default if value is None else str(value)


class Revoked(NamedTuple):
    sha256: str
    file: Path
    """The file that was changed."""
    left: int
    """How many keys remain."""
    problems: str
    """What is wrong with the policy otherwise; empty if nothing is."""


class KeyStore:
    """One change at a time, over all processes, so that concurrent changes do not overwrite each other."""

    def __init__(self, directory: Path, issued: Path | None, env: Mapping[str, str]) -> None:
        """``issued`` is the file for changes that ``directory`` does not allow; None: those fail."""
        self._directory = directory
        self._issued = issued
        self._env = env
        self._tables = KeyTableReader()

    def read(self) -> Folder:
        """Raises ``PolicyError`` where there is nothing to read."""
        also = issued_files(self._issued.parent) if self._issued else ()
        return read_folder(self._directory, self._env, also=also, tables=self._tables)

    def read_valid(self) -> Folder:
        """Raises ``PolicyError`` also where the files have problems."""
        folder = self.read()
        if folder.problems:
            raise PolicyError(folder.problems)
        return folder

    def add(self, entry: Mapping[str, Any]) -> Path:
        """The file that it was added to. Raises ``KeyStoreError``, ``PolicyError`` and ``OSError``."""
        with self._locked():
            folder = self.read_valid()
            known = _locate(folder, entry["id"])
            if known is not None:
                raise KeyStoreError(f"{known}: there is a key with the id '{entry['id']}' already")
            _check_patterns(entry["models"], folder)
            _check_tier(entry.get("tier"), folder)
            try:
                return self._add_to(self._directory / FILE, self._directory / TABLE, entry, folder)
            except OSError as error:
                if self._issued is None or error.errno not in _NOT_WRITABLE:
                    raise
            return self._add_to(self._issued, self._issued.with_name(ISSUED_TABLE), entry, folder)

    def _add_to(self, file: Path, table: Path, entry: Mapping[str, Any], folder: Folder) -> Path:
        """Add to ``file``, or to the ``table`` beside it where either holds many."""
        if not table.exists() and sum(one.location.file == file for one in yaml_entries(folder)) < FEW:
            return self._edit(file, lambda text: added(text, entry))
        append(table, dict(entry), 0o600 if file == self._issued else self._mode(table))
        return table

    def revoke(self, id: str) -> Revoked:
        """Remove a key or, where its file cannot be changed, list it under ``revoked_keys``. Raises as ``add``."""
        with self._locked():
            folder = self.read()
            listed = [
                one for one in entries(folder) if one.text("sha256").lower() not in revoked_hashes(folder)
            ]
            entry = next((one for one in listed if one.text("id") == id), None)
            if entry is None:
                if folder.problems:
                    raise PolicyError(folder.problems)
                raise KeyStoreError(
                    f"no key has the id '{id}'{suggestion(id, [one.text('id') for one in listed])}"
                )
            problems = str(PolicyError(folder.problems)) if folder.problems else ""
            file = self._remove(entry)
            return Revoked(entry.text("sha256").lower(), file, len(listed) - 1, problems)

    def _remove(self, entry: KeyEntry) -> Path:
        file = entry.location.file
        if is_table(file):
            try:
                append(file, {"revoked": entry.text("sha256").lower()}, self._mode(file))
                return file
            except OSError as error:
                if error.errno not in _NOT_WRITABLE or self._issued is None:
                    raise
        writable = os.access(file, os.W_OK)
        if file == self._issued or file.name == FILE:
            try:
                return self._edit(file, lambda text: removed(text, entry.position))
            except KeyStoreError:
                pass
            except OSError as error:
                if error.errno not in _NOT_WRITABLE:
                    raise
                writable = False
        if writable or self._issued is None:
            raise KeyStoreError(
                f"{entry.location}: remove this entry by hand; 'tollgate keys' only changes {FILE}"
            )
        digest = entry.text("sha256").lower()
        return self._edit(self._issued, lambda text: added(text, digest, "revoked_keys"))

    def _edit(self, file: Path, change: Callable[[str], str]) -> Path:
        new = ISSUED_FILE if file == self._issued else NEW_FILE
        try:
            text = change(file.read_text("utf-8-sig") if file.exists() else new)
        except CannotEdit:
            raise KeyStoreError(
                f"{file}: its layout is not understood, so nothing was changed; edit it by hand"
            ) from None
        if file == self._issued:
            private_folder(file.parent)
        _write(file, text, 0o600 if file == self._issued else self._mode(file))
        return file

    def _mode(self, file: Path) -> int:
        """An existing file keeps its mode; a new one is as readable as the policy files beside it.

        A gateway often runs as another user than the one that makes its keys, and hashes of random keys are no secret.
        """
        if file.exists():
            return file.stat().st_mode & 0o777
        others = 0o077
        with suppress(PolicyError):
            for path in policy_files(self._directory):
                others &= path.stat().st_mode
        return 0o600 | (others & 0o044)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            for folder in (self._directory, self._issued.parent if self._issued else None):
                if folder is not None and folder.is_dir():  # reading it will say what is wrong
                    handle = os.open(folder, os.O_RDONLY)
                    stack.callback(os.close, handle)
                    fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def issued_files(state_dir: Path) -> tuple[Path, Path]:
    return state_dir / ISSUED, state_dir / ISSUED_TABLE


def entries(folder: Folder) -> Iterator[KeyEntry]:
    """Every key entry of a policy's files."""
    yield from yaml_entries(folder)
    for table in folder.tables:
        for number, key in table.numbered():
            content = key.model_dump(mode="json", exclude_unset=True)
            yield KeyEntry(Location(table.file, number), number, content)


def _locate(folder: Folder, id: str) -> Location | None:
    for entry in yaml_entries(folder):
        if entry.text("id") == id:
            return entry.location
    for table in folder.tables:
        for number, key in table.numbered():
            if key.id == id:
                return Location(table.file, number)
    return None


def yaml_entries(folder: Folder) -> Iterator[KeyEntry]:
    keys = find(folder.root, ("keys",))
    positions: dict[Path, int] = {}
    for item in keys.items if isinstance(keys, Sequence) else ():
        position = positions.get(item.location.file, 0)
        positions[item.location.file] = position + 1
        if isinstance(item, Map):
            yield KeyEntry(item.location, position, yaml_tree.data(item))


def revoked_hashes(folder: Folder) -> frozenset[str]:
    listed = find(folder.root, ("revoked_keys",))
    items = listed.items if isinstance(listed, Sequence) else ()
    in_yaml = (item.text.lower() for item in items if isinstance(item, Scalar))
    return frozenset(in_yaml).union(*(table.revoked for table in folder.tables))


def _check_tier(tier: str | None, folder: Folder) -> None:
    tiers = find(folder.root, ("tiers",))
    names = tuple(tiers.entries) if isinstance(tiers, Map) else ()
    if tier is not None and names and tier not in (*names, DEFAULT_TIER):
        raise KeyStoreError(f"--tier: no tier is named '{tier}'{suggestion(tier, names)}")


def _check_patterns(patterns: list[str], folder: Folder) -> None:
    models = find(folder.root, ("models",))
    content = yaml_tree.data(models) if isinstance(models, Map) else {}
    names = (*content, *aliases_of(content))
    for pattern in patterns:
        if not set("*?[") & set(pattern) and pattern not in names:
            raise KeyStoreError(f"--models: no model is named '{pattern}'{suggestion(pattern, names)}")


def _write(file: Path, text: str, mode: int) -> None:
    """Replace a file by rename, so that nobody reads half of it; its owner stays."""
    file = file.resolve()
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            with suppress(PermissionError, FileNotFoundError):
                before = file.stat()
                os.fchown(handle, before.st_uid, before.st_gid)
            os.fchmod(handle, mode)
            os.fsync(handle)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
