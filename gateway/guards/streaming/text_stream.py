"""One text of an answer as it grows: what has come, what may leave, and what replaces parts of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from gateway.findings import Finding
from gateway.guards.scanners.escapes import Unescaping
from gateway.guards.scanners.pieces import PIECE
from gateway.guards.streaming.scan_cursor import ScanCursor
from gateway.guards.texts.edits import Edit, JsonCursor, Offsets, merged


class TextStream:
    """One text of one choice."""

    __slots__ = (
        "_arrivals",
        "_base",
        "_follows",
        "_parts",
        "channel",
        "cursors",
        "due",
        "edits",
        "end",
        "free",
        "json",
        "offsets",
        "over",
        "released",
        "resumed",
        "unescaping",
    )

    def __init__(self, channel: str, cursors: list[ScanCursor], *, is_json: bool = False) -> None:
        self.channel = channel
        self.cursors = cursors
        self.end = 0
        self.free = 0
        """Up to where it may leave, as of the last ``settle``."""
        self.due: float = min((cursor.due for cursor in cursors), default=0)
        """The end from which on one of its scans is due, though it goes on."""
        self.released = 0
        """All before it has left."""
        self.over = False
        """Another text of the choice has followed it, so it counts as complete."""
        self.resumed = False
        """It grew again after that. From then on it is complete only when the choice is."""
        self.edits: deque[Edit] = deque()
        """In order, without overlaps: those of which something has still to leave."""
        self.offsets = Offsets()
        self.json = JsonCursor() if is_json else None
        self.unescaping = Unescaping() if is_json else None
        self._base = 0
        self._parts: list[str] = []
        self._arrivals: deque[tuple[int, float]] = deque()
        self._follows = all(cursor.mode == "optimistic" for cursor in cursors)
        """What comes may leave."""

    def add(self, texts: Sequence[str], now: float) -> None:
        """Pieces that came together."""
        self._parts += texts
        self.end += sum(map(len, texts))
        self._arrivals.append((self.end, now))
        if self._follows:
            self.free = self.end

    def settle(self) -> None:
        """After scans: see what may leave now, and when the next is due, and keep no more than they read."""
        self.free = self._cleared()
        self.due = min((cursor.due for cursor in self.cursors), default=0)
        self.forget()

    def text(self, start: int) -> str:
        """From ``start`` on, which must not be forgotten yet."""
        self._parts[:] = ["".join(self._parts)]
        return self._parts[0][start - self._base :]

    def forget(self) -> None:
        """Keep no more than the next scans read."""
        keep = min((cursor.start for cursor in self.cursors), default=self.end)
        if keep - self._base > 0:
            kept = self.text(keep)
            self._parts[:] = [kept]
            self._base = keep
            while self._arrivals and self._arrivals[0][0] <= keep:
                self._arrivals.popleft()

    def arrived(self, position: int) -> float | None:
        """When the character at ``position`` came; if that is forgotten, the oldest time that is known."""
        return next((when for end, when in self._arrivals if end > position), None)

    def replace(self, findings: Sequence[Finding]) -> None:
        fresh = [
            Edit(
                one.start,
                one.end,
                one.label,
                one.end - one.start,
                text=one.remedy.text if one.remedy else None,
            ).within(self.released, one.end)
            for one in findings
            if one.end > self.released
        ]
        if fresh:
            self.edits = deque(merged([*self.edits, *fresh]))

    def _cleared(self) -> int:
        """Up to where it may leave."""
        free = self.end
        widest = 0
        for cursor in self.cursors:
            if cursor.mode != "optimistic":
                free = min(free, cursor.cleared)
                widest = max(widest, cursor.window)
        for edit in reversed(self.edits):
            if edit.end <= free:
                break
            # Until all of it is judged, something that overlaps may still be found. No finding that guards are
            # sure to find is longer than their window; one that is need not be waited for.
            if edit.start < free < edit.end <= edit.start + widest:
                free = edit.start
        return max(free, self.released)

    def release(self, text: str) -> str:
        """The next part of it, ``text``, as the client may see it."""
        start, end = self.released, self.released + len(text)
        self.released = end
        if not self.edits or self.edits[0].start >= end:
            return text if self.json is None else self.json.pass_over(text)
        parts: list[str] = []
        position = start
        for edit in self.edits:
            if edit.start >= end:
                break
            first, behind = max(edit.start, start), min(edit.end, end)
            label = edit.name if edit.start >= start else ""
            before, gone = text[position - start : first - start], text[first - start : behind - start]
            if self.json is not None:
                before = self.json.pass_over(before)
                label = self.json.cut(gone, orjson.dumps(label).decode()[1:-1])
            parts += (before, label)
            self.offsets.replace(first, behind, len(label))
            position = behind
        rest = text[position - start :]
        if self.json is not None:
            rest = self.json.pass_over(rest)
        while self.edits and self.edits[0].end <= end:
            self.edits.popleft()
        return "".join((*parts, rest))

    def seen_at(self, position: int) -> int:
        """Where the character at ``position`` is, or would be, in what the client has seen."""
        moved = self.offsets.of(position)
        for edit in self.edits:
            if edit.start >= self.released and edit.end <= position:
                moved += len(edit.name) - (edit.end - edit.start)
        return moved


@dataclass(frozen=True, slots=True)
class Scan:
    """A part of a text that a guard is to scan."""

    choice: int
    stream: TextStream
    cursor: ScanCursor
    text: str
    start: int
    end: int
    last: bool

    @property
    def is_long(self) -> bool:
        """Whether it is scanned piece by piece."""
        return len(self.text) > PIECE or self.cursor.inspection.guard.offloads(len(self.text))
