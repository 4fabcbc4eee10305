"""May a follow-up be answered from the cache in another conversation? Three keys beside what the gateway does.

    python -m benchmarks.follow_ups [--data DIR] [--pairs 400]     # a minute on one core

A conversation is a question, its answer, and a follow-up that says nothing by itself ("And in winter?"). The cache has
one that begins with the first question of a pair from ``question_pairs.jsonl``; another comes that begins with the
second, and ends with the same follow-up. It should be served where the pair's label says that one answer serves both,
and is false where the label says otherwise, or where the first question is any other. The verifier was trained on these
pairs: what it decides by flatters. Besides, answers are left out, and a follow-up may be about them: no key here is as
safe as it looks.

- *same conversation*: all earlier turns must be equal, which is what the gateway does.
- *last question alone*: what a cache does that ignores the conversation.
- *joined*: the first question and the follow-up as one text, for the verifier to judge.
- *turn by turn*: each question must pass the verifier by itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.semantic import DATA, embed, read
from gateway.sidecar.models.embedder import Embedder, load
from gateway.sidecar.semantic.verifier import Verifier

FOLLOW_UPS = (
    *("And in winter?", "Why?", "Why is that?", "How much does it cost?", "Can you give me an example?"),
    *("What about children?", "Is there a cheaper way?", "How long does it take?", "Which one is the best?"),
    *("Is it safe?", "Explain it in simple words.", "And in India?", "What else?", "Are you sure?"),
    *("How do I start?", "What are the disadvantages?"),
)
BUDGETS = (0.05, 0.1)

Verdicts = np.ndarray
Judge = Callable[[Sequence[str], Sequence[str]], Verdicts]


def conversations(
    rows: Sequence[dict[str, object]], count: int
) -> tuple[list[str], list[str], list[str], np.ndarray]:
    """First questions of what is stored and of what comes, their follow-ups, and 1 where both are the same, 0 where
    their label says that they differ, -1 where they have nothing to do with each other."""
    random = np.random.default_rng(0)
    chosen = random.choice(len(rows), count, replace=False)
    stored = [str(rows[i]["a"]) for i in chosen]
    coming = [str(rows[i]["b"]) for i in chosen]
    label = [int(str(rows[i]["same"])) for i in chosen]
    others = np.roll(np.arange(count), 1)
    return (
        stored * 2,
        coming + [coming[i] for i in others],
        [FOLLOW_UPS[i % len(FOLLOW_UPS)] for i in range(count)] * 2,
        np.array(label + [-1] * count),
    )


def judge_by(verifier: Verifier, embedder: Embedder, budget: float) -> Judge:
    threshold = verifier.threshold(budget)

    def judge(stored: Sequence[str], coming: Sequence[str]) -> Verdicts:
        u, v = embed(embedder, stored), embed(embedder, coming)
        return np.array(
            [
                verifier.judge(b, a, v[at], u[at], threshold=threshold).reason is None
                for at, (a, b) in enumerate(zip(stored, coming, strict=True))
            ]
        )

    return judge


def keys(
    stored: Sequence[str], coming: Sequence[str], follow_ups: Sequence[str], judge: Judge
) -> dict[str, Verdicts]:
    """Whether each conversation is served, by key."""
    return {
        "same conversation": np.array([a == b for a, b in zip(stored, coming, strict=True)]),
        "last question alone": np.ones(len(stored), bool),
        "joined": judge(
            [f"{first} {last}" for first, last in zip(stored, follow_ups, strict=True)],
            [f"{first} {last}" for first, last in zip(coming, follow_ups, strict=True)],
        ),
        # The follow-ups are equal, and pass.
        "turn by turn": judge(stored, coming),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = read(options.data / "question_pairs.jsonl")
    stored, coming, follow_ups, label = conversations(rows, min(options.pairs, len(rows)))
    verifier, embedder = Verifier.load(), load("builtin")
    print("| key | budget | same first question, served | another, served | any other, served |")
    print("|---|---|---|---|---|")
    report = {}
    for budget in BUDGETS:
        for name, served in keys(stored, coming, follow_ups, judge_by(verifier, embedder, budget)).items():
            if budget != BUDGETS[0] and name in ("same conversation", "last question alone"):
                continue
            shares = [float(served[label == kind].mean()) for kind in (1, 0, -1)]
            cells = " | ".join(f"{share:.1%}" for share in shares)
            by_verifier = name in ("joined", "turn by turn")
            print(f"| {name} | {f'{budget:.0%}' if by_verifier else '–'} | {cells} |")
            report[f"{name} {budget:g}"] = shares
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
