"""deploy/prometheus: rules that Prometheus takes, alerts that fire and are silent, and what to do about each."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_docs import anchors

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
GROUPS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
TESTS = [(FOLDER / name).read_text() for name in ("rules_test.yml", "rules_week_test.yml")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
        ("test", "rules", "rules_week_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content(promtool_program: str, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [promtool_program, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_made_to_fire() -> None:
    assert set(re.findall(r'\{alertname="(\w+)"', "".join(TESTS))) == set(ALERTS)


def test_every_alert_has_its_metrics_where_nothing_is_wrong() -> None:
    """It would be silent without them, too."""
    healthy = "".join(text.split("  - name: ")[1] for text in TESTS)
    given = set(re.findall(r"series: '([\w:]+)", healthy))
    given |= {rule["record"] for rule in RULES if "record" in rule}  # of whose metrics the same is asked
    for rule in RULES:
        used = set(
            re.findall(r"\b(?:tollgate:|tollgate_|vllm:|up\b)[\w:]*", re.sub(r'"[^"]*"', "", rule["expr"]))
        )
        assert used <= given, rule


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_is_wrong_and_where_to_read_on(name: str) -> None:
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in ("page", "ticket")
    about = alert["annotations"]
    assert about["summary"].strip() and about["description"].strip()
    page, _, anchor = about["runbook_url"].partition("#")
    assert name.lower().startswith(anchor) and anchor in anchors(page)


def test_the_budgets_are_told_in_one_place() -> None:
    text = (FOLDER / "rules.yml").read_text()
    assert text.count("vector(0.0") == 2
    assert {rule["record"] for rule in RULES if rule["expr"].startswith("vector(")} == {
        "tollgate:error_budget:ratio",
        "tollgate:first_token_budget:ratio",
    }
