"""Which keys of the policy in force no longer stand in its files.

The last good policy stays in force while the files cannot be taken up, but a revoked key must not. Nor may a key whose
file cannot be read: whether it still stands there, nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gateway.policy import yaml_tree
from gateway.policy.environment import substitute
from gateway.policy.files import PolicyFile
from gateway.policy.problems import Problem
from gateway.policy.schema import Key

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Keys that do not count although the policy in force has them, by their ids."""

    gone: frozenset[str] = frozenset()
    """They stand nowhere any more, or among the revoked."""
    unsure: frozenset[str] = frozenset()
    """They may stand in a file that cannot be read, or is just being written."""
    unread: tuple[str, ...] = ()
    """Files that cannot be read: a key that is not known may stand in them."""


class _Marks(NamedTuple):
    content: bytes
    written: frozenset[str]
    revoked: frozenset[str]


class Standing:
    """Tells which keys still stand. Files that have not changed are not parsed again."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._known: dict[Path, _Marks] = {}

    def of(
        self, keys: Iterable[Key], settled: Iterable[PolicyFile], unsettled: Iterable[PolicyFile] = ()
    ) -> Withdrawn:
        """What has become of ``keys``. ``unsettled`` files are as they are just now, ``settled`` as they were."""
        before = {file.path: file for file in settled}
        written, revoked = self._marks(before.values())
        now, _ = self._marks({**before, **{file.path: file for file in unsettled}}.values())
        unread = tuple(str(file.path) for file in before.values() if file.content is None)
        missing = {key.id for key in keys if key.sha256 not in written}
        gone = {key.id for key in keys if key.sha256 in revoked}
        unsure = {key.id for key in keys if key.sha256 not in now}
        if unread or not before:
            unsure |= missing
        else:
            gone |= missing
        return Withdrawn(frozenset(gone), frozenset(unsure - gone), unread)

    def _marks(self, files: Iterable[PolicyFile]) -> tuple[set[str], set[str]]:
        written, revoked = set[str](), set[str]()
        for file in files:
            if file.content is not None:
                known = self._known.get(file.path)
                if known is None or known.content != file.content:
                    known = self._known[file.path] = _marks(file.path, file.content, self._env)
                written |= known.written
                revoked |= known.revoked
        return written, revoked


def _marks(path: Path, content: bytes, env: Mapping[str, str]) -> _Marks:
    """The hashes under ``keys`` and ``revoked_keys``.

    In a file that is no valid YAML a key's hash may stand anywhere, in a comment too.
    """
    text = content.decode("utf-8-sig", "replace")
    problems: list[Problem] = []
    root = yaml_tree.read(text, path, env, problems)
    if root is None:
        hashes = _HASH.findall(_substituted(text, env).lower()) if problems else []
        return _Marks(content, frozenset(hashes), frozenset())
    written, revoked = set[str](), set[str]()
    for where, _, scalar in yaml_tree.scalars(root):
        if len(where) == 3 and where[0] == "keys" and where[2] == "sha256":
            written.add(scalar.text.lower())
        elif len(where) == 2 and where[0] == "revoked_keys":
            revoked.add(scalar.text.lower())
    return _Marks(content, frozenset(written), frozenset(revoked))


def _substituted(text: str, env: Mapping[str, str]) -> str:
    try:
        return substitute(text, env).text
    except ValueError:
        return text
