"""The report as one HTML file with its plots, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape

from gateway.lab.bench.percentiles import percentile
from gateway.lab.charts import Chart, Series, linear, logarithmic, nines
from gateway.lab.page import COLORS, STYLE
from gateway.lab.replay import decisions as kinds
from gateway.lab.replay.difference import BETTER, WORSE, Changed, Difference, spread
from gateway.lab.replay.report import (
    LETTERS,
    MOST_CHANGES,
    Report,
    Row,
    assumed,
    clock,
    dollars,
    more_or_less,
    of_tenants,
    of_tiers,
    percent,
    reasons,
    share_of,
    span,
    totals,
)
from gateway.lab.replay.summary import BUCKETS, CURVE, Summary
from gateway.metering.price import NANO

MORE_STYLE = """
td:first-child,th:first-child{text-align:left}th:nth-child(2),td:nth-child(2){text-align:right}
summary{cursor:pointer;font-weight:600;margin:1rem 0}.told td{text-align:left;white-space:normal;vertical-align:top}
.told td:first-child{text-align:right;white-space:nowrap}code{font-size:.85em;overflow-wrap:anywhere}
.charts{margin-top:1.5rem}.change{border-top:1px solid var(--line);padding:.6rem 0}.change p{margin:.2rem 0}
.change dl{margin:.4rem 0 0;font-size:.9rem;display:grid;grid-template-columns:auto 1fr;gap:.1rem .8rem}
.change dt{font-variant-numeric:tabular-nums}.change dd{margin:0}.worse{color:var(--warn);font-weight:600}
.better{color:var(--good);font-weight:600}:root{--good:#12734f}
@media(prefers-color-scheme:dark){:root{--good:#46c2a2}}
@media(max-width:600px){.change dl{grid-template-columns:1fr}.change dd{margin-bottom:.4rem}}
"""
NOT_ANSWERED = (kinds.REFUSED, kinds.BLOCKED, kinds.FAILED)
MOVED = (kinds.DOWNGRADED, kinds.REROUTED)
MOST_TENANTS_DRAWN = 3


def as_html(report: Report) -> str:
    return "".join(_parts(report))


def _parts(report: Report) -> Iterator[str]:
    first, title = report.summaries[0], f"tollgate replay: {report.title}"
    yield '<!doctype html><html lang="en"><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<title>{escape(title)}</title><style>{STYLE}{MORE_STYLE}</style><h1>tollgate replay</h1>"
    yield f'<p class="dim">{escape(report.trace)}: {len(first.decisions):,} requests in {span(first.length)}</p>'
    for letter, one in zip(LETTERS, report.summaries, strict=False):
        named = f"<strong>{letter}</strong> {escape(one.name)}" if report.difference else escape(one.name)
        yield f"<p>{named}</p>"
    yield _table([*totals(report)])
    if report.difference is not None:
        yield from _verdict(report.difference)
    yield '<div class="charts">'
    yield from (chart.svg() for chart in charts(report))
    yield "</div>"
    if report.difference is not None:
        yield from _changes(report.difference, report)
    yield "<h2>By tenant</h2>"
    yield _table([*of_tenants(report)])
    yield "<h2>By tier: waits for a place, and time to the first token</h2>"
    yield _table([*of_tiers(report)])
    for letter, one in zip(LETTERS, report.summaries, strict=False):
        rows = [*reasons(one)]
        if rows:
            yield f"<h2>Why not answered as asked{f', under {letter}' if report.difference else ''}</h2>"
            yield '<div class="scroll"><table class="told">'
            for count, told, line in rows:
                yield f"<tr><td>{count}<td>{escape(told)}<td><code>{escape(line)}</code>"
            yield "</table></div>"
    yield "<h2>Taken as given</h2><ul>"
    yield from (f"<li>{escape(said)}" for said in assumed(report))
    yield f"</ul><h2>What was asked</h2><pre>{escape(json.dumps(dict(report.options), indent=1))}</pre></html>"


def _table(rows: Sequence[Row]) -> str:
    head, *others = rows
    parts = ['<div class="scroll"><table><tr>', *(f"<th>{escape(cell)}" for cell in head)]
    for row in others:
        parts += ["<tr>", *(f"<td>{escape(cell)}" for cell in row)]
    return "".join([*parts, "</table></div>"])


def _verdict(found: Difference) -> Iterator[str]:
    whole = found.all
    count = whole.worse + whole.better + whole.same
    yield "<h2>Who is worse off under B</h2>"
    yield f"<p><strong>{whole.worse:,}</strong> of {count:,} requests ({percent(whole.worse, count)}) are worse off, "
    yield f"<strong>{whole.better:,}</strong> better; it costs {escape(more_or_less(whole.cost))}.</p>"
    rows: list[Row] = [("TENANT", "WORSE", "BETTER", "SAME", "COST")]
    for name, mine in found.tenants.items():
        rows.append((name, f"{mine.worse:,}", f"{mine.better:,}", f"{mine.same:,}", dollars(mine.cost)))
    yield _table(rows)


def _changes(found: Difference, report: Report) -> Iterator[str]:
    for verdict in (WORSE, BETTER):
        changes = [one for one in found.changes if one.change.verdict == verdict][:MOST_CHANGES]
        left = report.examples
        if verdict == BETTER and changes:
            yield f"<details><summary>What became better for {found.all.better:,}</summary>"
        elif changes:
            yield "<h2>What became worse</h2>"
        for place, one in enumerate(changes):
            examples = share_of(left, len(changes) - place)
            yield from _change(one, found, examples)
            left -= min(examples, len(one.examples))
        if verdict == BETTER and changes:
            yield "</details>"


def _change(one: Changed, found: Difference, examples: int) -> Iterator[str]:
    change = one.change
    whose = ", ".join(
        f"{name} {count:,}" for name, count in sorted(one.tenants.items(), key=lambda it: -it[1])[:5]
    )
    yield f'<div class="change"><p><span class="{change.verdict}">{change.verdict}: {one.count:,}</span> '
    yield f"({escape(whose)}) {escape(change.before)} → {escape(change.after)}</p>"
    yield from (f"<p><code>{escape(line)}</code></p>" for line in change.lines.splitlines())
    yield "<dl>"
    for number in spread(one.examples, examples):
        example = found.example(number)
        yield f"<dt>{escape(example['request'])}, {escape(clock(example['at']))}, {escape(example['tenant'])}"
        yield f"<dd>A: {escape(example['before'])}<br>B: {escape(example['after'])}"
    yield "</dl></div>"


def charts(report: Report) -> Iterator[Chart]:
    yield _counts("Requests without an answer", report, NOT_ANSWERED)
    if any(one.all.kinds[kind] for one in report.summaries for kind in MOVED):
        yield _counts("Answered by another model than was asked for", report, MOVED)
    if (first_tokens := _percentiles("Time to first token", report, waits=False)) is not None:
        yield first_tokens
    if (waits := _percentiles("Wait for a place at a backend", report, waits=True)) is not None:
        yield waits
    if any(one.all.cost for one in report.summaries):
        yield _spent(report)


def _counts(title: str, report: Report, which: Sequence[int]) -> Chart:
    step = report.summaries[0].length / BUCKETS / 60 or 1 / 60
    series = [
        Series(
            _name(report, place),
            [
                ((at + 0.5) * step, 100 * sum(counts[kind] for kind in which) / (sum(counts) or 1))
                for at, counts in enumerate(one.arrivals)
                if sum(counts)
            ],
            color=place,
        )
        for place, one in enumerate(report.summaries)
    ]
    highs = [y for one in series for _, y in one.points]
    return Chart(title, linear("minutes", [BUCKETS * step]), linear("% of requests", highs), series)


def _percentiles(title: str, report: Report, *, waits: bool) -> Chart | None:
    """By tier and policy, as far as colours go."""
    series: list[Series] = []
    tiers = dict.fromkeys(tier for one in report.summaries for tier in one.tiers)
    for tier in tiers:
        for place, one in enumerate(report.summaries):
            group = one.tiers.get(tier)
            values = [] if group is None else group.waits if waits else group.firsts
            if values and len(series) < COLORS and not (waits and values[-1] <= 0):
                name = f"{tier or 'no tier'}, {LETTERS[place]}" if report.difference else tier or "no tier"
                known = 100 * (1 - 1 / (2 * len(values)))
                points = [(at, percentile(values, at)) for at in CURVE if at <= known]
                series.append(Series(name, points, color=len(series)))
    if not series:
        return None
    highs = [y for one in series for _, y in one.points]
    axis = linear("seconds", highs) if waits else logarithmic("seconds", highs)
    return Chart(title, nines("percentile"), axis, series)


def _spent(report: Report) -> Chart:
    step = report.summaries[0].length / BUCKETS / 60 or 1 / 60
    series: list[Series] = []
    dearest = sorted(_tenants(report), key=lambda name: -max(_sum(one, name) for one in report.summaries))
    for name in dearest[:MOST_TENANTS_DRAWN]:
        for place, one in enumerate(report.summaries):
            total, points = 0, [(0.0, 0.0)]
            for at, spent in enumerate(one.spent.get(name, ())):
                total += spent
                points.append(((at + 1) * step, total / NANO))
            told = f"{name}, {LETTERS[place]}" if report.difference else name
            series.append(Series(told, points, color=len(series) % COLORS))
    highs = [y for one in series for _, y in one.points]
    return Chart("Cost so far, by tenant", linear("minutes", [BUCKETS * step]), linear("$", highs), series)


def _tenants(report: Report) -> list[str]:
    return [*dict.fromkeys(name for one in report.summaries for name in one.spent)]


def _sum(one: Summary, tenant: str) -> int:
    return sum(one.spent.get(tenant, ()))


def _name(report: Report, place: int) -> str:
    return (
        f"{LETTERS[place]}: {report.summaries[place].name}"
        if report.difference
        else report.summaries[place].name
    )
