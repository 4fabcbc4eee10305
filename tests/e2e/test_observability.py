"""What is in deploy/ works: a real Prometheus with the shipped configuration scrapes a gateway and an engine, and every
expression of every dashboard has data."""

from __future__ import annotations

import json
import re
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.conftest import Stack
from tests.e2e.gateways import serving
from tests.ports import free_port
from tests.prometheus_server import SECONDS, PrometheusServer

DASHBOARDS = Path(__file__).parents[2] / "deploy" / "grafana"
ADAPTER = Path(__file__).parents[2] / "deploy" / "kubernetes" / "prometheus-adapter.yaml"


def a_policy(engine: str) -> dict[str, Any]:
    """Of all that dashboards show: an engine, a backend that is down, a full one, guards, caches, budgets."""
    script = [
        {"match": "heron", "reply": "One two three. Project Heron begins in May. Four five six."},
        {"reply": "A b c."},
    ]
    return {
        "version": 1,
        "backends": {
            "engine": {"kind": "engine", "base_url": engine, "model": "demo"},
            "scripted": {"kind": "fake", "script": script},
            "narrow": {"kind": "fake", "script": [{"reply": "a b c"}], "token_delay": "30s", "max_concurrency": 1},
            "slow": {"kind": "fake", "script": [{"reply": "a b c d"}], "token_delay": "10ms"},
            "broken": {
                "kind": "openai",
                "base_url": "http://127.0.0.1:1/v1",
                "breaker": {"failures": 2, "cooldown": "60s"},
            },
        },
        "models": {
            "demo": {"targets": [{"backend": "engine", "model": "demo"}]},
            "scripted": {"targets": [{"backend": "scripted", "model": "priced"}]},
            "narrow": {"targets": [{"backend": "narrow", "model": "free"}]},
            "slow": {"targets": [{"backend": "slow", "model": "free"}]},
            "broken": {"targets": [{"backend": "broken", "model": "x"}], "retry": {"attempts": 1}},
        },
        "prices": {"priced": {"input": 100.0, "output": 100.0}},
        "default_price": {"input": 0, "output": 0},
        "tiers": {"short": {"max_wait": "100ms"}},
        "tenants": {"acme": {"tier": "short", "budget": {"usd_per_day": 50, "usd_per_month": 500}}},
        "keys": [
                {"id": name, "sha256": sha256(f"tg-{name}".encode()).hexdigest(), "tenant": name}
                for name in ("acme", "other")
            ],
        "guards": {
            "projects": {
                "kind": "topics",
                "tenants": ["acme"],
                "on": ["output"],
                "action": "block",
                "words": ["Project Heron"],
            },
            "watched": {"kind": "topics", "on": ["input"], "action": "flag", "words": ["watched"]},
        },
        "review": {"enabled": True},
        "caches": {"exact": {"ttl": "1h"}, "semantic": {"ttl": "1h", "mode": "on"}},
        "metrics": {"tenants": True},
    }  # fmt: skip


def send_traffic(url: str) -> None:
    """One of each: it is sent twice, so that every counter has grown between two scrapes."""
    with httpx.Client(base_url=url, timeout=300, trust_env=False, verify=False) as http:

        def ask(model: str, text: str, *, key: str = "tg-acme", stream: bool = False, **more: Any) -> int:
            body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream, **more}
            headers = {"authorization": f"Bearer {key}"}
            return http.post("/v1/chat/completions", json=body, headers=headers).status_code

        assert ask("demo", f"Tell me of the sea, {time.monotonic()}", max_tokens=12) == 200
        # By a tenant whose answers no guard holds back: tokens come one by one.
        assert ask("slow", f"Slowly, {time.monotonic()}", key="tg-other", stream=True) == 200
        assert ask("scripted", "The same question") == 200
        assert ask("scripted", "The same question") == 200
        assert ask("scripted", f"Another, at {time.monotonic()}") == 200
        assert ask("scripted", f"A watched word, {time.monotonic()}", stream=True, temperature=1) == 200
        assert ask("scripted", f"About the heron, {time.monotonic()}", stream=True, temperature=1) == 200
        for _ in range(3):
            assert ask("broken", f"Nobody is there, {time.monotonic()}") in (502, 503)
        body = {
            "model": "narrow",
            "messages": [{"role": "user", "content": f"Hold the slot, {time.monotonic()}"}],
            "stream": True,
        }
        headers = {"authorization": "Bearer tg-other"}
        with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
            chunks = answer.iter_raw()
            next(chunks)
            assert ask("narrow", f"No slot is free, {time.monotonic()}") == 503
        assert ask("nothing", "A model that is not there") == 404


def expressions() -> dict[str, str]:
    """By dashboard, panel and query: every expression as Grafana would send it."""
    found = {}
    for path in DASHBOARDS.glob("*.json"):
        dashboard = json.loads(path.read_text())
        names = [one["name"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                if "tollgate_engine_gpu_" not in target["expr"]:  # tests/engine/server/test_gpus.py
                    found[f"{path.stem}: {panel['title']} {target['refId']}"] = filled(target["expr"], names)
    return found


def adapted() -> dict[str, str]:
    """By the metric's name: what the prometheus-adapter finds it by, and asks for it."""
    found = {}
    for rule in yaml.safe_load(ADAPTER.read_text())["rules"]["external"]:
        # The namespace comes from the PodMonitor.
        series = rule["seriesQuery"].removesuffix('{namespace!=""}')
        query = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.LabelMatchers>>", 'job!=""')
        found |= {f"{rule['name']['as']}, its series": series, rule["name"]["as"]: query}
    return found


def filled(expr: str, names: list[str]) -> str:
    """With its variables filled in: Grafana's own, and ``.*`` for each of the dashboard's, which is its "All"."""
    expr = expr.replace("$__rate_interval", "5m").replace("$__interval", "1m")
    for name in sorted(names, key=len, reverse=True):
        expr = expr.replace(f'"${name}"', '".*"')
    assert "$" not in expr, expr
    return expr


def test_every_panel_and_variable_has_data_and_every_rule_runs(
    tmp_path: Path, stack: Stack, prometheus_program: str
) -> None:
    port = free_port()
    settings = {"TOLLGATE_METRICS_PORT": str(port), "TOLLGATE_METRICS_AGE": "0"}
    engine = stack.engine_url
    targets = {"tollgate": f"127.0.0.1:{port}", "tollgate-engine": engine.removeprefix("http://")}
    with (
        serving(tmp_path / "gateway", a_policy(engine), **settings) as url,
        PrometheusServer(prometheus_program, tmp_path / "prometheus", targets) as prometheus,
    ):
        send_traffic(url)
        prometheus.wait_scraped()
        send_traffic(url)
        prometheus.wait_scraped()
        missing = expressions() | adapted()
        assert len(missing) > 100
        deadline = time.monotonic() + SECONDS
        while (
            missing and time.monotonic() < deadline
        ):  # rules run every second, gauges are sampled every second
            missing = {name: expr for name, expr in missing.items() if not prometheus.has_data(expr)}
            time.sleep(0.5 if missing else 0)
        assert not missing, "\n".join(f"{name}: {expr}" for name, expr in missing.items())

        for path in DASHBOARDS.glob("*.json"):
            for variable in json.loads(path.read_text())["templating"]["list"]:
                if variable["type"] == "query":
                    selector, label = re.fullmatch(
                        r"label_values\((.*), (\w+)\)", variable["definition"]
                    ).groups()  # type: ignore[union-attr]
                    values = prometheus.api(
                        f"label/{label}/values", **{"match[]": re.sub(r'"\$\w+"', '".*"', selector)}
                    )
                    assert values, variable["definition"]

            for annotation in json.loads(path.read_text())["annotations"]["list"]:
                prometheus.values(annotation["expr"])

        rules = [rule for group in prometheus.api("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}, [
            rule for rule in rules if rule["health"] != "ok"
        ]
        assert len(rules) > 30
        alerts = prometheus.api("alerts")["alerts"]
        told = [
            one["annotations"]
            for one in alerts
            if one["labels"]["alertname"].startswith("TollgateBreakerOpen")
        ]
        assert told and all("'broken'" in one["summary"] for one in told)
