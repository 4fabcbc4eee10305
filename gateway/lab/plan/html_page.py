"""The plan as one HTML file with its plots, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from gateway.lab.charts import Bars, Chart, Series, linear
from gateway.lab.page import COLORS, STYLE
from gateway.lab.plan.plan import Plan, cost_by_rate
from gateway.lab.plan.tables import HEADINGS, about, cells, details

OWN_STYLE = """
.scroll th:last-child,.scroll td:last-child{text-align:left;white-space:normal;min-width:15rem}
p{margin:.5rem 0}
"""


def as_html(plan: Plan, told: Mapping[str, Any]) -> str:
    """``told``: the same plan as JSON."""
    return "".join(_parts(plan, told))


def _parts(plan: Plan, told: Mapping[str, Any]) -> Iterator[str]:
    title = f"tollgate plan: {plan.question.shape.name}"
    yield '<!doctype html><html lang="en"><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<title>{escape(title)}</title><style>{STYLE}{OWN_STYLE}</style><h1>{escape(title)}</h1>"
    yield from (f'<p class="dim">{escape(line)}</p>' for line in about(plan))
    if plan.best is None:
        yield '<p class="warn">Nothing keeps the targets.</p>'
    else:
        yield '<div class="scroll"><table><tr>'
        yield "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS) + "</tr>"
        for option in plan.outcome.options:
            yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(plan, option)) + "</tr>"
        yield "</table></div>"
        yield from (f"<p>{escape(line)}</p>" for line in details(plan, changes=False))
        yield '<div class="charts">'
        yield from (chart.svg() for chart in charts(plan))
        yield "</div>"
    if plan.outcome.misfits:
        yield '<h2>What does not do</h2><div class="scroll"><table><tr><th>MACHINES</th><th>WHY</th></tr>'
        for misfit in plan.outcome.misfits:
            yield f"<tr><td>{escape(misfit.name)}</td><td>{escape(misfit.reason)}</td></tr>"
        yield "</table></div>"
    for heading, name in (
        ("What was asked", "options"),
        ("The chips", "chips"),
        ("Assumptions", "efficiency"),
    ):
        yield f"<h2>{heading}</h2><pre>{escape(json.dumps(told[name], indent=1))}</pre>"
    yield "</html>"


def charts(plan: Plan) -> Iterator[Chart | Bars]:
    if plan.best is None:
        return
    rate = plan.question.workload.mean_rate
    series = [
        Series(option.found.candidate.name, cost_by_rate(option, rate), color=number % COLORS)
        for number, option in enumerate(plan.outcome.options[: COLORS - len(plan.break_evens)])
    ]
    rates = [x for x, _ in series[0].points]
    for row in plan.break_evens:
        points = [(x, row.usd_per_month * x / rate) for x in rates]
        series.append(Series(row.model, points, color=len(series) % COLORS))
    highs = [y for one in series for _, y in one.points]
    yield Chart(
        "Dollars a month by requests a second",
        linear("requests/s", rates),
        linear("USD a month", highs),
        series,
        x_marks=[(rate, "now")],
    )
    parts = sorted(plan.best.found.limits.items(), key=lambda one: -one[1])
    yield Bars(
        "Where the time of the cheapest goes, %",
        [(name, 100 * share) for name, share in parts if share >= 0.005],
    )
    changes = [(one.what, one.usd_per_month) for one in plan.changes if one.usd_per_month is not None]
    if changes:
        rows = [("as asked", plan.best.usd_per_month), *changes]
        yield Bars("Dollars a month of the cheapest machines, if it were otherwise", rows)
