"""Keys as JSON lines, for more of them than anybody writes by hand: ``keys.jsonl``, beside the YAML files.

Each line is a key, with the same keys as an entry of ``keys``, or ``{"revoked": SHA256}``, which revokes one. Lines are
only appended, so that adding a key costs the same whatever the file holds, and a line that was read before is not
parsed again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from gateway.policy.explain import explain
from gateway.policy.files import PolicyFile
from gateway.policy.problems import Location, Problem, render
from gateway.policy.schema import Key
from gateway.policy.schema.values import Frozen, Sha256

ISSUED_TABLE = "issued-keys.jsonl"
"""In the state folder, for a gateway that may not write to its policy folder."""
MOST_TOLD = 10
"""Expired keys of one table that are named: each rotation may leave one."""


class Revocation(Frozen):
    revoked: Sha256


class Superseded(Frozen):
    """Entries above with this hash are replaced by a later line, whose key it may be for a while longer, or still."""

    superseded: Sha256


_REVOCATION = TypeAdapter(Revocation)
Line = Key | Revocation | Superseded


@dataclass(frozen=True, slots=True)
class KeyTable:
    file: Path
    keys: tuple[Key, ...]
    """Without those that a later line revokes or supersedes."""
    revoked: frozenset[str]
    superseded: Mapping[str, int]
    """By hash, the number of the line that says so: entries below it count."""
    lines: tuple[Line | None, ...]
    """None for one that is empty or invalid."""

    def numbered(self) -> Iterator[tuple[int, Key]]:
        """``keys`` with the numbers of their lines, from 1."""
        for number, line in enumerate(self.lines, 1):
            if isinstance(line, Key) and _counts(line, number, self.revoked, self.superseded):
                yield number, line


class KeyTableReader:
    """Reads tables again and again; lines that did not change are not parsed again."""

    def __init__(self) -> None:
        self._versions: dict[Path, tuple[bytes, tuple[Line | None, ...]]] = {}
        """Of each table, what was read last: the content and its lines."""

    def read(self, file: PolicyFile, problems: list[Problem]) -> KeyTable:
        content, (before, parsed) = file.content or b"", self._versions.get(file.path, (b"", ()))
        known: dict[bytes, Line | None] = {}
        lines: list[Line | None] = []
        rest = BytesIO(content)
        if before.endswith(b"\n") and content.startswith(before) and None not in parsed:
            lines += parsed  # only appended to
            rest.seek(len(before))
        else:
            known = dict(zip(BytesIO(before), parsed, strict=True))
        for text in rest:
            line = known.get(text)
            if line is None and not text.isspace():
                try:
                    line = _parsed(text)
                except ValidationError as error:
                    number = len(lines) + 1
                    problems += (
                        Problem(file.path, number, message, "key-table") for message in _messages(error)
                    )
            lines.append(line)
        self._versions[file.path] = content, tuple(lines)
        revoked = frozenset(line.revoked for line in lines if type(line) is Revocation)
        numbered = enumerate(lines, 1)
        superseded = {line.superseded: number for number, line in numbered if type(line) is Superseded}
        keys = tuple(
            line
            for number, line in enumerate(lines, 1)
            if type(line) is Key and _counts(line, number, revoked, superseded)
        )
        return KeyTable(file.path, keys, revoked, superseded, tuple(lines))


def _counts(key: Key, number: int, revoked: frozenset[str], superseded: Mapping[str, int]) -> bool:
    return key.sha256 not in revoked and number > superseded.get(key.sha256, 0)


def check_tables(
    tables: Sequence[KeyTable],
    locate: Callable[[str], Location | None],
    check_key: Callable[[Key], str | None],
) -> Iterator[Problem]:
    """``locate`` finds a key of another file by its id or hash; ``check_key`` says what is wrong with a key's
    references, and is called once for each combination of them."""
    keys = [key for table in tables for key in table.keys]
    ids, hashes = {key.id for key in keys}, {key.sha256 for key in keys}
    unique = len(ids) == len(hashes) == len(keys)
    if not unique or any(map(locate, ids)) or any(map(locate, hashes)):
        yield from _duplicates(tables, locate)
    wrong = {
        _references(key): message
        for key in {_references(key): key for key in keys}.values()
        if (message := check_key(key)) is not None
    }
    for table in tables if wrong else ():
        for number, key in table.numbered():
            if _references(key) in wrong:
                yield Problem(table.file, number, wrong[_references(key)], "key-table")


def expired_keys(tables: Iterable[KeyTable], today: date) -> Iterator[Problem]:
    """As ``rules.access.expired_key`` tells of those in YAML; of many, the rest as a number."""
    for table in tables:
        if not any(key.expires is not None and key.expires <= today for key in table.keys):
            continue
        lines = [one for one in table.numbered() if one[1].expires is not None and one[1].expires <= today]
        for number, key in lines[:MOST_TOLD]:
            message = (
                f"the key '{key.id}' expired on {key.expires}, and is refused; revoke it, or make another"
            )
            yield Problem(table.file, number, message, "key-table")
        if more := lines[MOST_TOLD:]:
            yield Problem(
                table.file, more[0][0], f"{len(more):,} more keys of this file have expired", "key-table"
            )


def _references(key: Key) -> tuple[object, ...]:
    return key.models, key.tier, key.residency


def _duplicates(tables: Iterable[KeyTable], locate: Callable[[str], Location | None]) -> Iterator[Problem]:
    seen: dict[str, Location] = {}
    for table in tables:
        for number, key in table.numbered():
            here = Location(table.file, number)
            for what, name, value in (("id", "id", key.id), ("sha256", "hash", key.sha256)):
                other = locate(value) or seen.setdefault(value, here)
                if other != here:
                    message = (
                        f"{what}: two keys have this {name}; each needs its own (the other is at {other})"
                    )
                    yield Problem(table.file, number, message, "key-table")


def append(file: Path, *entries: dict[str, Any], mode: int) -> None:
    """Add a line each, on disk when this returns. ``mode`` is that of a new file. Raises ``OSError``."""
    is_new = not file.exists()
    handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, mode)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if is_new:
            os.fchmod(handle, mode)  # whatever the umask is
        size = os.fstat(handle).st_size
        # A line that somebody left without its end is not continued.
        start = b"\n" if size and os.pread(handle, 1, size - 1) != b"\n" else b""
        os.write(handle, start + b"".join(orjson.dumps(entry) + b"\n" for entry in entries))
        os.fsync(handle)
    finally:
        os.close(handle)


def hashes_of(content: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """The hashes of keys, and the revoked ones, in a table whose lines may be invalid."""
    written, revoked = set[str](), set[str]()
    for text in BytesIO(content):
        at = text.find(b'"revoked"')
        digest = _digest_behind(text, b'"sha256"' if at < 0 else b'"revoked"')
        if len(digest) == 64:
            (written if at < 0 else revoked).add(digest)
    return frozenset(written), frozenset(revoked)


def _digest_behind(text: bytes, name: bytes) -> str:
    at = text.find(name)
    start = text.find(b'"', at + len(name)) + 1
    return text[start : start + 64].decode("ascii", "replace").lower() if at >= 0 and start else ""


def _parsed(text: bytes) -> Line:
    if text.lstrip().startswith(b'{"revoked"'):
        return _REVOCATION.validate_json(text)
    if text.lstrip().startswith(b'{"superseded"'):
        return Superseded.model_validate_json(text)
    return Key.model_validate_json(text)


def _messages(error: ValidationError) -> Iterable[str]:
    for details in error.errors(include_url=False):
        if details["type"] == "json_invalid":
            yield f"not valid JSON: {details['ctx']['error']}; write one key as one line"
            continue
        path, message = explain({**details, "loc": ("keys", 0, *details["loc"])})
        yield f"{render(path[2:])}: {message}" if path[2:] else message
