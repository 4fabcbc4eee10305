"""What a suite found, and the table of it all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """One suite against one target."""

    suite: str
    target: str
    passed: int = 0
    total: int = 0
    failures: tuple[str, ...] = ()
    """One line each, the case's name first."""
    provider: str = ""
    """How the provider itself does, where it was asked: "8/8"."""
    excused: tuple[str, ...] = ()
    """Cases failed where the provider itself fails them."""
    notes: tuple[str, ...] = ()
    """What the suite remarks on and does not count; what was skipped, and why."""

    @property
    def is_bad(self) -> bool:
        return bool(self.failures)


def table(outcomes: Iterable[Outcome], *, remarks: bool = True) -> str:
    """Markdown, with the failures and, with ``remarks``, the notes below it."""
    outcomes = list(outcomes)
    rows = [("suite", "target", "provider itself", "through us", "failures")]
    for one in outcomes:
        score = f"{one.passed}/{one.total}" if one.total else "skipped"
        named = [line.partition(": ")[0] for line in one.failures]
        excused = [f"{name} (the provider's, too)" for name in one.excused]
        rows.append((one.suite, one.target, one.provider, score, ", ".join([*named, *excused]) or "none"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [_row(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for one in outcomes:
        notes = one.notes if remarks or not one.total else ()
        if one.failures or notes:
            lines += ["", f"{one.suite}, {one.target}:" if one.target else f"{one.suite}:"]
            lines += [f"  FAILED  {line}" for line in one.failures]
            lines += [f"  note    {line}" for line in notes]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
