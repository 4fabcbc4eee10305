"""Expressions that dashboards share, and the variables that they name."""

from __future__ import annotations

from typing import Any

from scripts.grafana.panels import RED, YELLOW, Variable

JOB = Variable("job", "Job", "tollgate_policy_generation")
INSTANCE = Variable("instance", "Gateway", 'tollgate_policy_generation{job=~"$job"}')
MODEL = Variable("model", "Model", 'tollgate_requests_total{job=~"$job"}')
TENANT = Variable("tenant", "Tenant", 'tollgate_tenant_requests_total{job=~"$job"}')
ENGINE = Variable("instance", "Engine", "vllm:num_requests_running")
SERVED = Variable("model_name", "Model", 'vllm:num_requests_running{instance=~"$instance"}')

HERE = 'job=~"$job", instance=~"$instance"'
OF_MODEL = f'{HERE}, model=~"$model"'
ANSWERED = f'{OF_MODEL}, status="200"'
OF_TENANT = f'{HERE}, tenant=~"$tenant"'
OF_ENGINE = 'instance=~"$instance", model_name=~"$model_name"'
RATE = "$__rate_interval"

SHARES = ((0.8, YELLOW), (0.95, RED))
UP: dict[str, Any] = {"texts": (("0", "down", RED), ("1", "up", "green")), "levels": ()}


def rate(metric: str, labels: str, *by: str) -> str:
    inner = f"sum(rate({metric}{{{labels}}}[{RATE}]))"
    return inner if not by else f"sum by ({', '.join(by)}) (rate({metric}{{{labels}}}[{RATE}]))"


def quantile(q: float, metric: str, labels: str, *by: str) -> str:
    return f"histogram_quantile({q}, sum by ({', '.join(('le', *by))}) (rate({metric}_bucket{{{labels}}}[{RATE}])))"


def quantiles(metric: str, labels: str) -> list[tuple[str, str]]:
    return [(quantile(q, metric, labels), f"p{round(q * 100)}") for q in (0.5, 0.95, 0.99)]


def ratio(part: str, whole: str) -> str:
    """0 where there is nothing."""
    return f"({part} or vector(0)) / ({whole} > 0)"


def mean(metric: str, labels: str) -> str:
    return f"{rate(f'{metric}_sum', labels)} / {rate(f'{metric}_count', labels)}"
