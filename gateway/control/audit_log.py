"""The append-only record of every change that was asked for: who, what, when, and whether it was made.

One JSON line an entry. Each holds the SHA-256 of the line before it, so that an entry that was altered or taken out
shows (``problems``). Several processes may append: each takes a lock on the file.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson

from gateway.private import private_folder

FILE = "audit.jsonl"
FIRST = "0" * 64
"""What the first entry has in place of the hash of the line before it."""
_LONGEST_LINE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks for a change."""

    kind: Literal["key", "user", "gateway"]
    """An admin key, by its id; a user of the machine, by name, who ran a command; or a part of the gateway itself."""
    name: str
    address: str | None = None
    """Where the request came from, of a key."""

    def content(self) -> dict[str, str]:
        return {str(self.kind): self.name, **({"address": self.address} if self.address else {})}

    @classmethod
    def of(cls, content: object) -> Actor:
        """From what ``content`` returned; whoever else it is, is unknown."""
        if isinstance(content, Mapping):
            address = content.get("address")
            for kind in ("key", "user"):
                if isinstance(name := content.get(kind), str):
                    return cls("key" if kind == "key" else "user", name, address if address else None)
        return cls("user", "unknown")


class Page(NamedTuple):
    entries: list[dict[str, Any]]
    """Newest first."""
    next: int | None
    """Where the next page begins (``before``); None at the end."""


class AuditLog:
    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / FILE

    def add(self, actor: Actor, action: str, target: str, *, error: str | None = None, **facts: Any) -> None:
        """On disk when this returns. ``error`` is why the change was not made. Raises ``OSError``."""
        private_folder(self._file.parent)
        handle = os.open(self._file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            last = _last_line(handle)
            entry = {
                "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "by": actor.content(),
                "action": action,
                "target": target,
                "ok": error is None,
                **({"error": error[:2000]} if error is not None else {}),
                **facts,
                "previous": sha256(last).hexdigest() if last else FIRST,
            }
            os.write(handle, orjson.dumps(entry) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)

    def page(self, limit: int, before: int | None = None) -> Page:
        """The newest entries, or those older than number ``before`` (from 1). Raises ``OSError``."""
        lines = self._lines()
        end = len(lines) if before is None else max(0, min(before - 1, len(lines)))
        start = max(0, end - limit)
        entries = [
            {"number": number, **_entry(line)} for number, line in enumerate(lines[start:end], start + 1)
        ]
        return Page(entries[::-1], start + 1 if start else None)

    def problems(self) -> list[str]:
        """What shows that the file was changed otherwise than by appending; nothing if nothing does."""
        found, before = [], FIRST
        for number, line in enumerate(self._lines(), 1):
            if _entry(line).get("previous") != before:
                found.append(f"entry {number} does not follow the one before it")
            before = sha256(line).hexdigest()
        return found

    def _lines(self) -> list[bytes]:
        try:
            return self._file.read_bytes().splitlines()
        except FileNotFoundError:
            return []


def _entry(line: bytes) -> dict[str, Any]:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {"unreadable": True}
    return entry if isinstance(entry, dict) else {"unreadable": True}


def _last_line(handle: int) -> bytes:
    """Without its end; empty where there is none. A line without its end is given one."""
    size = os.fstat(handle).st_size
    tail = os.pread(handle, _LONGEST_LINE, max(0, size - _LONGEST_LINE))
    if tail and not tail.endswith(b"\n"):
        os.write(handle, b"\n")
    return tail.rstrip(b"\n").rpartition(b"\n")[2]
