"""``tollgate replay``: what a policy would have done with recorded traffic."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli import init
from gateway.cli.user import state_dir
from gateway.policy.key_store import state_files
from gateway.policy.loader import Loaded
from gateway.policy.problems import PolicyError, suggestion
from gateway.policy.variables import Variables

if TYPE_CHECKING:
    from gateway.lab.replay.job import Job

MOST_POLICIES = 2


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "replay",
        help="say what a policy, or two, would have done with recorded traffic",
        description="Replay recorded traffic under one or two policies, in simulated time, through the gateway's own "
        "pipeline: who would have been refused, downgraded, rerouted or blocked, by which line; waits, times to first "
        "token, cost; and, of two, for whom the second is worse, and why. Nothing is sent. docs/lab.md says what a "
        "replay knows and what it does not. Exits with 0; 1 with --fail-if-worse where the second policy is worse for "
        "more requests than that; 2 for what cannot be read; 130 after Ctrl-C.",
    )
    parser.add_argument(
        "trace", metavar="TRACE", help="a file or folder of recorded traffic, in any form of docs/lab.md"
    )
    parser.add_argument(
        "--policy",
        metavar="DIR",
        action="append",
        default=[],
        help="a policy folder (policies); given twice, the second is compared with the first",
    )
    _add_traffic(parser.add_argument_group("the traffic"))
    _add_world(parser.add_argument_group("the backends"))
    form = parser.add_argument_group("the report")
    form.add_argument("--json", action="store_true", help="print JSON rather than tables")
    form.add_argument("--html", metavar="FILE", help="also write one HTML file, with plots")
    form.add_argument(
        "--examples", metavar="N", type=int, default=10, help="requests named in the comparison (10)"
    )
    form.add_argument(
        "--fail-if-worse",
        metavar="SHARE",
        type=float,
        help="exit with 1 where more than this share of requests is worse off under the second policy: 0.01",
    )
    parser.set_defaults(run=run)


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tenants",
        metavar="NAME=SHARE,…",
        help="who asks, where the trace does not say (all tenants of the first policy, equally)",
    )
    group.add_argument(
        "--model",
        metavar="NAME=SHARE,…",
        help="what is asked for, where the trace does not say (the first model of the first policy)",
    )
    group.add_argument("--seed", metavar="N", type=int, default=0, help="of what is drawn (0)")
    group.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="of arrivals: 2 doubles the load (1)"
    )
    group.add_argument("--requests", metavar="N", type=int, help="only the first so many")
    group.add_argument(
        "--stream",
        choices=("recorded", "all", "none"),
        help="whether answers are streamed (recorded; all, where the trace has no models)",
    )


def _add_world(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--service",
        metavar="[BACKEND:]TIMES",
        action="append",
        default=[],
        help="how long answers take, in place of what is measured on the trace: "
        "'openai:first=300ms,prompt=0.05ms,token=12ms,token_load=0.1ms'",
    )
    group.add_argument(
        "--outage",
        metavar="BACKEND=BEGIN+LENGTH[:STATUS]",
        action="append",
        default=[],
        help="the backend is away then, counted from the first request: openai=10m+5m",
    )
    group.add_argument(
        "--cache-tokens",
        metavar="N",
        type=int,
        default=500_000,
        help="of each backend's prompt cache, for traces with blocks of prompts; 0: none (500000)",
    )


def run(arguments: argparse.Namespace) -> int:
    # Serving loads this file, too, and nothing of the lab.
    from gateway.lab.progress import Progress
    from gateway.lab.replay.difference import compare
    from gateway.lab.replay.errors import ReplayError
    from gateway.lab.replay.processes import replay_all
    from gateway.lab.replay.report import Report
    from gateway.lab.replay.summary import summarize

    progress = Progress()
    try:
        jobs = _jobs(arguments)
        if arguments.html is not None:
            Path(arguments.html).open("a").close()  # before hours of work, not after
        decisions = replay_all(jobs, progress.show, len(os.sched_getaffinity(0)))
    except (PolicyError, ReplayError) as error:
        progress.wipe()
        print(error if isinstance(error, PolicyError) else f"tollgate replay: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        progress.wipe()
        print(f"tollgate replay: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        progress.wipe()
        print("tollgate replay: interrupted; nothing was written", file=sys.stderr)
        return 130
    summaries = [summarize(job.policies, found) for job, found in zip(jobs, decisions, strict=True)]
    difference = compare(decisions[0], decisions[1], arguments.examples) if decisions[1:] else None
    progress.wipe()
    report = Report(arguments.trace, _given(arguments), summaries, difference, arguments.examples)
    _write(report, arguments)
    limit = arguments.fail_if_worse
    if difference is not None and limit is not None:
        return int(difference.all.worse > limit * len(decisions[0]))
    return 0


def _write(report: Any, arguments: argparse.Namespace) -> None:
    from gateway.lab.replay.html_page import as_html
    from gateway.lab.replay.report import as_text

    if arguments.html is not None:
        Path(arguments.html).write_text(as_html(report), encoding="utf-8")
    if arguments.json:
        print(json.dumps(report.data(), indent=2))
    else:
        for line in as_text(report):
            print(line)


def _jobs(arguments: argparse.Namespace) -> list[Job]:
    from gateway.lab.policy_tests.reader import policy_for
    from gateway.lab.replay.callers import NOBODY, parse_shares
    from gateway.lab.replay.errors import ReplayError
    from gateway.lab.replay.job import Job

    if len(arguments.policy) > MOST_POLICIES:
        raise ReplayError("--policy can be given once, or twice to compare")
    if arguments.fail_if_worse is not None and len(arguments.policy) < MOST_POLICIES:
        raise ReplayError("--fail-if-worse compares two policies: give --policy twice")
    for name in ("speed", "requests"):
        if (value := getattr(arguments, name)) is not None and not value > 0:
            raise ReplayError(f"--{name} should be above 0")
    if arguments.trace == "-":
        raise ReplayError("a trace is read more than once: write it to a file")
    if not Path(arguments.trace).exists():
        raise ReplayError(f"{arguments.trace}: there is no such file or folder")
    folders = arguments.policy or [str(init.folder(None, os.environ))]
    also = state_files(state_dir())
    policies = [policy_for(Path(folder), Variables(), also) for folder in folders]
    first = policies[0].policy
    tenants = parse_shares("--tenants", arguments.tenants) if arguments.tenants else {}
    models = parse_shares("--model", arguments.model) if arguments.model else {next(iter(first.models)): 1.0}
    for model in models:
        for folder, loaded in zip(folders, policies, strict=True):
            if loaded.policy.resolve(model) is None:
                raise ReplayError(f"--model: {folder} has no '{model}'{suggestion(model, _names(loaded))}")
    common = {
        "tenants": tenants or dict.fromkeys(first.tenants, 1.0) or {NOBODY: 1.0},
        "models": models,
        "seed": arguments.seed,
        "speed": arguments.speed,
        "most": arguments.requests,
        "stream": {"all": True, "none": False, "recorded": None, None: None}[arguments.stream],
        "services": tuple(arguments.service),
        "faults": tuple(arguments.outage),
        "cache_tokens": arguments.cache_tokens,
        "also": tuple(map(str, also)),
    }
    return [Job(trace=arguments.trace, policies=folder, **common) for folder in folders]


def _names(loaded: Loaded) -> tuple[str, ...]:
    return (*loaded.policy.models,)


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    beside = {"run", "json", "html", "trace"}
    return {name: value for name, value in vars(arguments).items() if name not in beside}
