"""Grafana's JSON model of dashboards (https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/),
as far as ours need it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

WIDTH = 24
"""Columns of Grafana's grid."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA = 38
"""Grafana 10.0's; later ones migrate it when they load it."""
GREEN, YELLOW, RED = "green", "yellow", "red"


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = "__auto"


@dataclass(frozen=True)
class Panel:
    """``unit`` is one of Grafana's: ``s``, ``reqps``, ``percentunit``, ``currencyUSD`` …"""

    title: str
    about: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    levels: tuple[tuple[float, str], ...] = ()
    """From which value on it has which colour; green below the first."""
    stacked: bool = False
    texts: tuple[tuple[str, str, str], ...] = ()
    """Values that are shown as a text, in a colour."""
    minimum: float | None = 0.0
    maximum: float | None = None
    decimals: int | None = None


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """Of the values of a label."""

    name: str
    label: str
    metric: str
    """A series selector; it may name variables that come before."""


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    about: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    range: str = "now-1h"
    tags: tuple[str, ...] = field(default=("tollgate",))


def graph(title: str, about: str, unit: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """Lines over time. A query is its expression and its legend."""
    return Panel(title, about, unit, tuple(Query(*query) for query in queries), **more)


def stat(title: str, about: str, unit: str, expr: str, **more: Any) -> Panel:
    """One number, with its course behind it."""
    return Panel(title, about, unit, (Query(expr),), kind="stat", **{"width": 4, "height": 4, **more})


def bars(title: str, about: str, unit: str, expr: str, legend: str, **more: Any) -> Panel:
    """One horizontal bar for each series."""
    return Panel(title, about, unit, (Query(expr, legend),), kind="bargauge", **more)


def heatmap(title: str, about: str, unit: str, expr: str, **more: Any) -> Panel:
    """``expr`` gives buckets, by ``le``."""
    return Panel(title, about, unit, (Query(expr, "{{le}}"),), kind="heatmap", **more)


def table(title: str, about: str, expr: str, **more: Any) -> Panel:
    """The labels of each series."""
    return Panel(title, about, "none", (Query(expr),), kind="table", **more)


def render(dashboard: Dashboard) -> Json:
    """The dashboard as Grafana imports it."""
    return {
        "annotations": {"list": [_policy_changes()]},
        "description": dashboard.about,
        "editable": True,
        "graphTooltip": 1,
        "id": None,
        "links": [
            {
                "title": "Tollgate",
                "type": "dashboards",
                "tags": ["tollgate"],
                "asDropdown": True,
                "includeVars": False,
                "keepTime": True,
                "icon": "external link",
                "targetBlank": False,
                "tooltip": "The other dashboards",
                "url": "",
            }
        ],
        "panels": _placed(dashboard.rows),
        "refresh": "30s",
        "schemaVersion": SCHEMA,
        "tags": list(dashboard.tags),
        "templating": {"list": [_datasource(), *(_variable(one) for one in dashboard.variables)]},
        "time": {"from": dashboard.range, "to": "now"},
        "timezone": "",
        "title": dashboard.title,
        "uid": dashboard.uid,
        "version": 1,
    }


def _placed(rows: Sequence[Row]) -> list[Json]:
    """Panels from left to right, in lines as high as their highest."""
    found: list[Json] = []
    y = 0
    for row in rows:
        found.append(
            _numbered(
                found, {"type": "row", "title": row.title, "collapsed": False, "panels": []}, 0, y, WIDTH, 1
            )
        )
        y += 1
        x = line = 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, line = 0, y + line, 0
            found.append(_numbered(found, _panel(panel), x, y, panel.width, panel.height))
            x += panel.width
            line = max(line, panel.height)
        y += line
    return found


def _numbered(before: Sequence[Json], panel: Json, x: int, y: int, w: int, h: int) -> Json:
    return {"id": len(before) + 1, "gridPos": {"x": x, "y": y, "w": w, "h": h}, **panel}


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "targets": [_target(panel, query, index) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _OPTIONS[panel.kind],
        **({"transformations": [_LABELS_ONLY]} if panel.kind == "table" else {}),
    }


def _target(panel: Panel, query: Query, index: int) -> Json:
    now = panel.kind in ("table", "bargauge")
    return {
        "refId": chr(ord("A") + index),
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        "instant": now,
        "range": not now,
        "format": {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series"),
    }


def _defaults(panel: Panel) -> Json:
    steps: list[Json] = [{"color": GREEN, "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in panel.levels]
    found: Json = {
        "unit": panel.unit,
        "min": panel.minimum,
        "max": panel.maximum,
        "decimals": panel.decimals,
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "mappings": [
            {"type": "value", "options": {value: {"text": text, "color": colour, "index": index}}}
            for index, (value, text, colour) in enumerate(panel.texts)
        ],
    }
    if panel.kind == "timeseries":
        found["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.levels else "off"},
        }
    return {name: value for name, value in found.items() if value not in (None, [])}


_CALCULATION = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"colorMode": "value", "graphMode": "area", "textMode": "value", "reduceOptions": _CALCULATION},
    "bargauge": {"displayMode": "basic", "orientation": "horizontal", "reduceOptions": _CALCULATION},
    "heatmap": {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "yAxis": {"unit": "s"},
        "cellGap": 1,
        "tooltip": {"show": True, "yHistogram": False, "mode": "single", "showColorScale": False},
    },
    "table": {"showHeader": True},
}
_LABELS_ONLY = {
    "id": "organize",
    "options": {"excludeByName": {"Time": True, "Value": True, "__name__": True}},
}


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "hide": 0,
        "refresh": 1,
        "includeAll": False,
        "multi": False,
        "options": [],
        "current": {},
    }


def _variable(variable: Variable) -> Json:
    query = f"label_values({variable.metric}, {variable.name})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{variable.name}"},
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "hide": 0,
        "regex": "",
        "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _policy_changes() -> Json:
    return {
        "name": "Policy changes",
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": "blue",
        "expr": "changes(tollgate_policy_generation[2m]) > 0",
        "titleFormat": "another policy",
        "textFormat": "{{instance}}",
    }
