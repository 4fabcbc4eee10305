"""Which keys of the policy in force no longer stand in its files.

The last good policy stays in force while the files cannot be taken up, but a revoked key must not. Nor may a key whose
file is gone or cannot be read: whether it still stands there, nobody knows. An edit of a policy that goes wrong is
neither: while a file with more than keys in it lost them all, and nothing can be taken up, they stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gateway.policy import yaml_tree
from gateway.policy.environment import substitute
from gateway.policy.files import PolicyFile
from gateway.policy.problems import Problem
from gateway.policy.schema import Key

_HASH = re.compile(r"[0-9a-f]{64}")
_KEYS = frozenset({"version", "keys", "revoked_keys"})


@dataclass(frozen=True, slots=True)
class RevokedKeys:
    """Keys that do not count although the policy in force has them, by their ids."""

    gone: frozenset[str] = frozenset()
    """They stand nowhere any more, or among the revoked."""
    unsure: frozenset[str] = frozenset()
    """They may stand in a file that cannot be read, or is just being written."""
    unread: tuple[str, ...] = ()
    """Files that cannot be read: a key that is not known may stand in them."""


class _Marks(NamedTuple):
    content: bytes
    written: frozenset[str] = frozenset()
    revoked: frozenset[str] = frozenset()
    mentions_keys: bool = False
    """There is a list of keys, were it empty: whoever revokes the last key leaves one behind."""
    holds_more: bool = False
    """Than keys."""


class RevocationTracker:
    """Tells which keys still stand. Files that have not changed are not parsed again."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._known: dict[Path, tuple[_Marks, ...]] = {}
        """Of a file's versions: as it is in force, as it stood still last, and as it is now."""

    def of(
        self,
        keys: Iterable[Key],
        sources: Iterable[PolicyFile],
        settled: Iterable[PolicyFile],
        unsettled: Iterable[PolicyFile] = (),
    ) -> RevokedKeys:
        """What has become of ``keys``, which were read from ``sources``.

        ``unsettled`` files are as they are just now, ``settled`` as they were when they stood still.
        """
        keys, sources = tuple(keys), tuple(sources)
        before = {file.path: file for file in settled}
        found = self._found(sources, before.values())
        now = self._found(sources, {**before, **{file.path: file for file in unsettled}}.values())
        missing = {key.id for key in keys if key.sha256 not in found.written}
        gone = {key.id for key in keys if key.sha256 in found.revoked}
        unsure = {key.id for key in keys if key.sha256 not in now.written}
        if found.unread or not before:
            unsure |= missing
        else:
            gone |= missing
        return RevokedKeys(frozenset(gone), frozenset(unsure - gone), tuple(found.unread))

    def _found(self, sources: Iterable[PolicyFile], files: Iterable[PolicyFile]) -> _Found:
        held = {file.path.name: self._marks(file) for file in sources}
        found = _Found()
        for file in files:
            before, marks = held.get(file.path.name, _NOTHING), self._marks(file)
            found.written |= marks.written
            found.revoked |= marks.revoked
            if file.content is None:
                found.unread.append(str(file.path))
            elif before.written and not marks.mentions_keys:
                if before.holds_more:
                    found.written |= before.written
                else:
                    found.unread.append(str(file.path))
        return found

    def _marks(self, file: PolicyFile) -> _Marks:
        if file.content is None:
            return _NOTHING
        known = self._known.get(file.path, ())
        marks = next((one for one in known if one.content == file.content), None)
        if marks is None:
            marks = _marks(file.path, file.content, self._env)
        if not known or known[0] is not marks:
            others = (one for one in known if one is not marks)
            self._known[file.path] = (marks, *islice(others, _VERSIONS - 1))
        return marks


class _Found:
    def __init__(self) -> None:
        self.written: set[str] = set()
        self.revoked: set[str] = set()
        self.unread: list[str] = []


_NOTHING = _Marks(b"")
_VERSIONS = 3


def _marks(path: Path, content: bytes, env: Mapping[str, str]) -> _Marks:
    """The hashes under ``keys`` and ``revoked_keys``.

    In a file that is no valid YAML a key's hash may stand anywhere, in a comment too.
    """
    text = content.decode("utf-8-sig", "replace")
    problems: list[Problem] = []
    root = yaml_tree.read(text, path, env, problems)
    if root is None:
        text = _substituted(text, env).lower()
        hashes = frozenset(_HASH.findall(text)) if problems else frozenset()
        return _Marks(content, hashes, mentions_keys="keys:" in text)
    written, revoked = set[str](), set[str]()
    for where, _, scalar in yaml_tree.scalars(root):
        if len(where) == 3 and where[0] == "keys" and where[2] == "sha256":
            written.add(scalar.text.lower())
        elif len(where) == 2 and where[0] == "revoked_keys":
            revoked.add(scalar.text.lower())
    return _Marks(
        content,
        frozenset(written),
        frozenset(revoked),
        "keys" in root.entries,
        not root.entries.keys() <= _KEYS,
    )


def _substituted(text: str, env: Mapping[str, str]) -> str:
    try:
        return substitute(text, env).text
    except ValueError:
        return text
