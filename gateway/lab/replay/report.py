"""A replay's report, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.lab.replay.decisions import KINDS
from gateway.lab.replay.difference import BETTER, WORSE, Changed, Difference, spread
from gateway.lab.replay.summary import Group, Summary
from gateway.metering.price import NANO
from gateway.version import version

MOST_REASONS = 12
MOST_TENANTS = 20
MOST_CHANGES = 12
LETTERS = "AB"

Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Report:
    trace: str
    options: Mapping[str, Any]
    summaries: Sequence[Summary]
    difference: Difference | None
    examples: int

    @property
    def title(self) -> str:
        return f"{self.trace} under {' and '.join(one.name for one in self.summaries)}"

    def data(self) -> dict[str, Any]:
        first = self.summaries[0]
        return {
            "tollgate": version(),
            "trace": self.trace,
            "options": dict(self.options),
            "requests": len(first.decisions),
            "seconds": first.length,
            "policies": [one.data() for one in self.summaries],
            "difference": None if self.difference is None else self.difference.data(),
        }


def as_text(report: Report) -> Iterator[str]:
    first = report.summaries[0]
    yield f"{report.trace}: {len(first.decisions):,} requests in {span(first.length)}"
    if len(report.summaries) > 1:
        yield from (f"  {letter}  {one.name}" for letter, one in zip(LETTERS, report.summaries, strict=False))
    for rows in (totals(report), of_tenants(report), of_tiers(report)):
        yield ""
        yield from table(rows)
    for letter, one in zip(LETTERS, report.summaries, strict=False):
        why = [*reasons(one)]
        if why:
            yield ""
            yield f"Why, under {letter} ({one.name}):" if len(report.summaries) > 1 else "Why:"
            yield from (f"  {line}" for line in table(why, left=2))
    if report.difference is not None:
        yield ""
        yield from told_difference(report.difference, report)
    yield ""
    yield "Taken as given:"
    yield from (f"  - {said}" for said in assumed(report))


def assumed(report: Report) -> list[str]:
    said: dict[str, None] = {}
    for one in report.summaries:
        said |= dict.fromkeys(one.decisions.facts.get("assumed", ()))
        for service in one.decisions.facts.get("services", ()):
            said[f"{service['backend']}/{service['model']}: {service['times']} ({service['from']})"] = None
    return [*said]


def totals(report: Report) -> Iterator[Row]:
    many = len(report.summaries) > 1
    yield (
        "",
        *(letter if many else "REQUESTS" for letter, _ in zip(LETTERS, report.summaries, strict=False)),
    )
    for kind, name in enumerate(KINDS):
        counts = [one.all.kinds[kind] for one in report.summaries]
        if any(counts):
            yield (
                name,
                *(
                    f"{count:,} ({share(count, one.all)})"
                    for count, one in zip(counts, report.summaries, strict=True)
                ),
            )
    yield ("cost", *(f"${one.all.cost / NANO:,.4f}" for one in report.summaries))
    if any(one.all.cached for one in report.summaries):
        yield ("prompt tokens cached", *(percent(one.all.cached, one.all.prompt) for one in report.summaries))


def of_tenants(report: Report) -> Iterator[Row]:
    shown = [kind for kind in range(len(KINDS)) if any(one.all.kinds[kind] for one in report.summaries)]
    yield ("TENANT", *_letters(report), "REQUESTS", *(KINDS[kind].upper() for kind in shown), "COST")
    names = [*report.summaries[0].tenants]
    for name in names[:MOST_TENANTS]:
        for letter, one in zip(LETTERS, report.summaries, strict=False):
            group = one.tenants.get(name, Group())
            counts = (f"{group.kinds[kind]:,}" for kind in shown)
            who = (name, letter) if len(report.summaries) > 1 else (name,)
            yield (*who, f"{group.requests:,}", *counts, f"${group.cost / NANO:,.4f}")
    if len(names) > MOST_TENANTS:
        yield (f"and {len(names) - MOST_TENANTS} more: --json has all",)


def of_tiers(report: Report) -> Iterator[Row]:
    yield (
        *("TIER", *_letters(report), "ANSWERS"),
        *("WAIT P50", "WAIT P90", "WAIT P99", "TTFT P50", "TTFT P90", "TTFT P99"),
    )
    names = dict.fromkeys(name for one in report.summaries for name in one.tiers)
    for name in names:
        for letter, one in zip(LETTERS, report.summaries, strict=False):
            told = one.tiers.get(name, Group()).data()
            who = (name or "(none)", letter) if len(report.summaries) > 1 else (name or "(none)",)
            waits, firsts = told["wait_s"] or {}, told["ttft_s"] or {}
            figures = (seconds(of.get(at)) for of in (waits, firsts) for at in ("p50", "p90", "p99"))
            yield (*who, f"{len(one.tiers[name].firsts) if name in one.tiers else 0:,}", *figures)


def reasons(one: Summary) -> Iterator[Row]:
    for (kind, why, lines), count in one.reasons.most_common(MOST_REASONS):
        told = kind if not why else f"{kind}: {why}"
        yield (f"{count:,}", told, first_line(lines))


def told_difference(found: Difference, report: Report) -> Iterator[str]:
    whole = found.all
    count = whole.worse + whole.better + whole.same
    yield (
        f"Who is worse off under B: {whole.worse:,} of {count:,} requests ({percent(whole.worse, count)}); better off "
        f"{whole.better:,}; it costs {more_or_less(whole.cost)}"
    )
    rows: list[Row] = [("TENANT", "WORSE", "BETTER", "SAME", "COST")]
    for name, mine in [*found.tenants.items()][:MOST_TENANTS]:
        rows.append((name, f"{mine.worse:,}", f"{mine.better:,}", f"{mine.same:,}", dollars(mine.cost)))
    yield from (f"  {line}" for line in table(rows))
    for verdict in (WORSE, BETTER):
        changes = [one for one in found.changes if one.change.verdict == verdict]
        left, shown = report.examples, changes[:MOST_CHANGES]
        for place, one in enumerate(shown):
            yield ""
            yield from told_change(one, found, examples := share_of(left, len(shown) - place))
            left -= min(examples, len(one.examples))
        if len(changes) > MOST_CHANGES:
            yield f"and {len(changes) - MOST_CHANGES} more kinds of requests that are {verdict} off: --json has all"


def share_of(left: int, places: int) -> int:
    """Examples for the next of so many changes, the first of which get more."""
    return -(-left // places)


def told_change(one: Changed, found: Difference, examples: int) -> Iterator[str]:
    change = one.change
    tenants = sorted(one.tenants.items(), key=lambda item: -item[1])
    whose = ", ".join(f"{name} {count:,}" for name, count in tenants[:5])
    more = f" and {len(tenants) - 5} more tenants" if len(tenants) > 5 else ""
    yield f"{change.verdict}: {one.count:,} ({whose}{more}): {change.before} -> {change.after}"
    if change.lines:
        yield "  decided at " + "; ".join(change.lines.splitlines())
    for number in spread(one.examples, examples):
        example = found.example(number)
        yield f"  {example['request']}, {clock(example['at'])}, {example['tenant']}:"
        yield f"      A: {example['before']}"
        yield f"      B: {example['after']}"


def _letters(report: Report) -> tuple[str, ...]:
    return ("",) if len(report.summaries) > 1 else ()


def table(rows: Iterator[Row] | Sequence[Row], left: int = 1) -> Iterator[str]:
    """``left``: columns at their left edge, beside the first; the last, where it is text, too."""
    given = [*rows]
    width = max(map(len, given))
    widths = [
        max((len(row[place]) for row in given if place < len(row) and len(row) > 1), default=0)
        for place in range(width)
    ]
    for row in given:
        cells = (
            cell.ljust(size) if place == 0 or (left > 1 and place) else cell.rjust(size)
            for place, (cell, size) in enumerate(zip(row, widths, strict=False))
        )
        yield "  ".join(cells).rstrip()


def first_line(lines: str) -> str:
    given = lines.splitlines()
    return given[0] + (f" and {len(given) - 1} more" if len(given) > 1 else "") if given else ""


def share(count: int, group: Group) -> str:
    return percent(count, group.requests)


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def dollars(nano: int) -> str:
    return f"{'-' if nano < 0 else '+'}${abs(nano) / NANO:,.4f}"


def more_or_less(nano: int) -> str:
    return f"${abs(nano) / NANO:,.4f} {'less' if nano < 0 else 'more'}"


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def span(length: float) -> str:
    whole = round(length)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02} h"
        if whole >= 3600
        else f"{whole // 60}:{whole % 60:02} min"
    )


def clock(at: float) -> str:
    """Of a Unix time; of seconds since a trace's beginning, those."""
    if at < 1e8:
        return f"{at:.1f} s"
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
