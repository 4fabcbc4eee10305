"""One line of a table of results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    what: str
    figure: float | str
    target: str = ""
    met: bool | None = None
    """None where there is no target."""
    note: str = ""

    @property
    def shown(self) -> str:
        return f"{self.figure:.4g}" if isinstance(self.figure, float) else str(self.figure)


def table(title: str, rows: Iterable[Row]) -> str:
    """Markdown."""
    verdicts = {True: "met", False: "MISSED", None: ""}
    lines = [f"### {title}", "", "| | measured | target | | |", "|---|---|---|---|---|"]
    lines += [f"| {r.what} | {r.shown} | {r.target} | {verdicts[r.met]} | {r.note} |" for r in rows]
    return "\n".join(lines)
