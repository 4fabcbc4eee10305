"""How much traffic can a small model take before answers suffer? The complexity classifier's cost-quality curve.

    python -m benchmarks.cascade [--compare] [--json FILE]   # evaluates; half a minute on one core, --compare 90 s
    python -m benchmarks.cascade --train                     # writes gateway/cascade/complexity.json as well

The data is RouteLLM's: questions, and whether Mixtral 8x7B (small) and GPT-4 (large) answered each of them right.
Three ways to keep training and test apart: five folds by the hash of the text; ten folds that each leave out whole
tasks; and one half against the other. Two definitions of quality, as shares of what the large model alone solves:
*kept*, the questions the large model solves that are still solved, and *solved*, all questions that are solved, those
that only the small model gets right included.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import torch

from gateway.cascade.complexity import WEIGHTS, Classifier, Weights
from gateway.cascade.features import SHAPE, clipped, shape, words

DATA = Path(__file__).parents[2] / "shared" / "data" / "routing.jsonl"
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
KNOTS = 101
MIN_ROWS = 5
"""A word must occur in this many questions to get a weight."""
PENALTY_WORDS, PENALTY_SHAPE = 6.0, 20.0
"""L2, on the sum of the losses."""

Array = np.ndarray


@dataclass
class Rows:
    """The data set, and its features as training sees them."""

    texts: list[str]
    tasks: list[str]
    small: Array
    large: Array
    words: list[set[str]]
    shape: Array

    @classmethod
    def read(cls, path: Path) -> Rows:
        # Not by str.splitlines, which cuts at U+2028 and others that JSON may hold as they are.
        with path.open(encoding="utf-8") as lines:
            raw = [json.loads(line) for line in lines]
        texts = [clipped(row["text"]) for row in raw]
        return cls(
            texts,
            [row["task"] for row in raw],
            np.array([row["small_correct"] for row in raw]),
            np.array([row["large_correct"] for row in raw]),
            [words(text) for text in texts],
            np.array([shape(text) for text in texts]),
        )

    @property
    def lost(self) -> Array:
        """What the score foretells: the large model solves it and the small one does not."""
        return self.large & ~self.small

    def folds(self, count: int) -> Array:
        return np.array([crc32(text.encode()) % count for text in self.texts])

    def task_folds(self, count: int) -> Array:
        numbers = {task: index % count for index, task in enumerate(sorted(set(self.tasks), key=_scrambled))}
        return np.array([numbers[task] for task in self.tasks])


def _scrambled(text: str) -> int:
    return crc32(text.encode())


def fit(rows: Rows, train: Array, *, use_words: bool = True, use_shape: bool = True) -> Weights:
    """Logistic regression on the rows of ``train``, by L-BFGS to convergence. The quantiles are left empty."""
    chosen = np.flatnonzero(train)
    counts = Counter(word for i in chosen for word in rows.words[i])
    vocabulary = sorted(word for word, n in counts.items() if n >= MIN_ROWS and use_words)
    columns = {word: column for column, word in enumerate(vocabulary)}
    said = np.zeros((len(chosen), len(columns)))
    for row, i in enumerate(chosen):
        found = [columns[word] for word in rows.words[i] if word in columns]
        said[row, found] = 1 / math.sqrt(max(len(found), 1))
    low, high = np.quantile(rows.shape[chosen], (0.005, 0.995), axis=0).round(5)
    measured = rows.shape[chosen].clip(low, high)
    middle, scale = measured.mean(0), measured.std(0) + 1e-9
    measures = torch.from_numpy((measured - middle) / scale * use_shape)
    x, y = torch.from_numpy(said), torch.from_numpy(rows.lost[chosen].astype(float))
    of_words, of_shape, bias = (torch.zeros(n, dtype=torch.float64) for n in (len(columns), len(SHAPE), 1))
    parameters = [of_words.requires_grad_(), of_shape.requires_grad_(), bias.requires_grad_()]
    descent = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        descent.zero_grad()
        odds = x @ of_words + measures @ of_shape + bias
        misfit = torch.nn.functional.binary_cross_entropy_with_logits(odds, y, reduction="sum")
        penalty = PENALTY_WORDS * of_words.square().sum() + PENALTY_SHAPE * of_shape.square().sum()
        total = misfit + penalty / 2
        total.backward()
        return total

    descent.step(loss)
    slopes = of_shape.detach().numpy() / scale * use_shape
    return Weights(
        words={word: round(float(of_words.detach()[column]), 3) for word, column in columns.items()},
        shape=[float(f"{slope:.5g}") for slope in slopes],
        low=low.tolist(),
        high=high.tolist(),
        bias=round(float(bias.detach()) - float(slopes @ middle), 5),
        quantiles=[],
    )


def log_odds(rows: Rows, weights: Weights, chosen: Array) -> Array:
    """By the gateway's own code."""
    classifier = Classifier(weights)
    return np.array([classifier.of_question(rows.texts[i]) for i in np.flatnonzero(chosen)])


def cross_validated(rows: Rows, folds: Array, *, use_words: bool = True, use_shape: bool = True) -> Array:
    """Each row's log-odds by weights that were trained without its fold."""
    odds = np.zeros(len(folds))
    for fold in np.unique(folds):
        weights = fit(rows, folds != fold, use_words=use_words, use_shape=use_shape)
        odds[folds == fold] = log_odds(rows, weights, folds == fold)
    return odds


def by_task(rows: Rows, folds: Array) -> Array:
    """What knowing the task, and nothing of the question, would tell: its failure rate in the other folds."""
    tasks = np.array(rows.tasks)
    return np.array(
        [rows.lost[(tasks == task) & (folds != fold)].mean() for task, fold in zip(tasks, folds, strict=True)]
    )


def quantiles(odds: Array) -> list[float]:
    return [round(float(value), 4) for value in np.quantile(odds, np.linspace(0, 1, KNOTS))]


@dataclass
class Curve:
    """Quality at every share of traffic that the small model takes, the easiest questions first."""

    kept: Array
    solved: Array

    @classmethod
    def of(cls, score: Array, small: Array, large: Array) -> Curve:
        order = np.argsort(score, kind="stable")
        lost = np.cumsum((large & ~small)[order]) / large.sum()
        won = np.cumsum((small & ~large)[order]) / large.sum()
        kept = np.concatenate([[1.0], 1 - lost])
        return cls(kept, kept + np.concatenate([[0.0], won]))

    @classmethod
    def at_random(cls, small: Array, large: Array) -> Curve:
        """What drawing lots is expected to give."""
        share = np.linspace(0, 1, len(small) + 1)
        kept = 1 - share * (large & ~small).sum() / large.sum()
        return cls(kept, kept + share * (small & ~large).sum() / large.sum())

    def at(self, share: float) -> tuple[float, float]:
        index = round(share * (len(self.kept) - 1))
        return float(self.kept[index]), float(self.solved[index])

    def share_at(self, quality: float) -> tuple[float, float]:
        """The largest share at which each quality is still reached."""
        last = len(self.kept) - 1
        kept, solved = (np.flatnonzero(line >= quality)[-1] / last for line in (self.kept, self.solved))
        return float(kept), float(solved)


def evaluate(rows: Rows, *, compare: bool) -> tuple[dict[str, Curve], Array]:
    """The curves by name, and each row's out-of-fold log-odds."""
    five, tasks = rows.folds(5), rows.task_folds(10)
    odds = cross_validated(rows, five)
    scores = {"5 folds": odds, "tasks left out": cross_validated(rows, tasks)}
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
    return curves, odds


def held_out_half(rows: Rows) -> tuple[dict[str, Curve], dict[float, float]]:
    """Trained on one half, tested on the other; and what share of the other half is ``below`` each threshold."""
    folds = rows.folds(10)
    train, test = folds < 5, folds >= 5
    odds = cross_validated(_part(rows, train), _part(rows, train).folds(5))
    classifier = Classifier(fit(rows, train)._replace(quantiles=quantiles(odds)))
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
    parser.add_argument("--train", action="store_true", help="write the weights that the gateway uses")
    parser.add_argument("--compare", action="store_true", help="also with fewer features, and without any")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(
        1
    )  # The order of additions, and so the weights, must not depend on the machine's cores.
    rows = Rows.read(arguments.data)
    curves, odds = evaluate(rows, compare=arguments.compare)
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
    if arguments.train:
        weights = fit(rows, np.ones(len(rows.texts), bool))._replace(quantiles=quantiles(odds))
        WEIGHTS.write_text(json.dumps(weights._asdict(), ensure_ascii=False, indent=0) + "\n")
        print(f"\n{len(weights.words)} words, {WEIGHTS.stat().st_size / 1000:.0f} kB: {WEIGHTS.name}")


if __name__ == "__main__":
    main()
