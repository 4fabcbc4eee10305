"""Judges whose ways are known: how far scores and preferences that are counted of them are from the truth.

    python -m benchmarks.online_evaluation [--times 2000]

Means and intervals are those of the page (``gateway.intervals``), preferences those of pairs that are asked about in
both orders (``gateway.evaluation.judge``); only the judge's replies are made up, and read as a model's are.
"""

from __future__ import annotations

import argparse
import random
import statistics

from benchmarks.rollouts import BAD, GOOD, WORSE_POINTS
from gateway.evaluation import judge
from gateway.intervals import wilson

BETTER, WORSE = 0.2, 0.3
"""The share of pairs in which the shadow's answer is better, and worse; of the others neither is."""
PAIRS = 1000


def score(draw: random.Random, points: tuple[int, ...]) -> float:
    given = draw.choices((1, 2, 3, 4, 5), points)[0]
    found = judge.points(f'Let me see. {{"why": "so", "score": {given}}}')
    if found is None:
        raise RuntimeError("its reply was not read")
    return found.score


def scores(times: int) -> None:
    print("| true mean | answers | interval covers it | its width, median |\n|---|--:|--:|--:|")
    for points in (GOOD, WORSE_POINTS, BAD):
        truth = sum(share * (given - 1) for given, share in enumerate(points, 1)) / 400
        for count in (50, 200, 1000):
            draw = random.Random(count)
            covered, widths = 0, []
            for _ in range(times):
                mean = sum(score(draw, points) for _ in range(count)) / count
                low, high = wilson(mean, count)
                covered += low <= truth <= high
                widths.append(high - low)
            print(
                f"| {truth:.3f} | {count:,} | {covered / times:.1%} | {statistics.median(widths):.3f} |",
                flush=True,
            )


def reply(draw: random.Random, truth: int, *, shadow_first: bool, bias: float) -> str | None:
    """``truth``: 1 where the shadow's is better. With the probability ``bias`` it names what it sees first."""
    word = "tie"
    if draw.random() < bias:
        word = "first"
    elif truth:
        word = "first" if (truth > 0) == shadow_first else "second"
    return judge.better(f'{{"better": "{word}"}}')


def preferences() -> None:
    print("| names the first without a look | asked | better | worse | agreement |\n|---|---|--:|--:|--:|")
    for bias in (0.0, 0.2, 0.5):
        draw = random.Random(7)
        truths = [
            1 if one < BETTER else -1 if one < BETTER + WORSE else 0
            for one in (draw.random() for _ in range(PAIRS))
        ]
        once, both = [], []
        for truth in truths:
            answer_first = reply(draw, truth, shadow_first=False, bias=bias)
            shadow_first = reply(draw, truth, shadow_first=True, bias=bias)
            once.append({"second": 1, "first": -1}.get(answer_first or "", 0))
            both.append(judge.preferred(answer_first, shadow_first) or 0)
        for name, found in (("once, the answer first", once), ("in both orders", both)):
            shares = [found.count(one) / PAIRS for one in (1, -1, 0)]
            print(f"| {bias:.0%} | {name} | " + " | ".join(f"{share:.1%}" for share in shares) + " |")
    told = [truths.count(one) / PAIRS for one in (1, -1, 0)]
    print("| the truth | | " + " | ".join(f"{share:.1%}" for share in told) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=2000)
    given = parser.parse_args()
    scores(given.times)
    print()
    preferences()


if __name__ == "__main__":
    main()
