"""``tollgate experiments``: what the policy's experiments have shown so far, from the ledger."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from gateway.cli import init
from gateway.cli.usage import ledger_of
from gateway.cli.user import state_dir
from gateway.databases.database import Database, DatabaseError
from gateway.experiments.confidence import Interval
from gateway.experiments.experiments import run_of
from gateway.experiments.metrics import METRICS
from gateway.experiments.results import ArmResults, Figure, Results, results_of
from gateway.observe.ledger.experiment_sums import sums_of
from gateway.policy.key_store import state_files
from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError, suggestion
from gateway.policy.schema import Policy, parse_duration
from gateway.policy.variables import Variables
from gateway.settings import SettingsError

MISMATCH = (
    "the arms have other shares of users than their weights: something loses some, so do not believe the rest"
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "experiments",
        help="show what experiments have shown so far",
        description="Show each arm of the policy's experiments: users, requests, means, and differences from the "
        "first arm, with intervals that hold however often one looks. Figures are of the arms as the policy has them "
        "now: what was seen under other contents is left out. From the ledger.",
    )
    parser.add_argument("name", nargs="*", metavar="NAME", help="of these experiments alone")
    parser.add_argument("--policies", metavar="DIR", help="the policy folder (policies)")
    parser.add_argument(
        "--ledger", metavar="WHERE", help="another ledger than the policy's, as for 'tollgate usage'"
    )
    parser.add_argument("--since", metavar="SPAN", default="90d", help="how far back, as 12h or 30d (90d)")
    parser.add_argument("--json", action="store_true", help="print JSON rather than tables")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        since = time.time() - parse_duration(arguments.since)
    except ValueError:
        return _complain(f"--since: {arguments.since!r} is no span; write one as 12h or 30d", 2)
    folder = init.folder(arguments.policies, os.environ)
    try:
        policy = load_policy(folder, Variables(), also=state_files(state_dir())).policy
        database = ledger_of(arguments.ledger, folder)
    except (PolicyError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 1
    for name in arguments.name:
        if name not in policy.experiments:
            return _complain(f"no experiment is named '{name}'{suggestion(name, (*policy.experiments,))}", 2)
    try:
        found = [*_results(policy, database, arguments.name or [*policy.experiments], since)]
    except DatabaseError as error:
        return _complain(f"{database}: {error}", 1)
    if arguments.json:
        print(json.dumps([told(one) for one in found], indent=2))
    elif not found:
        print(f"The policy in {folder} has no experiments: write one under 'experiments'.")
    else:
        print("\n\n".join("\n".join(_lines(one)) for one in found))
    return 0


def _results(policy: Policy, database: Database, names: list[str], since: float) -> Iterator[Results]:
    for name in names:
        sums = sums_of(database, run_of(policy, name), policy.experiments[name].metrics, since)
        yield results_of(policy, name, sums)


def told(one: Results) -> dict[str, Any]:
    return {"ready": not one.is_early, **asdict(one)}


def _lines(one: Results) -> Iterator[str]:
    yield f"{one.experiment}  ({one.run})"
    if one.mismatch:
        yield f"  WARNING: {MISMATCH} (chi-squared {one.chi_squared:.1f})"
    rows: list[tuple[str, ...]] = [
        (
            "ARM",
            "USERS",
            "REQUESTS",
            "METRIC",
            "MEAN",
            "95 %",
            "DIFFERENCE",
            f"{one.confidence * 100:.4g} %",
            "",
        )
    ]
    for arm in one.arms:
        rows += [_row(arm, figure) for figure in arm.figures]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if place in (1, 2, 4, 6) else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  " + "  ".join(cells).rstrip()


def _row(arm: ArmResults, figure: Figure) -> tuple[str, ...]:
    unit = METRICS[figure.metric].unit
    return (
        arm.name,
        f"{figure.users:,}",
        f"{figure.requests:,}",
        figure.metric,
        _amount(figure.mean, unit),
        _between(figure.interval, unit),
        _amount(figure.difference, unit, signed=True) if figure.verdict is not None else "control",
        _between(figure.difference_interval, unit, signed=True),
        figure.verdict or "",
    )


def _between(interval: Interval | None, unit: str, *, signed: bool = False) -> str:
    if interval is None:
        return "-"
    return f"{_amount(interval.low, unit, signed=signed)} to {_amount(interval.high, unit, signed=signed)}"


def _amount(value: float | None, unit: str, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    sign = "+" if signed else ""
    match unit:
        case "share":
            return f"{value * 100:{sign}.2f} %"
        case "dollars":
            return f"{value:{sign}.3g} $"
        case "seconds":
            return f"{value:{sign}.3g} s"
        case "tokens":
            return f"{value:{sign}.1f}"
    return f"{value:{sign}.3f}"


def _complain(message: str, status: int) -> int:
    print(f"tollgate experiments: {message}", file=sys.stderr)
    return status
