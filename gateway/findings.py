"""What was found in a text. A finding never holds the text itself: it goes into receipts and logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, at ``[start, end)`` in characters."""

    label: str
    """What it is: ``EMAIL_ADDRESS``, ``hate``, ``aws_access_key`` …"""
    start: int
    end: int
    score: float = 1.0
    """0 to 1: how sure it is."""

    def __reduce__(self) -> tuple[type[Finding], tuple[str, int, int, float]]:
        return Finding, (self.label, self.start, self.end, self.score)  # a third of the usual way's time


def joined(findings: Iterable[Finding]) -> list[Finding]:
    """In the text's order; those of one label that overlap become one."""
    whole: list[Finding] = []
    for one in sorted(findings, key=lambda it: (it.label, it.start)):
        last = whole[-1] if whole else None
        if last is not None and last.label == one.label and one.start < last.end:
            whole[-1] = Finding(one.label, last.start, max(last.end, one.end), max(last.score, one.score))
        else:
            whole.append(one)
    return sorted(whole, key=lambda it: (it.start, it.end))
