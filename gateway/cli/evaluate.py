"""``tollgate evaluate``: models side by side before a set of cases whose answers are checked."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.lab.evaluate.evaluation import Evaluation, Plan
    from gateway.lab.evaluate.export.exporting import Exporting
    from gateway.lab.progress import Progress

KEY = "TOLLGATE_API_KEY"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="check models' answers to a set of cases",
        description="Ask models a set of cases through a running gateway's batches, check the answers, and compare the "
        "models: the first is the baseline. Started again it goes on where it was. docs/lab.md has the set's form. "
        "Exits with 1 where a model is worse than the baseline by more than --budget, beyond chance, 2 where there is "
        "nothing to compare, and 130 after Ctrl-C; the batches go on.",
    )
    parser.add_argument("set", metavar="SET", type=Path, help="JSON lines, a case each")
    recorded = parser.add_argument_group("a set of recorded traffic")
    recorded.add_argument(
        "--from-record",
        metavar="TRACE",
        type=Path,
        help="first write SET: cases of this traffic (`tollgate record export`), whose answers are the references",
    )
    recorded.add_argument("--sample", metavar="N", type=int, default=200, help="so many cases of it (200)")
    recorded.add_argument(
        "--rubric",
        metavar="TEXT",
        help="by which the judge grades texts; without it by similarity (--embedder)",
    )
    parser.add_argument(
        "--models", metavar="A[,B…]", required=True, help="models of the gateway, the baseline first"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the gateway (http://127.0.0.1:8000)")
    parser.add_argument(
        "--key-env", metavar="VARIABLE", default=KEY, help=f"the environment variable with the key ({KEY})"
    )
    parser.add_argument("--judge", metavar="MODEL", help="who grades by rubrics; not one that is evaluated")
    parser.add_argument(
        "--judge-params", metavar="JSON", default='{"temperature": 0}', help="of the judge's requests"
    )
    parser.add_argument(
        "--pairwise", action="store_true", help="have the judge also compare answers, in both orders"
    )
    parser.add_argument("--embedder", metavar="MODEL", help="whose embeddings say how similar texts are")
    parser.add_argument(
        "--budget",
        metavar="X",
        default="0",
        help="how much worse a model may be: 2%% or 0.02 of the cases (0)",
    )
    parser.add_argument("--confidence", metavar="X", default="95%", help="of what is said of models (95%%)")
    parser.add_argument(
        "--run", dest="name", metavar="NAME", default="", help="a name of its own has the cases asked anew"
    )
    parser.add_argument("--answers", metavar="FILE", type=Path, help="also write each answer as a JSON line")
    parser.add_argument(
        "--export",
        choices=("langfuse", "phoenix", "langsmith", "otel"),
        help="also write set and results as this tool imports them",
    )
    parser.add_argument(
        "--export-to",
        metavar="WHERE",
        help="the tool's URL, or a file (SET.TOOL.csv; otel: SET.otel.jsonl); its key is in the variables of its SDK",
    )
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # Serving loads this file, too, and nothing of the lab.
    from gateway.lab.evaluate.errors import EvaluationError
    from gateway.lab.evaluate.export.experiment import experiments
    from gateway.lab.evaluate.summary import Bounds, summarised
    from gateway.lab.evaluate.tables import as_text, write_answers
    from gateway.lab.progress import Progress

    try:
        plan, source = _plan(arguments)
        to = _exporting(arguments)
        bounds = Bounds(_share("--budget", arguments.budget), _share("--confidence", arguments.confidence))
        if not 0.5 <= bounds.confidence < 1:
            raise EvaluationError("--confidence: from 50% to below 100%")
        evaluation = asyncio.run(_evaluate(arguments, plan, plan.name(source), Progress()))
        if arguments.answers is not None:
            with arguments.answers.open("w", encoding="utf-8") as file:
                write_answers(evaluation, file)
        if to is not None:
            to.run(experiments(evaluation, arguments.set.stem, plan.name(source)))
            print(f"set and results are in {to.where}", file=sys.stderr)
    except EvaluationError as error:
        print(f"tollgate evaluate: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tollgate evaluate: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nIts batches go on; the same command reads their answers.", file=sys.stderr)
        return 130
    told = summarised(evaluation, bounds)
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        for line in as_text(evaluation, told):
            print(line)
    return int(any(comparison["regression"] for comparison in told["comparisons"]))


def _plan(arguments: argparse.Namespace) -> tuple[Plan, bytes]:
    from gateway.lab.evaluate.errors import SetError
    from gateway.lab.evaluate.evaluation import Plan
    from gateway.lab.evaluate.reader import needs, read_set

    if arguments.from_record is not None:
        _write_set(arguments)
    cases = read_set(arguments.set)
    models = [name for name in arguments.models.split(",") if name]
    if not models or len(models) != len(set(models)):
        raise SetError("--models: one name or more, each once, as small,large")
    for option in needs(cases):
        if getattr(arguments, option) is None:
            raise SetError(
                f"{arguments.set}: some of its checks need --{option} MODEL, a model of the gateway"
            )
    if arguments.pairwise and "judge" not in needs(cases):
        raise SetError(
            '--pairwise: the judge compares by a check\'s rubric, and the set has none: add {"judge": …}'
        )
    if arguments.judge in models:
        raise SetError(f"--judge: {arguments.judge} would grade itself; models prefer their own answers")
    try:
        params = json.loads(arguments.judge_params)
    except ValueError as error:
        raise SetError(f"--judge-params: no JSON: {error}") from None
    if not isinstance(params, dict):
        raise SetError("--judge-params: a JSON object")
    plan = Plan(
        cases,
        models,
        judge=arguments.judge,
        pairwise=arguments.pairwise,
        judge_params=params,
        embedder=arguments.embedder,
        run=arguments.name,
    )
    return plan, arguments.set.read_bytes()


def _exporting(arguments: argparse.Namespace) -> Exporting | None:
    from gateway.lab.evaluate.errors import SetError
    from gateway.lab.evaluate.export.exporting import exporting

    if arguments.export is None:
        if arguments.export_to is not None:
            raise SetError("--export-to: say to which tool, by --export")
        return None
    return exporting(arguments.export, arguments.export_to, arguments.set, os.environ)


def _write_set(arguments: argparse.Namespace) -> None:
    from gateway.lab.evaluate.errors import SetError
    from gateway.lab.evaluate.from_record import Wanted, write_set

    if arguments.sample < 1:
        raise SetError("--sample: one case or more")
    wanted = Wanted(arguments.sample, arguments.rubric)
    count = write_set(arguments.from_record, arguments.set, wanted)
    print(f"{arguments.set}: {count} cases of recorded traffic", file=sys.stderr)


def _share(option: str, text: str) -> float:
    from gateway.lab.evaluate.errors import SetError

    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SetError(f"{option}: {text!r} is no share; write it as 2% or 0.02")
    return share


async def _evaluate(arguments: argparse.Namespace, plan: Plan, name: str, progress: Progress) -> Evaluation:
    from gateway.lab.evaluate.errors import SetError
    from gateway.lab.evaluate.evaluation import evaluate
    from gateway.lab.evaluate.gateway_batches import open_gateway

    key = os.environ.get(arguments.key_env, "")
    if not key:
        raise SetError(f"put a key of the gateway into the environment variable {arguments.key_env}")
    if not arguments.url.startswith(("http://", "https://")):
        raise SetError(f"--url: {arguments.url!r}: write it as http://127.0.0.1:8000")
    try:
        async with open_gateway(arguments.url.removesuffix("/").removesuffix("/v1"), key) as gateway:
            return await evaluate(
                plan,
                name,
                gateway,
                lambda what, done, of: progress.show(done / max(1, of), f"{what} {done}/{of}"),
            )
    finally:
        progress.wipe()
