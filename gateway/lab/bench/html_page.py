"""The report as one HTML file with its plots, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from gateway.lab.bench.percentiles import percentile
from gateway.lab.bench.session import Report
from gateway.lab.bench.summary import LATENCIES, Result
from gateway.lab.bench.tables import HEADINGS, cells, notes, told_search, warnings
from gateway.lab.charts import Chart, Series, linear, logarithmic, nines
from gateway.lab.page import COLORS, STYLE

NAMES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2e": "End to end",
}
CURVE = (*range(0, 90, 5), *range(90, 99), 99, 99.25, 99.5, 99.75, 99.9, 99.95)
"""The percentiles that are drawn, as far as there are so many samples."""


def as_html(report: Report, told: Mapping[str, Any]) -> str:
    """``told``: the same report as JSON."""
    return "".join(_parts(report, told))


def _parts(report: Report, told: Mapping[str, Any]) -> Iterator[str]:
    summaries: Sequence[Mapping[str, Any]] = told["results"]
    servers = list(dict.fromkeys(one["server"] for one in summaries))
    title = f"tollgate bench: {', '.join(servers) or 'nothing'}"
    yield '<!doctype html><html lang="en"><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>"
    slo = f"SLO: {report.slo}" if report.slo.bounds else "No SLO: what succeeds is good"
    yield f'<p class="dim">{escape(told["began"])} · tollgate {escape(told["tollgate"])} · {escape(slo)}</p>'
    if report.interrupted:
        yield '<p class="warn">Interrupted: this is what there was until then.</p>'
    for name, search in report.knees.items():
        yield f"<p><strong>{escape(name)}</strong>: {escape(told_search(search))}</p>"
    yield '<div class="scroll"><table><tr>'
    yield "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS) + "</tr>"
    for one in summaries:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(one)) + "</tr>"
    yield '</table></div><p class="dim">Latencies in milliseconds, from the time at which a request was to be sent.</p>'
    for one in summaries:
        where = f"{one['server']}, {one['load']}: "
        yield from (f"<p>{escape(where + note)}</p>" for note in notes(one, rounds=not report.knees))
    yield from (f'<p class="warn">{escape(said)}</p>' for said in warnings(summaries))
    yield '<div class="charts">'
    yield from (chart.svg() for chart in charts(report))
    yield "</div><h2>What was asked</h2>"
    yield f"<pre>{escape(json.dumps(told['options'], indent=1))}</pre>"
    client = {f"{one['server']}, {one['load']}": one["client"] for one in summaries}
    yield f"<h2>The client itself</h2><pre>{escape(json.dumps(client, indent=1))}</pre></html>"


def charts(report: Report) -> Iterator[Chart]:
    shown = _shown(report)
    by_rate = _by_rate(report)
    if by_rate:
        yield _share_by_rate(report, by_rate)
        yield _latency_by_rate(report, by_rate)
    for name in ("ttft", "tpot", "itl", "e2e"):
        series = [
            Series(_name(result, shown), _curve(values), color=number % COLORS)
            for number, result in enumerate(shown)
            if (values := _values(result, name))
        ]
        if series:
            highs = [y for one in series for _, y in one.points]
            yield Chart(NAMES[name], nines("percentile"), linear("ms", highs), series, _bound(report, name))
    points = [(result, _over_time(result)) for result in shown]
    if any(found for _, found in points):
        series = [
            Series(_name(result, shown), found, scattered=True, color=number % COLORS)
            for number, (result, found) in enumerate(points)
        ]
        xs, ys = zip(*(point for _, found in points for point in found), strict=True)
        kind = "ttft" if all(_values(result, "ttft") for result in shown) else "e2e"
        yield Chart(
            f"{NAMES[kind]} by the time of sending",
            linear("seconds", xs),
            logarithmic("ms", ys),
            series,
            _bound(report, kind),
        )


def _shown(report: Report) -> list[Result]:
    """As many as the colours tell apart: of a search those at the knees, else the last ones."""
    results = [result for result in report.results if result.counted]
    if report.knees:
        results = [
            result
            for result in results
            if result.rate
            == (report.knees[result.server.name].held or report.knees[result.server.name].failed)
        ]
    return results[-COLORS:]


def _name(result: Result, among: Sequence[Result]) -> str:
    """As short as it is unambiguous."""
    loads = {str(one.load) for one in among}
    return result.server.name if len(loads) == 1 else f"{result.server.name}, {result.load}"


def _values(result: Result, name: str) -> list[float]:
    good = [sample for sample in result.counted if sample.ok]
    if name == "itl":
        return sorted(1000 * gap for sample in good for gap in sample.gaps)
    return sorted(1000 * value for sample in good if (value := LATENCIES[name](sample)) is not None)


def _curve(ordered: Sequence[float]) -> list[tuple[float, float]]:
    known = 100 * (1 - 1 / (2 * len(ordered)))
    return [(percent, percentile(ordered, percent)) for percent in CURVE if percent <= known]


def _over_time(result: Result) -> list[tuple[float, float]]:
    found = []
    for sample in result.counted:
        if sample.ok:
            latency = sample.ttft if sample.ttft is not None else sample.e2e
            found.append((sample.intended, 1000 * latency))
    return sorted(found)


def _bound(report: Report, name: str) -> list[tuple[float, str]]:
    bounds = report.slo.bounds
    return [(1000 * bounds[name], f"SLO {1000 * bounds[name]:g} ms")] if name in bounds else []


def _by_rate(report: Report) -> dict[str, list[Result]]:
    """By server, where there are several rates."""
    found: dict[str, list[Result]] = {}
    for result in report.results:
        if (
            result.load.rate is not None
            and result.load.rate.first == result.load.rate.last
            and result.counted
        ):
            found.setdefault(result.server.name, []).append(result)
    for results in found.values():
        results.sort(key=lambda result: result.rate)
    return found if any(len(results) > 1 for results in found.values()) else {}


def _share_by_rate(report: Report, by_rate: Mapping[str, Sequence[Result]]) -> Chart:
    series = [
        Series(name, [(one.rate, 100 * one.share) for one in results], color=number % COLORS)
        for number, (name, results) in enumerate(by_rate.items())
    ]
    for number, (name, search) in enumerate(report.knees.items()):
        trials = [(rate, 100 * share) for rate, shares in search.trials.items() for share in shares]
        series.append(Series(f"{name}: trials", trials, scattered=True, color=number % COLORS))
    goals = {search.share for search in report.knees.values()}
    marks = [(100 * goal, f"{100 * goal:g} %") for goal in goals]
    knees = [(search.held, f"knee {search.held:.3g}") for search in report.knees.values() if search.held]
    rates = [one.rate for results in by_rate.values() for one in results]
    return Chart(
        "Requests within the SLO", linear("requests/s", rates), linear("%", [100.0]), series, marks, knees
    )


def _latency_by_rate(report: Report, by_rate: Mapping[str, Sequence[Result]]) -> Chart:
    streamed = all(_values(one, "ttft") for results in by_rate.values() for one in results)
    name = "ttft" if streamed else "e2e"
    series = []
    for number, (server, results) in enumerate(by_rate.items()):
        points = [(one.rate, percentile(values, 99)) for one in results if (values := _values(one, name))]
        series.append(Series(server, points, color=number % COLORS))
    rates = [one.rate for results in by_rate.values() for one in results]
    highs = [y for one in series for _, y in one.points]
    title = f"{NAMES[name]}, 99th percentile"
    return Chart(title, linear("requests/s", rates), logarithmic("ms", highs), series, _bound(report, name))
