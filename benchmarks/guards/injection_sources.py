"""What the injection guard finds of sources that were left out of training, as the table of ``docs/guards.md``.

    python -m benchmarks.guards.injection_sources

The figures are those that ``python -m training.injection`` wrote when it made the weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.guards.injection import FIGURES, ORIGINS


def lines() -> Iterator[str]:
    """Markdown: what is found of each source of attacks, and what is flagged of each source of harmless texts."""
    figures = json.loads(FIGURES.read_text("utf-8"))
    for origin, (whose, _) in ORIGINS.items():
        both, fast = figures[origin]["sources left out"], figures[origin]["fast check alone"]
        yield f"| {whose} | texts | both checks | fast check alone |"
        yield "|---|--:|--:|--:|"
        yield from _rows("**attacks found**", {"": both["found"]}, {"": fast["found"]}, "**")
        yield from _rows("", both["found by source"], fast["found by source"])
        harmless = _mean(both["flagged"]), _mean(fast["flagged"])
        texts = sum(int(count) for _, count in both["flagged"].values())
        yield f"| **harmless flagged, mean of sources** | {texts:,} | **{harmless[0]:.1%}** | **{harmless[1]:.1%}** |"
        yield from _rows("", both["flagged"], fast["flagged"])
        yield f"| area under the curve | | {both['AUC']:.3f} | {fast['AUC']:.3f} |"
        yield ""


def _rows(title: str, both: Mapping[str, Any], fast: Mapping[str, Any], bold: str = "") -> Iterator[str]:
    for source, (share, count) in both.items():
        shown = f"{bold}{share:.1%}{bold}", f"{bold}{fast[source][0]:.1%}{bold}"
        yield f"| {title or source} | {count:,} | {shown[0]} | {shown[1]} |"


def _mean(by_source: Mapping[str, Any]) -> float:
    return sum(share for share, _ in by_source.values()) / len(by_source)


if __name__ == "__main__":
    print("\n".join(lines()).rstrip())
