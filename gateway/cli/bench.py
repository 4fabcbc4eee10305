"""``tollgate bench``: how fast model servers are under a load, side by side."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.lab.bench.session import Report

SLO_EXAMPLE = "ttft=500ms,itl=100ms,e2e=10s"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure model servers under a load",
        description="Load model servers that speak OpenAI's chat completions or completions or Anthropic's messages, "
        "and report their latencies, throughput and errors, side by side. Each request is sent once: what fails is "
        "counted. docs/lab.md defines the figures. Exits with 0, or with 1 where a server does not answer, or "
        "--slo-share is not reached, 2 for arguments that are wrong, and 130 after Ctrl-C, which still reports.",
    )
    parser.add_argument(
        "servers",
        metavar="[NAME=]URL",
        nargs="+",
        help="a base URL (http://127.0.0.1:8000/v1), or the whole one of an endpoint; several are asked in turns",
    )
    _add_asking(parser.add_argument_group("what is asked"))
    _add_load(parser.add_argument_group("the load"))
    _add_judging(parser.add_argument_group("the judgement"))
    form = parser.add_argument_group("the report").add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON rather than a table")
    form.add_argument("--csv", action="store_true", help="print CSV rather than a table")
    parser.add_argument("--html", metavar="FILE", help="also write one HTML file, with plots")
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="also write what tollgate plan --calibration reads; with --concurrency 1,4,16",
    )
    parser.add_argument(
        "--samples", metavar="FILE", help="also write a CSV file with a line for each request"
    )
    parser.set_defaults(run=run)


def _add_asking(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        metavar="[NAME=]MODEL",
        action="append",
        default=[],
        help="of all servers, or of the one of that name (the one that each lists)",
    )
    group.add_argument(
        "--api", choices=("chat", "completions", "messages"), help="by the URL's path, or chat"
    )
    group.add_argument(
        "--key-env",
        metavar="[NAME=]VARIABLE",
        action="append",
        default=[],
        help="the environment variable that holds the key",
    )
    group.add_argument(
        "--header", metavar="'NAME: VALUE'", action="append", default=[], help="sent with each request"
    )
    group.add_argument("--whole", action="store_true", help="do not stream answers")
    group.add_argument(
        "--extra-body", metavar="JSON", default="{}", help="more of each body: '{\"temperature\": 0}'"
    )
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        help="have answers as long as they may be, where the server knows ignore_eos (vLLM, Tollgate's engine)",
    )
    group.add_argument(
        "--prompt-tokens",
        metavar="LENGTH",
        help="128, uniform:64-512, or lognormal:MEDIAN,SIGMA[,MOST] (256)",
    )
    group.add_argument(
        "--output-tokens", metavar="LENGTH", help="how long answers may be, in the same forms (128)"
    )
    group.add_argument(
        "--prefix-tokens", metavar="N", type=int, default=0, help="put a shared text before prompts"
    )
    group.add_argument("--prefixes", metavar="N", type=int, default=1, help="how many different ones (1)")
    group.add_argument("--turns", metavar="N", type=int, default=1, help="of each conversation (1)")
    group.add_argument(
        "--think-time", metavar="SPAN", default="0s", help="between an answer and the next turn (0s)"
    )
    group.add_argument(
        "--prompts",
        metavar="FILE",
        help="JSON lines with prompt, turns or messages, in place of made-up ones",
    )
    group.add_argument(
        "--tokens-per-word",
        metavar="X",
        type=float,
        help="of the made-up prompts (measured at the first server)",
    )
    group.add_argument("--seed", metavar="N", type=int, default=0, help="of lengths, words and arrivals (0)")


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--concurrency",
        metavar="N[,N…]",
        help="so many at a time, each followed by the next (8); with --rate, at most so many",
    )
    group.add_argument(
        "--rate",
        metavar="R",
        help="requests a second, whatever the server does: 8, or 2,4,8 in turn, or a ramp 1-20",
    )
    group.add_argument(
        "--arrivals",
        metavar="KIND",
        default="poisson",
        help="poisson, constant, gamma:SHAPE or burst:SIZE (poisson)",
    )
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="the times and lengths of Azure's or Mooncake's traces, or one's own; with --rate or --concurrency its "
        "lengths alone",
    )
    group.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="of the trace: 2 takes half the time (1)"
    )
    group.add_argument(
        "--length-scale", metavar="X", type=float, default=1.0, help="the trace's lengths, times this (1)"
    )
    group.add_argument(
        "--requests", metavar="N", type=int, help="how many (100, where no --duration is given)"
    )
    group.add_argument("--duration", metavar="SPAN", help="for how long they are sent: 30s, 5m")
    group.add_argument(
        "--warm-up",
        metavar="N|SPAN",
        default="5",
        help="the first ones, which are not counted: 10 or 20s (5)",
    )
    group.add_argument("--timeout", metavar="SPAN", default="10m", help="of one request (10m)")
    group.add_argument(
        "--rounds", metavar="N", type=int, default=1, help="ask all so many times, every other in reverse (1)"
    )


def _add_judging(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--slo", metavar="BOUNDS", help=f"what a good answer keeps: {SLO_EXAMPLE}")
    group.add_argument(
        "--slo-share",
        metavar="X",
        type=float,
        help="the share of requests that must be good, or the command exits with 1; for the knee 0.95",
    )
    group.add_argument(
        "--find-knee", action="store_true", help="search for the highest rate at which --slo-share are good"
    )
    group.add_argument(
        "--max-rate", metavar="R", type=float, default=1000.0, help="the search ends there (1000)"
    )
    group.add_argument(
        "--repeats", metavar="N", type=int, default=3, help="trials of each rate, of which most decide (3)"
    )
    group.add_argument(
        "--tolerance",
        metavar="X",
        type=float,
        default=0.1,
        help="how closely the knee is found (0.1: within 10 %%)",
    )


def run(arguments: argparse.Namespace) -> int:
    # Serving loads this file, too, and nothing of the lab.
    from gateway.lab.bench import calibration
    from gateway.lab.bench.errors import BenchError, OptionError
    from gateway.lab.bench.options import given, plan_of, writable
    from gateway.lab.bench.session import run_session
    from gateway.lab.bench.tables import as_json
    from gateway.lab.progress import Progress

    try:
        plan = plan_of(arguments, os.environ)
        writable((arguments.html, arguments.samples, arguments.calibration))
        if arguments.calibration is not None:
            calibration.check(plan)
        report = run_session(plan, Progress())
    except BenchError as error:
        print(f"tollgate bench: {error}", file=sys.stderr)
        return 2 if isinstance(error, OptionError) else 1
    _print(arguments, report, as_json(report, given(arguments)))
    if report.interrupted:
        return 130
    failing = [result for result in report.results if not any(sample.ok for sample in result.counted)]
    if report.knees:
        return 0 if all(search.held for search in report.knees.values()) else 1
    if arguments.slo_share is not None:
        failing += [result for result in report.results if result.share < arguments.slo_share]
    return 1 if failing else 0


def _print(arguments: argparse.Namespace, report: Report, told: dict[str, Any]) -> None:
    from gateway.lab.bench.calibration import as_calibration
    from gateway.lab.bench.html_page import as_html
    from gateway.lab.bench.tables import as_csv, as_text, write_samples

    if arguments.html is not None:
        Path(arguments.html).write_text(as_html(report, told), encoding="utf-8")
    if arguments.calibration is not None:
        Path(arguments.calibration).write_text(json.dumps(as_calibration(report)), encoding="utf-8")
    if arguments.samples is not None:
        with open(arguments.samples, "w", newline="", encoding="utf-8") as file:
            write_samples(report.results, file)
    if arguments.json:
        print(json.dumps(told, indent=2))
    elif arguments.csv:
        print(as_csv(told["results"]), end="")
    else:
        for line in as_text(report, told["results"]):
            print(line)
