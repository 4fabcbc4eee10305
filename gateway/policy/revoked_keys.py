"""Which keys of the policy in force are no longer in its files.

The last good policy stays in force while the files are invalid, but a revoked key must not. Nor may a key whose file is
gone or unreadable, as it may have been revoked there. An edit that fails is neither: when a file that has more than
keys has lost its whole ``keys`` list, and the files are invalid, its keys stay valid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from gateway.policy import yaml_tree
from gateway.policy.environment import substitute
from gateway.policy.files import PolicyFile, is_prompt, is_table
from gateway.policy.key_table import hashes_of
from gateway.policy.problems import Problem
from gateway.policy.schema import Key

_HASH = re.compile(r"[0-9a-f]{64}")
_KEYS = frozenset({"version", "keys", "revoked_keys"})


@dataclass(frozen=True, slots=True)
class RevokedKeys:
    """Keys that are refused although the policy in force has them, by their ids."""

    gone: frozenset[str] = frozenset()
    """They are in no file any more, or under ``revoked_keys``."""
    unverified: frozenset[str] = frozenset()
    """They may be in a file that cannot be read, or is just being written."""
    unreadable_files: tuple[str, ...] = ()
    """An unknown key may be in one of these."""


class _FileKeys(NamedTuple):
    content: bytes
    written: frozenset[str] = frozenset()
    revoked: frozenset[str] = frozenset()
    mentions_keys: bool = False
    """There is a list of keys, perhaps an empty one: revoking the last key leaves that."""
    has_more_than_keys: bool = False


class RevocationTracker:
    """Compares the keys in force with the files. Files that have not changed are not parsed again."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._known: dict[Path, tuple[_FileKeys, ...]] = {}
        """Of a file's versions: the one in force, the last stable one, and the present one."""

    def of(
        self,
        keys: Iterable[Key],
        sources: Iterable[PolicyFile],
        settled: Iterable[PolicyFile],
        unsettled: Iterable[PolicyFile] = (),
    ) -> RevokedKeys:
        """Which of ``keys``, which were read from ``sources``, are refused.

        ``unsettled`` files are as they are just now, ``settled`` as they were when they were last stable.
        """
        keys, sources = tuple(keys), tuple(sources)
        before = {file.path: file for file in settled}
        found = self._found(sources, before.values())
        now = self._found(sources, {**before, **{file.path: file for file in unsettled}}.values())
        missing = {key.id for key in keys if key.sha256 not in found.written}
        gone = {key.id for key in keys if key.sha256 in found.revoked}
        unverified = {key.id for key in keys if key.sha256 not in now.written}
        if found.unreadable or not before:
            unverified |= missing
        else:
            gone |= missing
        return RevokedKeys(frozenset(gone), frozenset(unverified - gone), tuple(found.unreadable))

    def _found(self, sources: Iterable[PolicyFile], files: Iterable[PolicyFile]) -> _Found:
        in_force = {file.path.name: self._keys_of(file) for file in sources}
        found = _Found()
        for file in files:
            before, marks = in_force.get(file.path.name, _NOTHING), self._keys_of(file)
            found.written |= marks.written
            found.revoked |= marks.revoked
            if file.content is None:
                found.unreadable.append(str(file.path))
            elif before.written and not marks.mentions_keys:
                if before.has_more_than_keys:
                    found.written |= before.written
                else:
                    found.unreadable.append(str(file.path))
        return found

    def _keys_of(self, file: PolicyFile) -> _FileKeys:
        if file.content is None:
            return _NOTHING
        known = self._known.get(file.path, ())
        marks = next((one for one in known if one.content == file.content), None)
        if marks is None:
            if is_table(file.path):
                marks = _table_keys(file.content, known)
            elif is_prompt(file.path):
                marks = _FileKeys(file.content)
            else:
                marks = _file_keys(file.path, file.content, self._env)
        if not known or known[0] is not marks:
            others = (one for one in known if one is not marks)
            self._known[file.path] = (marks, *islice(others, _VERSIONS - 1))
        return marks


@dataclass(slots=True)
class _Found:
    written: set[str] = field(default_factory=set)
    revoked: set[str] = field(default_factory=set)
    unreadable: list[str] = field(default_factory=list)


_NOTHING = _FileKeys(b"")
_VERSIONS = 3


def _table_keys(content: bytes, known: Iterable[_FileKeys]) -> _FileKeys:
    """The hashes of a table; those of a version to which lines were appended are not looked for again."""
    before = next(
        (one for one in known if one.content.endswith(b"\n") and content.startswith(one.content)), _NOTHING
    )
    written, revoked = hashes_of(content[len(before.content) :])
    return _FileKeys(
        content, before.written | written, before.revoked | revoked, mentions_keys=not content.isspace()
    )


def _file_keys(path: Path, content: bytes, env: Mapping[str, str]) -> _FileKeys:
    """The hashes under ``keys`` and ``revoked_keys``; of a file that is no valid YAML, all hashes in its text."""
    text = content.decode("utf-8-sig", "replace")
    problems: list[Problem] = []
    root = yaml_tree.read(text, path, env, problems)
    if root is None:
        text = _substituted(text, env).lower()
        hashes = frozenset(_HASH.findall(text)) if problems else frozenset()
        return _FileKeys(content, hashes, mentions_keys="keys:" in text)
    written, revoked = set[str](), set[str]()
    for where, _, scalar in yaml_tree.scalars(root):
        if len(where) == 3 and where[0] == "keys" and where[2] == "sha256":
            written.add(scalar.text.lower())
        elif len(where) == 2 and where[0] == "revoked_keys":
            revoked.add(scalar.text.lower())
    return _FileKeys(
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
