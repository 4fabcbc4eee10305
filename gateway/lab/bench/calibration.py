"""What a benchmark saw of one server, for ``tollgate plan --calibration``: lengths and times of each request."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.lab.bench.errors import OptionError
from gateway.lab.bench.session import Plan, Report
from gateway.lab.bench.summary import Result
from gateway.version import version

FORM = 1
MOST = 1000
"""Requests of a load."""


def check(plan: Plan) -> None:
    """Before the work. Raises ``OptionError``."""
    closed = {load.concurrency for load in plan.loads if not load.is_open}
    if len(plan.servers) != 1 or plan.knee is not None or len(closed) != len(plan.loads):
        raise OptionError("--calibration: one server, in closed loops: --concurrency 1,4,16")
    if 1 not in closed or len(closed) < 2:
        raise OptionError(
            "--calibration: one request alone, and some at a time: --concurrency 1,4,16; and prompts of several "
            "lengths, as --prompt-tokens uniform:50-1000"
        )


def as_calibration(report: Report) -> dict[str, Any]:
    first = report.results[0]
    return {
        "calibration": FORM,
        "measured": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "tollgate": version(),
        "server": first.server.url,
        "model": first.server.model,
        "loads": [
            {"concurrency": result.load.concurrency, "requests": _requests(result)}
            for result in report.results
        ],
    }


def _requests(result: Result) -> Sequence[tuple[int, int, float, float]]:
    """Of each that succeeded: tokens of prompt and answer, seconds to the first token and to the end."""
    return [
        (one.prompt_tokens or 0, one.output_tokens, round(one.ttft, 6), round(one.e2e, 6))
        for one in result.counted
        if one.ok and one.ttft is not None
    ][:MOST]
