"""The gateway with real models: what a cascade between Qwen2.5-Coder 0.5B and 1.5B is worth, and the 1.5B as a judge.

    python -m benchmarks.real_models                        # all of it: an hour on two idle cores
    python -m benchmarks.real_models --limit 100            # a hundred prompts of each set
    python -m benchmarks.real_models --offline              # only what is known already; no engine is started
    python -m benchmarks.real_models --only judge

The models are fetched as ``make serve ENGINE_MODEL=…`` does (``scripts/models.py``). Each answers 300 prompts of coding
and 300 of other things once, at temperature 0, through the engine; what they answered is kept in ``--answers``, so that
a run can be interrupted and goes on where it ended. Everything else is computed from that by the gateway's own code.

Code that the models write is run, in processes with little time and memory that can write no file. They are no
sandbox against malice: the models are these two alone, and so is what they are asked.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np

from benchmarks.real_models import judging, prompts, tables, through_gateway
from benchmarks.real_models.answers import Answer, Answers
from benchmarks.real_models.checks import right
from benchmarks.real_models.prompts import SETS, Prompt
from benchmarks.real_models.strategies import Outcomes, bar_within

ROOT = Path(__file__).parents[2]
MODELS = {"qwen2.5-coder-0.5b": 494_032_768, "qwen2.5-coder-1.5b": 1_543_714_304}
"""With their parameters: the small one, the large one."""
PARTS = ("cascade", "gateway", "judge")
BUDGET = 0.8
"""Of the point that is asked of a running gateway, as a share of the large model's cost."""


def fetched(name: str) -> Path:
    """The model's file."""
    command = [sys.executable, str(ROOT / "scripts" / "models.py"), name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return Path(done.stdout.strip())


def ask_all(answers: Answers, chosen: Sequence[Prompt], *, offline: bool) -> None:
    """Starts an engine if there is anything that was not asked before."""
    new = [one for one in chosen if answers.known(one.messages, one.max_tokens) is None]
    if not new or offline:
        return
    print(f"{answers.name}: asking {len(new)} prompts", file=sys.stderr)

    async def ask() -> None:
        await asyncio.gather(*(answers.ask(one.messages, one.max_tokens) for one in new))

    with answers.serving():
        asyncio.run(ask())


def outcomes_of(chosen: Sequence[Prompt], both: Sequence[Answers]) -> Outcomes:
    """Up to the first prompt that a model has yet to answer: short answers are there sooner than long ones."""
    rows: list[tuple[Prompt, Answer, Answer]] = []
    for one in chosen:
        small, large = (answers.known(one.messages, one.max_tokens) for answers in both)
        if small is None or large is None:
            break
        rows.append((one, small, large))
    if not rows:
        raise SystemExit("neither model has answered: run this without --offline")
    each, of_small, of_large = zip(*rows, strict=True)
    with ThreadPool(2) as pool:
        marks = [
            pool.starmap(right, [(answer.text, one.check) for answer, one in zip(given, each, strict=True)])
            for given in (of_small, of_large)
        ]
    parameters = tuple(MODELS.values())
    return Outcomes.of(each, (of_small, of_large), (marks[0], marks[1]), (parameters[0], parameters[1]))


def ask_gateway(outcomes: Outcomes, both: Sequence[Answers], count: int) -> str:
    """The bar is chosen on one half of the prompts; ``count`` of the other half are asked."""
    held = np.flatnonzero(outcomes.halves == 1)[:count]
    bar = bar_within(BUDGET, outcomes, outcomes.halves == 0)
    chosen = [outcomes.prompts[i] for i in held]
    with ExitStack() as stack:
        engines = [(stack.enter_context(answers.serving()), answers.name) for answers in both]
        url = stack.enter_context(through_gateway.gateway(engines[0], engines[1], bar))
        served = asyncio.run(through_gateway.ask(url, chosen))
    marks = [right(one.text, prompt.check) for one, prompt in zip(served, chosen, strict=True)]
    return tables.served(bar, served, marks, outcomes, held)


def judge(answers: Answers, data: Path, each: int, *, offline: bool) -> str:
    """A table of the judge's verdicts beside the labels."""
    texts = judging.texts(data, each)
    with ExitStack() as stack:
        if not offline:
            stack.enter_context(answers.serving())
        found = asyncio.run(judging.verdicts(texts, answers))
    return tables.verdicts(texts, found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--limit", type=int, default=300, help="prompts of each set, chosen by lot")
    parser.add_argument("--through-gateway", type=int, default=60, help="prompts that the gateway is asked")
    parser.add_argument("--texts", type=int, default=judging.EACH, help="of each source and label, to judge")
    parser.add_argument("--offline", action="store_true", help="no engine is started: what is known counts")
    parser.add_argument("--answers", type=Path, default=ROOT / "models" / "answers")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="labelled texts")
    options = parser.parse_args()
    ask = partial(ask_all, offline=options.offline)
    both = [Answers(fetched(name), options.answers) for name in MODELS]
    if "cascade" in options.only or "gateway" in options.only:
        sets = {name: prompts.read(name)[: options.limit] for name in SETS}
        for answers in both:
            ask(answers, [one for pair in zip(*sets.values(), strict=True) for one in pair])
        outcomes = {name: outcomes_of(chosen, both) for name, chosen in sets.items()}
        if "cascade" in options.only:
            for name, each in outcomes.items():
                print(tables.cascade(name, each), end="\n\n", flush=True)
        if "gateway" in options.only and not options.offline:
            print(ask_gateway(outcomes["coding"], both, options.through_gateway), end="\n\n", flush=True)
    if "judge" in options.only:
        if (options.data / "xstest.jsonl").exists():
            print(judge(both[1], options.data, options.texts, offline=options.offline))
        else:
            print(f"judge: left out, as {options.data} has no labelled texts (--data)", file=sys.stderr)


if __name__ == "__main__":
    main()
