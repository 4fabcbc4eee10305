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
from gateway.policy.files import policy_files
from gateway.policy.folder import Folder, find, read_folder
from gateway.policy.key_file import ISSUED_FILE, NEW_FILE, CannotEdit, added, removed
from gateway.policy.problems import Location, PolicyError, suggestion
from gateway.policy.schema.access import DEFAULT_TIER
from gateway.policy.yaml_tree import Map, Scalar, Sequence
from gateway.private import private_folder

FILE = "keys.yaml"
"""In the policy folder."""
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

    def read(self) -> Folder:
        """Raises ``PolicyError`` where there is nothing to read."""
        return read_folder(self._directory, self._env, also=(self._issued,) if self._issued else ())

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
            for known in entries(folder):
                if known.text("id") == entry["id"]:
                    raise KeyStoreError(
                        f"{known.location}: there is a key with the id '{entry['id']}' already"
                    )
            _check_patterns(entry["models"], folder)
            _check_tier(entry.get("tier"), folder)
            try:
                return self._edit(self._directory / FILE, lambda text: added(text, entry))
            except OSError as error:
                if self._issued is None or error.errno not in _NOT_WRITABLE:
                    raise
            return self._edit(self._issued, lambda text: added(text, entry))

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


def entries(folder: Folder) -> Iterator[KeyEntry]:
    """Every key entry of a policy's files."""
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
    return frozenset(item.text.lower() for item in items if isinstance(item, Scalar))


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
