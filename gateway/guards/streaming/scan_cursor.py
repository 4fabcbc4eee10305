"""How far one guard has scanned one growing text."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Literal

from gateway.findings import Finding
from gateway.guards.scanners.pieces import ongoing
from gateway.guards.scans.inspection import Inspection

Mode = Literal["hold", "windowed", "optimistic"]


class ScanCursor:
    """One guard's position in one text.

    All positions are counts of characters, ``cleared <= scanned <= end`` of the text. A scan reads ``[start, end)``
    and is followed by ``conclude``, or by ``advance`` if it failed and the guard lets unscanned text pass.

    ============ ========================= ==================================== ===================================
    state        it holds that             a scan is due                        after a scan
    ============ ========================= ==================================== ===================================
    growing      not uncertain,            ``hold``: no; else once ``interval`` ``windowed``: all but the last
                 ``final < end``           characters have come                 ``window`` characters are cleared;
                                                                                ``optimistic``: all are
    uncertain    ``uncertain`` is a timer: with the next character; or when the growing, or uncertain again
                 an optimistic scan found  timer ends, as if the text were
                 something that touches    complete
                 the end
    complete     the text's last character with ``last=True``, if ``final``     final: all is cleared, and whatever
                 is known                  lies before ``end``                  was found is certain
    final        ``final == end``          no                                   growing, if the text goes on after all
    ============ ========================= ==================================== ===================================

    Of what a scan finds, only what is *certain* counts. Before the text is complete, a finding near its end may be
    the beginning of another: a windowed guard believes what begins before the last ``longest`` characters (the next
    scan sees the rest again), an optimistic one what ends before the end.
    """

    __slots__ = (
        "_counted",
        "_ongoing",
        "cleared",
        "final",
        "inspection",
        "mode",
        "scanned",
        "uncertain",
        "window",
    )

    def __init__(self, inspection: Inspection, mode: Mode) -> None:
        self.inspection = inspection
        self.mode = mode
        self.window = inspection.guard.window
        self.scanned = 0
        """Where the last scan ended."""
        self.cleared = 0
        """Everything before it may leave, as far as this guard is concerned."""
        self.final = 0
        """Where the last scan ended that knew the text's end."""
        self.uncertain: asyncio.TimerHandle | None = None
        self._counted = 0
        self._ongoing: int | None = None
        """Where something began that goes on at the end of what was scanned, such as a private key."""

    def is_due(self, end: int, *, last: bool) -> bool:
        return self.final < end if last else end >= self.due

    @property
    def due(self) -> float:
        """The end of the text from which on a scan is due, though the text goes on."""
        if self.uncertain is not None:
            return self.scanned + 1
        return math.inf if self.mode == "hold" else self.scanned + self.inspection.guard.config.interval

    @property
    def start(self) -> int:
        """Where the next scan begins."""
        start = max(0, self.cleared - self.window)
        return start if self._ongoing is None else min(start, self._ongoing)

    def conclude(self, findings: Sequence[Finding], start: int, end: int, *, last: bool) -> list[Finding]:
        """The certain findings of a scan of ``[start, end)``, at their positions in the whole text."""
        certain = self._certain(findings, start, end, last=last)
        self.advance(end, last=last)
        return certain

    def advance(self, end: int, *, last: bool) -> None:
        """Past what was scanned up to ``end``."""
        self.resolve()
        self.scanned = end
        if last:
            self.cleared = self.final = end
        else:
            self.cleared = end if self.mode == "optimistic" else max(self.cleared, end - self.window)

    def resolve(self) -> None:
        """Nothing is uncertain any more."""
        if self.uncertain is not None:
            self.uncertain.cancel()
            self.uncertain = None

    def uncounted(self, findings: Sequence[Finding]) -> list[Finding]:
        """Those that no earlier scan has reported."""
        new = [one for one in findings if one.start >= self._counted]
        self._counted = max([self._counted, *(one.end for one in findings)])
        return new

    def _certain(self, findings: Sequence[Finding], start: int, end: int, *, last: bool) -> list[Finding]:
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
                certain.append(one.moved(first, behind))
        return certain
