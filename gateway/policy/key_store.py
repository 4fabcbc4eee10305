"""Adding and revoking the keys of a policy: in its folder or, where that is read-only, in the state folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from gateway.policy import yaml_tree
from gateway.policy.content import aliases_of, is_pattern, may_be_adapter
from gateway.policy.file_changes import locked, replace_file
from gateway.policy.files import TABLE, is_table, policy_files
from gateway.policy.folder import Folder, find, read_folder
from gateway.policy.key_file import ISSUED_FILE, NEW_FILE, CannotEdit, added, removed, replaced
from gateway.policy.key_table import ISSUED_TABLE, KeyTableReader, append
from gateway.policy.operations import OPERATIONS
from gateway.policy.problems import Location, PolicyError, suggestion
from gateway.policy.rules.residency import nothing_in_region, place_outside
from gateway.policy.rules.subject import Draft
from gateway.policy.schema.access import DEFAULT_TIER, Key
from gateway.policy.yaml_tree import Map, Scalar, Sequence
from gateway.private import private_folder

FILE = "keys.yaml"
"""In the policy folder."""
FEW = 256
"""Keys in a YAML file, from which on new ones are added to a table beside it."""
ISSUED = "issued-keys.yaml"
"""In the state folder, and part of the policy, too: for a gateway that may not write to its policy folder."""
_IDENTITY = ("id", "sha256", "previous")
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


class KeyChange(NamedTuple):
    file: Path
    """The file that was changed."""
    version: str
    """Of the key as it is now."""


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
        also = state_files(self._issued.parent) if self._issued else ()
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
            _check_patterns(entry.get("models", []), folder)
            _check_tier(entry.get("tier"), folder)
            _check_residency(entry, folder)
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
        append(table, dict(entry), mode=0o600 if file == self._issued else self._mode(table))
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

    def rotate(self, id: str, sha256: str, until: datetime) -> Path:
        """Give a key another hash, and accept the present one until then. Returns the file. Raises as ``add``."""
        with self._locked():
            folder = self.read_valid()
            entry = _listed(folder, id)
            old = entry.text("sha256").lower()
            rest = {name: value for name, value in entry.content.items() if name not in _IDENTITY}
            previous = {"sha256": old, "until": until.isoformat(timespec="seconds")}
            return self._replace(entry, {"id": id, "sha256": sha256, **rest, "previous": previous})

    def change(self, id: str, fields: Mapping[str, Any], version: str | None = None) -> KeyChange:
        """Give a key other limits: what ``fields`` has in place of what it had; None takes it away.

        ``version`` is that of the key (``version_of``) which the change was made for; another is refused. Raises as
        ``add``.
        """
        with self._locked():
            folder = self.read_valid()
            entry = _listed(folder, id)
            if version is not None and version != version_of(Key.model_validate(entry.content)):
                raise KeyStoreError(f"{entry.location}: the key was changed meanwhile; look at it again")
            new = {
                name: value for name, value in {**entry.content, **fields}.items() if value not in (None, {})
            }
            changed = Key.model_validate(new)
            _check_patterns(new.get("models", []), folder)
            _check_tier(new.get("tier"), folder)
            _check_residency(new, folder)
            return KeyChange(self._replace(entry, new), version_of(changed))

    def _replace(self, entry: KeyEntry, new: dict[str, Any]) -> Path:
        file = entry.location.file
        try:
            if is_table(file):
                # In one write, so that nobody reads a table without either.
                append(file, {"superseded": entry.text("sha256").lower()}, new, mode=self._mode(file))
                return file
            if file == self._issued or file.name == FILE:
                return self._edit(file, lambda text: replaced(text, entry.position, new))
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            raise KeyStoreError(
                f"{entry.location}: the file cannot be written; edit it there, or make a second key and revoke this"
            ) from None
        raise KeyStoreError(
            f"{entry.location}: change this entry by hand; 'tollgate keys' only changes {FILE}"
        )

    def can_change(self, entry: KeyEntry) -> bool:
        """Whether ``rotate`` and ``change`` can write its file."""
        file = entry.location.file
        own = file == self._issued or file.name == FILE or is_table(file)
        return own and os.access(file, os.W_OK) and (is_table(file) or os.access(file.parent, os.W_OK))

    def revoke_hashes(self, hashes: Iterable[str]) -> None:
        """Refuse these for good, wherever they stand. Raises ``KeyStoreError`` and ``OSError``."""
        if self._issued is None:
            raise KeyStoreError(
                "no gateway runs here, and its state folder is not known; name that by TOLLGATE_STATE_DIR"
            )
        with self._locked():
            for digest in hashes:
                self._edit(self._issued, partial(_revoking, digest=digest))

    def _remove(self, entry: KeyEntry) -> Path:
        file = entry.location.file
        if is_table(file):
            try:
                append(file, {"revoked": entry.text("sha256").lower()}, mode=self._mode(file))
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
        replace_file(file, text, 0o600 if file == self._issued else self._mode(file))
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

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self._directory, self._issued.parent if self._issued else None)


def state_files(state_dir: Path) -> tuple[Path, ...]:
    """Files of the state folder that are part of the policy while they are there."""
    return state_dir / ISSUED, state_dir / ISSUED_TABLE, state_dir / OPERATIONS


def entries(folder: Folder) -> Iterator[KeyEntry]:
    """Every key entry of a policy's files."""
    yield from yaml_entries(folder)
    for table in folder.tables:
        for number, key in table.numbered():
            content = key.model_dump(mode="json", exclude_unset=True)
            yield KeyEntry(Location(table.file, number), number, content)


def _revoking(text: str, digest: str) -> str:
    return added(text, digest, "revoked_keys")


def version_of(key: Key) -> str:
    """The same in every process for as long as nothing of the key changes."""
    return sha256(key.model_dump_json().encode()).hexdigest()[:16]


def _listed(folder: Folder, id: str) -> KeyEntry:
    """Raises ``KeyStoreError``."""
    revoked = revoked_hashes(folder)
    listed = [one for one in entries(folder) if one.text("sha256").lower() not in revoked]
    entry = next((one for one in listed if one.text("id") == id), None)
    if entry is None:
        raise KeyStoreError(f"no key has the id '{id}'{suggestion(id, [one.text('id') for one in listed])}")
    return entry


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


def _check_residency(entry: Mapping[str, Any], folder: Folder) -> None:
    """One key must not make the whole policy invalid."""
    if entry.get("residency"):
        alone = Draft({**yaml_tree.data(folder.root), "keys": [entry]})
        for found in (one for rule in (nothing_in_region, place_outside) for one in rule(alone)):
            raise KeyStoreError(f"residency: {found.message}")


def _check_patterns(patterns: list[str], folder: Folder) -> None:
    models = find(folder.root, ("models",))
    content = yaml_tree.data(models) if isinstance(models, Map) else {}
    names, adapters = (*content, *aliases_of(content)), find(folder.root, ("adapters",))
    for pattern in patterns:
        if is_pattern(pattern) or pattern in names:
            continue
        if not may_be_adapter(pattern, names, adapters is not None):
            raise KeyStoreError(f"--models: no model is named '{pattern}'{suggestion(pattern, names)}")
