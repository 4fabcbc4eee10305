"""``tollgate plan``: which machines a model needs for given traffic, and what they cost."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli import init
from gateway.cli.usage import ledger_of, usage_since
from gateway.databases.database import DatabaseError
from gateway.policy.problems import PolicyError
from gateway.policy.schema import parse_duration
from gateway.settings import SettingsError

if TYPE_CHECKING:
    from gateway.lab.plan.workload import Volume

EXAMPLE = "params=7B,layers=32,kv_heads=8,head_dim=128"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "plan",
        help="which machines a model needs for given traffic, and what they cost",
        description="Find the cheapest replicas, tensor parallelism and quantization that keep targets of latency, by "
        "arithmetic and by the engine's own scheduler on a clock of the machine. Of a model only headers are read. "
        "docs/lab.md has the formulas. Exits with 0, with 1 where nothing keeps the targets, 2 for arguments that are "
        "wrong, and 130 after Ctrl-C.",
    )
    parser.add_argument(
        "--model",
        metavar="PATH",
        required=True,
        help=f"a folder with config.json, a GGUF file, or numbers ({EXAMPLE})",
    )
    _add_traffic(parser.add_argument_group("the traffic"))
    _add_machines(parser.add_argument_group("the machines"))
    _add_targets(parser.add_argument_group("the targets"))
    parser.add_argument(
        "--against", metavar="MODEL", action="append", default=[], help="break-even against its price"
    )
    parser.add_argument(
        "--sensitivity", action="store_true", help="also say what it costs if traffic or targets are others"
    )
    parser.add_argument(
        "--sample", metavar="N", type=int, default=1500, help="requests of one simulation, at most (1500)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")
    parser.add_argument("--html", metavar="FILE", help="also write one HTML file, with plots")
    parser.set_defaults(run=run)


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="recorded traffic (Azure's, Mooncake's, LiteLLM's, one's own); - is the input",
    )
    group.add_argument(
        "--of-model", metavar="NAME", help="of the trace and the ledger, this model's requests alone"
    )
    group.add_argument(
        "--rate", metavar="R", type=float, help="requests a second; of a trace then its lengths alone"
    )
    group.add_argument(
        "--speed", metavar="X", type=float, default=1.0, help="of the trace: 2 is twice the traffic (1)"
    )
    group.add_argument(
        "--length-scale", metavar="X", type=float, default=1.0, help="the trace's lengths, times this (1)"
    )
    group.add_argument(
        "--prompt-tokens", metavar="LENGTH", help="1000, uniform:64-512, or lognormal:MEDIAN,SIGMA[,MOST]"
    )
    group.add_argument("--output-tokens", metavar="LENGTH", help="of answers, in the same forms")
    group.add_argument(
        "--ledger",
        metavar="WHERE",
        nargs="?",
        const="",
        help="take the month's volume from the ledger: the policy's, or an SQLite file or postgresql://…",
    )
    group.add_argument("--policies", metavar="DIR", help="the policy folder whose ledger that is (policies)")
    group.add_argument("--since", metavar="SPAN", default="30d", help="how far back in the ledger (30d)")
    group.add_argument(
        "--peak",
        metavar="X",
        type=float,
        default=3.0,
        help="busiest hour by the mean, of a ledger's volume (3)",
    )
    group.add_argument(
        "--seed", metavar="N", type=int, default=0, help="of lengths and arrivals that are drawn (0)"
    )


def _add_machines(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--chip", metavar="NAME[=USD],…", help="of the table, with another price an hour (all)"
    )
    group.add_argument("--chips", metavar="FILE", help="YAML with rows of your own")
    group.add_argument("--tensor-parallel", metavar="N,…", help="chips that share a copy (1,2,4,8)")
    group.add_argument(
        "--quantization",
        metavar="NAME,…",
        help="of weights: bf16, fp16, fp8, int8, int4 (as they are stored, else bf16,fp8,int4)",
    )
    group.add_argument(
        "--kv-dtype", metavar="NAME", default="bf16", help="of keys and values: bf16, fp8, int8 (bf16)"
    )
    group.add_argument("--calibration", metavar="FILE", help="of tollgate bench: what a machine really does")
    group.add_argument(
        "--calibrated-on",
        metavar="CHIP[,tp=N][,QUANTIZATION]",
        help="where that was measured (the only candidate)",
    )
    group.add_argument("--max-num-seqs", metavar="N", type=int, default=256, help="the engine's (256)")
    group.add_argument(
        "--max-batched-tokens", metavar="N", type=int, default=2048, help="the engine's (2048)"
    )
    group.add_argument(
        "--max-model-len", metavar="N", type=int, help="longest request that must fit (the longest there is)"
    )
    group.add_argument(
        "--max-itl-ratio", metavar="X", type=float, help="the engine's (what the targets leave room for)"
    )


def _add_targets(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slo", metavar="BOUNDS", default="ttft=1s,itl=50ms", help="as in tollgate bench (ttft=1s,itl=50ms)"
    )
    group.add_argument(
        "--slo-share", metavar="X", type=float, default=0.95, help="of the requests that keep them (0.95)"
    )


def run(arguments: argparse.Namespace) -> int:
    # Serving loads this file, too, and nothing of the lab.
    from gateway.lab.plan.calibration import read_calibration
    from gateway.lab.plan.errors import PlanError
    from gateway.lab.plan.html_page import as_html
    from gateway.lab.plan.options import given, question, writable
    from gateway.lab.plan.plan import plan
    from gateway.lab.plan.tables import as_json, as_text
    from gateway.lab.progress import Progress

    progress = Progress()
    try:
        writable(arguments.html)
        asked = question(arguments, None if arguments.ledger is None else _volume(arguments))
        found = plan(
            asked,
            None if arguments.calibration is None else read_calibration(arguments.calibration),
            sensitivity=arguments.sensitivity or arguments.html is not None,
            progress=progress.show,
        )
    except (PlanError, PolicyError, SettingsError, DatabaseError) as error:
        progress.wipe()
        print(f"tollgate plan: {error}", file=sys.stderr)
        return 2
    finally:
        progress.wipe()
    told = as_json(found, given(arguments))
    if arguments.html is not None:
        Path(arguments.html).write_text(as_html(found, told), encoding="utf-8")
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        for line in as_text(found):
            print(line)
    return 0 if found.best is not None else 1


def _volume(arguments: argparse.Namespace) -> Volume:
    """Of a month, by the ledger's last ``--since``. Raises ``PlanError``."""
    from gateway.lab.plan.errors import PlanError
    from gateway.lab.plan.workload import MONTH, Volume

    try:
        span = parse_duration(arguments.since)
    except ValueError:
        raise PlanError(f"--since: {arguments.since!r} is no span; write one as 12h or 30d") from None
    database = ledger_of(arguments.ledger or None, init.folder(arguments.policies, os.environ))
    now = time.time()
    rows = usage_since(database, ("model", "day"), now - span)
    rows = [row for row in rows if arguments.of_model in (None, row["names"][0])]
    sums = {
        name: sum(row[name] for row in rows)
        for name in ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    }
    if not sums["prompt_tokens"]:
        whose = f" of the model '{arguments.of_model}'" if arguments.of_model else ""
        raise PlanError(f"--ledger: no requests{whose} in the last {arguments.since} in {database}")
    # A ledger may be younger than the span.
    days = len({row["names"][1] for row in rows})
    month = MONTH / min(span, days * 86_400.0)
    return Volume(
        sums["requests"] * month,
        sums["prompt_tokens"] * month,
        sums["completion_tokens"] * month,
        sums["cached_tokens"] * month,
        f"the ledger's last {days} days with requests",
    )
