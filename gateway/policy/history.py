"""The policies that were in force, newest last: each a folder of its files as they were written.

    <state folder>/history/000007/about.json        when, and its fingerprint
                                  gateway.yaml …    the files of the policy folder, without those that hold issued keys

``tollgate serve`` adds each policy that it applies. Files may hold providers' keys: only their owner may read them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gateway.policy.files import PolicyFile, is_table
from gateway.policy.loader import Loaded
from gateway.private import private_folder

FOLDER = "history"
MOST = 100
"""Generations that are kept."""
KEY_FILES = frozenset({"keys.yaml", "keys.jsonl"})
"""Files of the policy folder that change with every key: neither recorded nor rolled back, so that no roll-back brings
a revoked key back."""
_ABOUT = "about.json"


@dataclass(frozen=True, slots=True)
class Generation:
    number: int
    since: str
    """When it came into force, in ISO 8601."""
    fingerprint: str
    files: dict[str, bytes]
    """By name, as they were written."""


class PolicyHistory:
    def __init__(self, state_dir: Path, policies: Path) -> None:
        self._folder = state_dir / FOLDER
        self._policies = policies

    def add(self, loaded: Loaded) -> int:
        """Record what is in force now, unless its files are those of the newest entry. Returns the entry's number.

        Raises ``OSError``.
        """
        files = self.recorded(loaded.sources)
        number, is_known = self._number_of(files)
        if is_known:
            return number
        private_folder(self._folder)
        draft = self._folder / f".{number:06}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        about = {
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "fingerprint": loaded.fingerprint,
        }
        for name, content in {**files, _ABOUT: json.dumps(about).encode()}.items():
            with open(draft / name, "xb", opener=_private) as file:
                file.write(content)
        draft.rename(self._folder / f"{number:06}")
        for old in self._numbers()[MOST:]:
            shutil.rmtree(self._folder / f"{old:06}", ignore_errors=True)
        return number

    def number_of(self, loaded: Loaded) -> int:
        """The number that ``add`` has given the policy in force now, or will give it."""
        return self._number_of(self.recorded(loaded.sources))[0]

    def _number_of(self, files: dict[str, bytes]) -> tuple[int, bool]:
        """And whether it is there."""
        newest = next(self.generations(), None)
        if newest is None:
            return 1, False
        return (newest.number, True) if newest.files == files else (newest.number + 1, False)

    def recorded(self, sources: tuple[PolicyFile, ...]) -> dict[str, bytes]:
        """Those of a policy's files that the history holds: the policy folder's own, without its key files."""
        return {
            file.path.name: file.content or b""
            for file in sources
            if file.path.parent == self._policies
            and file.path.name not in KEY_FILES
            and not is_table(file.path)
        }

    def generations(self) -> Iterator[Generation]:
        """Newest first."""
        for number in self._numbers():
            if (found := self.generation(number)) is not None:
                yield found

    def generation(self, number: int) -> Generation | None:
        folder = self._folder / f"{number:06}"
        try:
            about = json.loads((folder / _ABOUT).read_text())
            files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != _ABOUT}
            return Generation(number, str(about["since"]), str(about["fingerprint"]), files)
        except (OSError, ValueError, KeyError):
            return None

    def _numbers(self) -> list[int]:
        """Newest first."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError:
            return []
        return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
