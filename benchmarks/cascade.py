"""How much traffic can a small model take before answers suffer? The complexity classifier's cost-quality curve.

    python -m benchmarks.cascade [--compare] [--json FILE]   # half a minute on one core, --compare 90 s
    python -m benchmarks.cascade --graded                    # how demanding requests of all kinds are; seconds

The data and the classifier are those of ``training/complexity.py``. Three ways to keep training and test apart: five
folds by the hash of the text; ten folds that each leave out whole tasks; and one half against the other. Two
definitions of quality, as shares of what the large model alone solves: *kept*, the questions the large model solves
that are still solved, and *solved*, all questions that are solved, those that only the small model gets right included.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from benchmarks.graded import Graded
from benchmarks.graded import tables as graded_tables
from gateway.cascade.complexity import ComplexityClassifier
from training.complexity import DATA, Array, Curve, Rows, cross_validated, fit, quantiles

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def by_task(rows: Rows, folds: Array) -> Array:
    """What knowing the task, and nothing of the question, would tell: its failure rate in the other folds."""
    tasks = np.array(rows.tasks)
    return np.array(
        [rows.lost[(tasks == task) & (folds != fold)].mean() for task, fold in zip(tasks, folds, strict=True)]
    )


def evaluate(rows: Rows, *, compare: bool) -> dict[str, Curve]:
    """The curves by name."""
    five, tasks = rows.folds(5), rows.task_folds(10)
    scores = {"5 folds": cross_validated(rows, five), "tasks left out": cross_validated(rows, tasks)}
    if compare:
        scores |= {
            "shape only, 5 folds": cross_validated(rows, five, use_words=False),
            "shape only, tasks left out": cross_validated(rows, tasks, use_words=False),
            "words only, 5 folds": cross_validated(rows, five, use_shape=False),
            "words only, tasks left out": cross_validated(rows, tasks, use_shape=False),
            "task known, 5 folds": by_task(rows, five),
            "shortest first": rows.shape[:, 0],
        }
    curves = {"random": Curve.at_random(rows.small, rows.large)}
    curves |= {name: Curve.of(score, rows.small, rows.large) for name, score in scores.items()}
    return curves


def held_out_half(rows: Rows) -> tuple[dict[str, Curve], dict[float, float]]:
    """Trained on one half, tested on the other; and what share of the other half is ``below`` each threshold."""
    folds = rows.folds(10)
    train, test = folds < 5, folds >= 5
    odds = cross_validated(_part(rows, train), _part(rows, train).folds(5))
    classifier = ComplexityClassifier(fit(rows, train)._replace(quantiles=quantiles(odds)))
    half = _part(rows, test)
    scores = np.array([classifier.score(text, len(text)) for text in half.texts])
    shares = {below: float((scores < below).mean()) for below in SHARES}
    curves = {
        "held-out half": Curve.of(scores, half.small, half.large),
        "held-out half, random": Curve.at_random(half.small, half.large),
    }
    return curves, shares


def _part(rows: Rows, mask: Array) -> Rows:
    chosen = np.flatnonzero(mask)
    return Rows(
        [rows.texts[i] for i in chosen],
        [rows.tasks[i] for i in chosen],
        rows.small[mask],
        rows.large[mask],
        [rows.words[i] for i in chosen],
        rows.shape[mask],
    )


def table(curves: dict[str, Curve]) -> str:
    """In Markdown: kept / solved, in percent, by the small model's share."""
    lines = [
        "| to the small model | "
        + " | ".join(f"{share:.0%}" for share in SHARES)
        + " | 90 % kept at | 95 % kept at |",
        "|---|" + "---|" * (len(SHARES) + 2),
    ]
    for name, curve in curves.items():
        cells = ["{:.1f} / {:.1f}".format(*(100 * q for q in curve.at(share))) for share in SHARES]
        limits = [f"{curve.share_at(quality)[0]:.0%}" for quality in (0.9, 0.95)]
        lines.append(f"| {name} | " + " | ".join([*cells, *limits]) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--compare", action="store_true", help="also with fewer features, and without any")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--graded", action="store_true", help="only the graded requests of all kinds")
    arguments = parser.parse_args()
    if arguments.graded:
        print(graded_tables(Graded.read()))
        return
    torch.set_num_threads(1)  # as in training
    rows = Rows.read(arguments.data)
    curves = evaluate(rows, compare=arguments.compare)
    half, shares = held_out_half(rows)
    curves |= half
    print(
        f"{len(rows.texts)} questions; right: small {rows.small.mean():.1%}, large {rows.large.mean():.1%}\n"
    )
    print(table(curves))
    print("\nheld-out half, share below a threshold: ", end="")
    print(", ".join(f"{below:g} → {share:.1%}" for below, share in shares.items()))
    if arguments.json:
        points = {name: {share: curve.at(share) for share in SHARES} for name, curve in curves.items()}
        arguments.json.write_text(json.dumps({"curves": points, "below": shares}, indent=1))


if __name__ == "__main__":
    main()
