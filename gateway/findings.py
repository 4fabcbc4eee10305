"""What was found in a text. A finding never holds the text itself: it goes into receipts and logs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a server that found something wants done, in place of what the guard would do."""

    action: Literal["block", "redact", "mask", "flag"]
    text: str | None = None
    """With ``redact``: what takes its place; None: its label."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, at ``[start, end)`` in characters."""

    label: str
    """What it is: ``EMAIL_ADDRESS``, ``hate``, ``aws_access_key`` …"""
    start: int
    end: int
    score: float = 1.0
    """0 to 1: how sure it is."""
    remedy: Remedy | None = None

    def __reduce__(self) -> tuple[type[Finding], tuple[str, int, int, float, Remedy | None]]:
        # A third of the usual way's time.
        return Finding, (self.label, self.start, self.end, self.score, self.remedy)

    def moved(self, start: int, end: int) -> Finding:
        """The same at another place."""
        return Finding(self.label, start, end, self.score, self.remedy)

    def with_other(self, other: Finding) -> Finding:
        """One that covers both, which overlap, named as the longer one; who wants to block has the last word."""
        longer, shorter = (self, other) if self.end - self.start > other.end - other.start else (other, self)
        start, end = min(self.start, other.start), max(self.end, other.end)
        remedy = longer.remedy
        if shorter.remedy is not None and shorter.remedy.action == "block":
            remedy = shorter.remedy
        elif remedy is not None and remedy.text is not None and (start, end) != (longer.start, longer.end):
            remedy = Remedy(remedy.action)  # its text stands for the longer one alone
        return Finding(longer.label, start, end, max(self.score, other.score), remedy)


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
