"""deploy/grafana: what the script makes, and what Grafana needs. tests/e2e/test_observability.py shows that panels have
data."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest

from gateway.observe.metrics import Metrics
from gateway.observe.prometheus import buckets
from scripts.grafana.__main__ import FOLDER, texts

DASHBOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
OURS = set(Metrics()._registry._names_to_collectors)
each = pytest.mark.parametrize("name", DASHBOARDS)


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]


def test_the_files_are_what_the_script_makes() -> None:
    there = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    assert there == texts(), "run: python -m scripts.grafana"


def test_each_has_a_uid_and_a_title_of_its_own() -> None:
    for key in ("uid", "title"):
        assert len({one[key] for one in DASHBOARDS.values()}) == len(DASHBOARDS) == 5


@each
def test_panels_say_what_they_show_and_in_which_unit(name: str) -> None:
    ids = [panel["id"] for panel in DASHBOARDS[name]["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels(name):
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


@each
def test_panels_lie_beside_one_another(name: str) -> None:
    places = [panel["gridPos"] for panel in DASHBOARDS[name]["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


@each
def test_variables_that_are_named_are_there_and_all_are_used(name: str) -> None:
    variables = [one["name"] for one in DASHBOARDS[name]["templating"]["list"]]
    assert variables[0] == "datasource"
    exprs = [target["expr"] for panel in panels(name) for target in panel["targets"]]
    definitions = [one.get("definition", "") for one in DASHBOARDS[name]["templating"]["list"]]
    used = {found for text in (*exprs, *definitions) for found in re.findall(r"\$(\w+)", text)}
    assert used - {"__rate_interval", "__interval"} == set(variables) - {"datasource"}
    assert all(re.search(r"\[\$__rate_interval\]|\[1d\]", expr) for expr in exprs if "rate(" in expr)


@each
def test_metrics_of_the_gateway_are_its_own(name: str) -> None:
    exprs = [target["expr"] for panel in panels(name) for target in panel["targets"]]
    named = {found for expr in exprs for found in re.findall(r"\btollgate_(?!engine_)\w+", expr)}
    assert named <= OURS, named - OURS


def test_objectives_are_bounds_of_their_histogram() -> None:
    """Between two bounds a share would be a guess."""
    rules = (FOLDER.parent / "prometheus" / "rules.yml").read_text()
    bounds = set(re.findall(r'time_to_first_token_seconds_bucket\{le="([\d.]+)"\}', rules))
    assert bounds and {float(bound) for bound in bounds} <= set(buckets.FIRST_TOKEN)
