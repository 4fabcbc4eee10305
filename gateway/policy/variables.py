"""What settings and policies read as variables: the environment, and the files of a folder, each named as its variable.

A Kubernetes Secret that is mounted is such a folder, as are Docker's ``/run/secrets`` and systemd's credentials. What
the environment has goes first, as settings of a process stand there for its workers.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gateway.policy.files import Stamp, is_fresh, stamp_of
from gateway.settings import SettingsError

log = logging.getLogger(__name__)

FOLDER = "TOLLGATE_SECRETS_DIR"
MAX_BYTES = 64 * 1024
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Secret(NamedTuple):
    value: str = ""
    problem: str = ""
    """Why it cannot be used."""


class Variables(Mapping[str, str]):
    """Of one process. Raises ``SettingsError`` for a folder that cannot be read, and for a file of it that is no text,
    once that one is asked for."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env
        folder = env.get(FOLDER)
        self._folder = Path(folder) if folder else None
        self._secrets: Mapping[str, _Secret] = {}
        self._seen: Mapping[str, _Secret] = {}
        """At the last look."""
        self._stamps: Mapping[str, Stamp | None] = {}
        self._lost = False
        if self._folder is not None:
            self._stamps = _stamps(self._folder)
            self._seen = self._secrets = _read(self._folder, self._stamps)

    def look(self) -> bool:
        """Read the folder again: whether what it holds has changed. Two looks must agree, so that a file that is being
        written is not taken half. Blocks on the disk."""
        if self._folder is None:
            return False
        try:
            stamps = _stamps(self._folder)
        except SettingsError as error:
            if not self._lost:
                log.error("%s; what was read from it before stays in force", error)
            self._lost = True
            return False
        self._lost = False
        if stamps == self._stamps and self._seen == self._secrets and not any(map(is_fresh, stamps.values())):
            return False
        found = _read(self._folder, stamps)
        stable, self._seen, self._stamps = found == self._seen, found, stamps
        if not stable or found == self._secrets:
            return False
        before, self._secrets = self._secrets, found
        names = sorted(name for name in {*before, *found} if before.get(name) != found.get(name))
        log.info("secrets have changed in '%s': %s", self._folder, ", ".join(names))
        return True

    def notices(self) -> list[str]:
        """What is likely a mistake in the folder."""
        found: list[str] = []
        for name in sorted(self._secrets) if self._folder is not None else ():
            path, secret = self._path(name), self._secrets[name]
            mode = _mode(path)
            if mode & stat.S_IROTH:
                found.append(
                    f"everybody here may read the secret in '{path}' (mode {mode:04o}): take that right away, "
                    "by 'chmod o-r', or by defaultMode: 0440 of a Kubernetes volume"
                )
            if self._env.get(name):
                found.append(
                    f"{name} is set in the environment, so that '{path}' is not read: remove one of them"
                )
            elif not secret.value and not secret.problem:
                found.append(f"'{path}' is empty, so that {name} counts as not set")
        return found

    def __getitem__(self, name: str) -> str:
        secret = self._secrets.get(name)
        if secret is None or self._env.get(name):
            return self._env[name]
        if secret.problem:
            raise SettingsError(f"'{self._path(name)}', which holds {name}, {secret.problem}")
        return secret.value

    def __iter__(self) -> Iterator[str]:
        """Those that can be read."""
        yield from self._env
        for name, secret in self._secrets.items():
            if name not in self._env and not secret.problem:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _path(self, name: str) -> Path:
        return (self._folder or Path()) / name


def _stamps(folder: Path) -> dict[str, Stamp | None]:
    """Of its files that have a variable's name. Raises ``SettingsError``."""
    try:
        names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(
            f"{FOLDER} must name a folder that this user may read, with a file for each secret; '{folder}': {why}"
        ) from None
    return {name: stamp_of(folder / name) for name in names}


def _read(folder: Path, names: Mapping[str, Stamp | None]) -> dict[str, _Secret]:
    return {name: _secret(folder / name) for name in names}


def _secret(path: Path) -> _Secret:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            # A pipe would be waited for. Docker makes a folder where the file that is to be mounted is not there.
            return _Secret(problem="is no file: write one there, or remove it")
        if found.st_size > MAX_BYTES:
            return _Secret(problem=f"has more than {MAX_BYTES} bytes: no secret has")
        content = path.read_bytes()
    except OSError as error:
        return _Secret(problem=f"cannot be read: {error.strerror or error}")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return _Secret(problem="is no text in UTF-8: write the secret as text, a key's bytes in base64")
    if "\0" in text:
        return _Secret(problem="holds a NUL byte, which no secret may: write it as text")
    return _Secret(text.rstrip("\r\n"))


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0
