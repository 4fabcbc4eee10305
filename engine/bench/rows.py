"""A benchmark's measurements, and their tables."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """``batch`` concurrent answers of one length. Without ``tokens_per_second`` nothing was measured."""

    model: str
    way: str
    """``engine``, followed by the settings that were changed, or another engine's name."""
    batch: int
    tokens_per_second: float | None = None
    """Output tokens of all answers."""
    first_tokens: float | None = None
    """Seconds until all answers have their first token."""
    per_token: float | None = None
    """Seconds between two tokens of an answer once all have their first: inter-token latency."""
    ttft: tuple[float, float] | None = None
    """Median and 99th percentile over requests, where the engine reports times; ``itl`` likewise."""
    itl: tuple[float, float] | None = None
    of_limit: float | None = None
    """Share of the steps a second that reading the weights at the device's copy bandwidth would allow."""
    fault: str = ""


def measure(row: dict[str, Any], answers: int, tokens: int, first: float, full: dict[str, Any]) -> Row:
    """``row``: model, way and batch; ``first``: seconds of a run of one token each; ``full``: of a whole run."""
    seconds = full["seconds"]
    latencies: dict[str, Any] = {}
    if times := full.get("times"):
        gaps = [after - before for one in times for before, after in itertools.pairwise(one)]
        latencies["ttft"] = _percentiles([one[0] for one in times])
        latencies["itl"] = _percentiles(gaps) if gaps else None
    return Row(
        **row,
        tokens_per_second=answers * tokens / seconds,
        first_tokens=first,
        # Undefined for runs so short that set-up dominates.
        per_token=(seconds - first) / (tokens - 1) if tokens > 1 and seconds > first else None,
        **latencies,
    )


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


HEADS = (
    "model",
    "way",
    "answers at once",
    "tokens/s",
    "times as fast as",
    "first tokens, ms",
    "per token, ms",
)
MORE = ("TTFT p50 / p99, ms", "ITL p50 / p99, ms", "of limit")


def cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    if row.tokens_per_second is None:
        return row.model, row.way, str(row.batch), row.fault or "not measured", *[""] * 6
    both = [
        (other, row.tokens_per_second / other.tokens_per_second)
        for other in rows
        if other.tokens_per_second
        and (other.model, other.batch) == (row.model, row.batch)
        and row.way.startswith("engine")
        and not other.way.startswith("engine")
    ]
    return (
        row.model,
        row.way,
        str(row.batch),
        f"{row.tokens_per_second:,.0f}",
        ", ".join(f"{ratio:.2f} {other.way}" for other, ratio in both),
        _ms(row.first_tokens),
        _ms(row.per_token),
        " / ".join(_ms(one) for one in row.ttft or ()),
        " / ".join(_ms(one) for one in row.itl or ()),
        "" if row.of_limit is None else f"{row.of_limit:.0%}",
    )


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:,.2f}"


def markdown(rows: Sequence[Row], about: str) -> str:
    lines = [about, "", f"| {' | '.join((*HEADS, *MORE))} |", "|---|---|--:|--:|---|--:|--:|--:|--:|--:|"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in cells(row, rows))} |" for row in rows]
    return "\n".join(lines) + "\n"


def as_json(rows: Sequence[Row], about: dict[str, Any]) -> dict[str, Any]:
    return {"about": about, "rows": [asdict(row) for row in rows]}
