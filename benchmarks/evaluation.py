"""How often ``tollgate evaluate`` is wrong: false alarms and what is found, of models with known error rates.

``python -m benchmarks.evaluation`` draws 1,000 evaluations of each row and prints docs/lab.md's table. ``shared`` is
how much of the errors is the cases': 0 is two models that err independently, 0.5 has half of the baseline's errors
made by the candidate, too. ``--gateway 20`` also runs the first two rows twenty times each through a gateway on this
machine: batches, scripted backends, checks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from random import Random

from gateway.lab.evaluate.evaluation import Plan, evaluate
from gateway.lab.evaluate.gateway_batches import open_gateway
from gateway.lab.evaluate.reader import read_set
from gateway.lab.evaluate.statistics import Pairs, difference_bound, mcnemar
from gateway.lab.evaluate.summary import Bounds, summarised

ROWS = (
    # baseline's errors, candidate's, shared, cases, budget
    (0.05, 0.05, 0.0, 840, 0.0),
    (0.05, 0.08, 0.0, 840, 0.0),
    (0.05, 0.05, 0.5, 840, 0.0),
    (0.05, 0.08, 0.5, 840, 0.0),
    (0.05, 0.05, 0.0, 200, 0.0),
    (0.05, 0.08, 0.0, 200, 0.0),
    (0.30, 0.30, 0.5, 200, 0.0),
    (0.30, 0.40, 0.5, 200, 0.0),
    (0.05, 0.07, 0.0, 840, 0.02),
    (0.05, 0.11, 0.0, 840, 0.02),
)


def drawn(random: Random, old: float, new: float, shared: float, cases: int) -> Pairs:
    counts = [0, 0, 0, 0]
    # Beside the baseline's error the candidate errs with this chance, and alone so that it errs as often as it should.
    beside = new + shared * (1 - new)
    alone = (new - old * beside) / (1 - old)
    for _ in range(cases):
        wrong = random.random() < old
        counts[2 * wrong + (random.random() < (beside if wrong else alone))] += 1
    return Pairs(both=counts[0], lost=counts[1], gained=counts[2], neither=counts[3])


def table(runs: int) -> None:
    print(f"{runs} evaluations a row\n")
    print("| errors | shared | cases | budget | regression said | McNemar p < 0.05 |")
    print("|---|---|---|---|---|---|")
    for old, new, shared, cases, budget in ROWS:
        random = Random(f"{old} {new} {shared} {cases}")
        pairs = [drawn(random, old, new, shared, cases) for _ in range(runs)]
        said = sum(difference_bound(one, 0.95) < -budget for one in pairs)
        apart = sum(mcnemar(one) < 0.05 for one in pairs)
        print(
            f"| {old:.0%} and {new:.0%} | {shared} | {cases} | {budget:.0%} | {said / runs:.1%} | {apart / runs:.1%} |"
        )


async def through_a_gateway(runs: int, cases: int = 840) -> None:
    from tests.serving import KEY, a_policy, serving

    print(f"\nThrough a gateway, {runs} evaluations of {cases} cases each:")
    for old, new in ((0.05, 0.05), (0.05, 0.08)):
        said = 0
        for seed in range(runs):
            random = Random(seed)
            wrong = {
                name: {place for place in range(cases) if random.random() < share}
                for name, share in (("old", old), ("new", new))
            }
            policy = a_policy("http://127.0.0.1:1/v1")
            policy["backends"] = {
                name: {
                    "kind": "fake",
                    "script": [
                        *({"match": f"case {place}.", "reply": "wrong"} for place in sorted(places)),
                        {"reply": "right"},
                    ],
                }
                for name, places in wrong.items()
            }
            policy["models"] = {name: {"targets": [{"backend": name, "model": name}]} for name in wrong}
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "set.jsonl"
                lines = (
                    {"prompt": f"case {place}.", "checks": [{"exact": "right"}]} for place in range(cases)
                )
                path.write_text("\n".join(map(json.dumps, lines)))
                plan = Plan(read_set(path), ["old", "new"])
                async with (
                    serving(Path(folder) / "policies", policy) as gateway,
                    open_gateway(gateway.url, KEY, poll=0.05) as batches,
                ):
                    told = summarised(await evaluate(plan, "run", batches, lambda *_: None), Bounds())
            passed = [model["passed"] for model in told["models"]]
            if passed != [cases - len(places) for places in wrong.values()]:
                raise SystemExit(f"counted {passed} passes, but scripted others")
            said += told["comparisons"][0]["regression"]
        print(f"{old:.0%} and {new:.0%}: regression said in {said} of {runs}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--gateway", type=int, metavar="RUNS", default=0)
    arguments = parser.parse_args()
    table(arguments.runs)
    if arguments.gateway:
        asyncio.run(through_a_gateway(arguments.gateway))


if __name__ == "__main__":
    main()
