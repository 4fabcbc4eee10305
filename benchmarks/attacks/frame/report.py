"""The table of attacks: what was tried, and what happened."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.attacks.frame.attack import Outcome

HEAD = ("point", "attack", "what is tried", "what must hold", "what happened", "")


def table(outcomes: Iterable[Outcome]) -> str:
    """Markdown."""
    rows = [HEAD, tuple("-" * 3 for _ in HEAD)]
    rows += [
        (one.attack.point, one.attack.name, one.attack.tried, one.attack.holds, one.happened, one.verdict)
        for one in outcomes
    ]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
