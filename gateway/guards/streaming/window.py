"""How far a text that is still growing has been judged, and how much of it may leave.

A guard scans again once ``interval`` new characters have come. Each scan reads what it has not cleared yet, and
``window`` characters before that. Afterwards all but the last ``window`` characters are cleared: whatever begins
there and is no longer than the window was wholly in sight. An optimistic guard clears all that it has scanned, and
nothing waits for it. One that holds scans once, at the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.findings import Finding
from gateway.guards.actions.edits import Edit, JsonPlace, Offsets, merged, shown
from gateway.guards.actions.inspection import Inspection
from gateway.guards.actions.pieces import PIECE, ongoing
from gateway.guards.scanners.escapes import Unescaping

Mode = Literal["hold", "windowed", "optimistic"]


class Watch:
    """One guard over one text."""

    __slots__ = (
        "_counted",
        "_ongoing",
        "cleared",
        "doubt",
        "final",
        "inspection",
        "mode",
        "scanned",
        "window",
    )

    def __init__(self, inspection: Inspection, mode: Mode) -> None:
        self.inspection = inspection
        self.mode = mode
        self.window = inspection.guard.window
        self.scanned = 0
        """Where the last scan ended."""
        self.cleared = 0
        """All before it is judged for good."""
        self.final = 0
        """Where the last scan ended that knew the text's end."""
        self.doubt: asyncio.TimerHandle | None = None
        """Something was found at the very end of what had come: whether it is that, the next character tells."""
        self._counted = 0
        self._ongoing: int | None = None
        """Where something began that goes on at the end of what was scanned, such as a private key."""

    def is_due(self, end: int, *, last: bool) -> bool:
        if last:
            return self.final < end
        if self.doubt is not None:
            return end > self.scanned
        return self.mode != "hold" and end - self.scanned >= self.inspection.guard.config.interval

    @property
    def start(self) -> int:
        """Where the next scan begins."""
        start = max(0, self.cleared - self.window)
        return start if self._ongoing is None else min(start, self._ongoing)

    def scan_ended(self, end: int, *, last: bool) -> None:
        self.settle()
        self.scanned = end
        if last:
            self.cleared = self.final = end
        else:
            self.cleared = end if self.mode == "optimistic" else max(self.cleared, end - self.window)

    def decided(self, findings: Sequence[Finding], start: int, end: int, *, last: bool) -> list[Finding]:
        """Those of a scan of ``[start, end)`` that are certain, at their places in the whole text.

        To be asked before ``scan_ended``. At the end of what has come a word may only be the beginning of another.
        """
        longest = self.inspection.guard.scanner.longest
        certain = []
        self._ongoing = ongoing(findings, start, end) if longest else None
        for one in findings:
            first, behind = start + one.start, start + one.end
            if self.mode == "optimistic":
                old = behind < self.cleared
                open_ = longest > 0 and behind >= end
            else:
                old = behind <= self.cleared
                open_ = longest > 0 and first >= end - longest
            if not old and (last or not open_):
                certain.append(Finding(one.label, first, behind, one.score))
        return certain

    def settle(self) -> None:
        """There is no doubt any more."""
        if self.doubt is not None:
            self.doubt.cancel()
            self.doubt = None

    def fresh(self, findings: Sequence[Finding]) -> list[Finding]:
        """Those that no earlier scan has told of."""
        new = [one for one in findings if one.start >= self._counted]
        self._counted = max([self._counted, *(one.end for one in findings)])
        return new


class Lane:
    """One text of one choice."""

    __slots__ = (
        "_arrivals",
        "_base",
        "_parts",
        "channel",
        "edits",
        "end",
        "json",
        "offsets",
        "over",
        "released",
        "resumed",
        "unescaping",
        "watches",
    )

    def __init__(self, channel: str, watches: list[Watch], *, is_json: bool = False) -> None:
        self.channel = channel
        self.watches = watches
        self.end = 0
        self.released = 0
        """All before it has left."""
        self.over = False
        """Another text of the choice has followed it: it is taken for complete."""
        self.resumed = False
        """It was not, after all. It is not taken for complete again before the choice is."""
        self.edits: deque[Edit] = deque()
        """In order, without overlaps: those of which something has still to leave."""
        self.offsets = Offsets()
        self.json = JsonPlace() if is_json else None
        self.unescaping = Unescaping() if is_json else None
        self._base = 0
        self._parts: list[str] = []
        self._arrivals: deque[tuple[int, float]] = deque()

    def add(self, text: str, now: float) -> None:
        self._parts.append(text)
        self.end += len(text)
        self._arrivals.append((self.end, now))

    def text(self, start: int) -> str:
        """From ``start`` on; it must be kept still."""
        self._parts[:] = ["".join(self._parts)]
        return self._parts[0][start - self._base :]

    def forget(self) -> None:
        """Keep no more than the next scans read."""
        keep = min((watch.start for watch in self.watches), default=self.end)
        if keep - self._base > 0:
            kept = self.text(keep)
            self._parts[:] = [kept]
            self._base = keep
            while self._arrivals and self._arrivals[0][0] <= keep:
                self._arrivals.popleft()

    def arrived(self, place: int) -> float | None:
        """When the character at ``place`` came; where that is forgotten, the oldest time that is known."""
        return next((when for end, when in self._arrivals if end > place), None)

    def replace(self, findings: Sequence[Finding]) -> None:
        fresh = [
            Edit(max(one.start, self.released), one.end, one.label, one.end - one.start)
            for one in findings
            if one.end > self.released
        ]
        if fresh:
            self.edits = deque(merged([*self.edits, *fresh]))

    def free(self) -> int:
        """How far it may leave."""
        free = self.end
        widest = 0
        for watch in self.watches:
            if watch.mode != "optimistic":
                free = min(free, watch.cleared)
                widest = max(widest, watch.window)
        for edit in reversed(self.edits):
            if edit.end <= free:
                break
            # Until all of it is judged, something that overlaps may still be found. No finding that guards are
            # sure to find is longer than their window; one that is need not be waited for.
            if edit.start < free < edit.end <= edit.start + widest:
                free = edit.start
        return max(free, self.released)

    def leave(self, text: str) -> str:
        """The next part of it, as it may be seen."""
        start, end = self.released, self.released + len(text)
        self.released = end
        if not self.edits or self.edits[0].start >= end:
            return text if self.json is None else self.json.pass_over(text)
        parts: list[str] = []
        place = start
        for edit in self.edits:
            if edit.start >= end:
                break
            first, behind = max(edit.start, start), min(edit.end, end)
            word = f"[{shown(edit.label)}]" if edit.start >= start else ""
            before, gone = text[place - start : first - start], text[first - start : behind - start]
            if self.json is not None:
                before = self.json.pass_over(before)
                word = self.json.cut(gone, word)
            parts += (before, word)
            self.offsets.replace(first, behind, len(word))
            place = behind
        rest = text[place - start :]
        if self.json is not None:
            rest = self.json.pass_over(rest)
        while self.edits and self.edits[0].end <= end:
            self.edits.popleft()
        return "".join((*parts, rest))

    def seen_at(self, place: int) -> int:
        """Where the character at ``place`` is, or would be, for whoever reads what has left."""
        moved = self.offsets.of(place)
        for edit in self.edits:
            if edit.start >= self.released and edit.end <= place:
                moved += len(edit.label) + 2 - (edit.end - edit.start)
        return moved


@dataclass(frozen=True, slots=True)
class Scan:
    """A stretch of a text before a guard."""

    choice: int
    lane: Lane
    watch: Watch
    text: str
    start: int
    end: int
    last: bool

    @property
    def is_long(self) -> bool:
        """Whether it is too much to be looked at in one go."""
        return len(self.text) > PIECE or self.watch.inspection.guard.offloads(len(self.text))
