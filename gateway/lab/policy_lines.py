"""Where in a policy's files a key is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.policy.files import is_table
from gateway.policy.folder import find, joined, location_of
from gateway.policy.key_table import KeyTableReader
from gateway.policy.loader import Loaded
from gateway.policy.problems import KeyPath, Location, PolicyError, render
from gateway.policy.yaml_tree import Map


@dataclass(frozen=True, slots=True)
class PolicyLine:
    """A key of the policy that decided something."""

    key: str
    """``tenants.acme.quotas.tokens_per_minute``."""
    at: str | None
    """``gateway.yaml:12``: of the key, or of what it would be written in. None: nothing of it is in any file."""
    written: bool = True
    """False: it is not, and so has its default."""

    def __str__(self) -> str:
        default = "" if self.written else ", by default"
        return f"{self.key}{default}" if self.at is None else f"{self.at} ({self.key}{default})"


class PolicyLines:
    """Those of one policy."""

    def __init__(self, loaded: Loaded, env: Mapping[str, str], beside: Path | None = None) -> None:
        """Files are named as seen from ``beside``, those elsewhere by their whole path."""
        self._beside = beside
        self._tables = [file for file in loaded.sources if is_table(file.path)]
        files = [file for file in loaded.sources if not is_table(file.path)]
        self._root: Map | None
        try:
            self._root = joined(files, env).root
        except PolicyError:  # all of it is in tables
            self._root = None
        self._key_indexes = {key.sha256: index for index, key in enumerate(loaded.policy.keys)}

    def of(self, *path: str | int) -> PolicyLine:
        """The line of a key path."""
        root = self._root
        if root is None or not path or path[0] not in root.entries:
            return PolicyLine(render(path), None, written=False)
        return PolicyLine(render(path), self._named(location_of(root, path)), find(root, path) is not None)

    def written(self, *path: str | int) -> tuple[PolicyLine, ...]:
        """The same, where it is written; nothing where it is not."""
        line = self.of(*path)
        return (line,) if line.written else ()

    def of_key(self, key_id: str, sha256: str | None, *inside: str | int) -> PolicyLine | None:
        """The line of an API key, or of a key path inside of it; None where it is in no file."""
        index = self._key_indexes.get(sha256 or "")
        if index is not None and self._root is not None and find(self._root, ("keys", index)) is not None:
            path: KeyPath = ("keys", index, *inside)
            return PolicyLine(render(path), self._named(location_of(self._root, path)))
        for file in self._tables:
            for number, key in KeyTableReader().read(file, []).numbered():
                if key.id == key_id:
                    return PolicyLine(f"the key '{key_id}'", self._named(Location(file.path, number)))
        return None

    def _named(self, location: Location) -> str:
        file = location.file
        if self._beside is not None and file.is_relative_to(self._beside):
            file = file.relative_to(self._beside)
        return f"{file}:{location.line}"
