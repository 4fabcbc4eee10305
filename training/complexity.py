"""Train the complexity classifier: will a small model fail where a large one does not?

    python -m training.complexity [--data FILE]     # writes gateway/cascade/complexity.json; half a minute on one core

The data is RouteLLM's: questions, and whether Mixtral 8x7B (small) and GPT-4 (large) answered each of them right.
``benchmarks/cascade.py`` says what it is worth.
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

from gateway.cascade.complexity import WEIGHTS, ComplexityClassifier, Weights
from gateway.cascade.features import SHAPE, clipped, shape, words

DATA = Path(__file__).parents[2] / "shared" / "data" / "routing.jsonl"
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
    present = np.zeros((len(chosen), len(columns)))
    for row, i in enumerate(chosen):
        found = [columns[word] for word in rows.words[i] if word in columns]
        present[row, found] = 1 / math.sqrt(max(len(found), 1))
    low, high = np.quantile(rows.shape[chosen], (0.005, 0.995), axis=0).round(5)
    measured = rows.shape[chosen].clip(low, high)
    middle, scale = measured.mean(0), measured.std(0) + 1e-9
    measures = torch.from_numpy((measured - middle) / scale * use_shape)
    x, y = torch.from_numpy(present), torch.from_numpy(rows.lost[chosen].astype(float))
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
    classifier = ComplexityClassifier(weights)
    return np.array([classifier.of_question(rows.texts[i]) for i in np.flatnonzero(chosen)])


def cross_validated(rows: Rows, folds: Array, *, use_words: bool = True, use_shape: bool = True) -> Array:
    """Each row's log-odds by weights that were trained without its fold."""
    odds = np.zeros(len(folds))
    for fold in np.unique(folds):
        weights = fit(rows, folds != fold, use_words=use_words, use_shape=use_shape)
        odds[folds == fold] = log_odds(rows, weights, folds == fold)
    return odds


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    # The order of additions, and so the weights, must not depend on the machine's cores.
    torch.set_num_threads(1)
    rows = Rows.read(parser.parse_args().data)
    odds = cross_validated(rows, rows.folds(5))
    weights = fit(rows, np.ones(len(rows.texts), bool))._replace(quantiles=quantiles(odds))
    WEIGHTS.write_text(json.dumps(weights._asdict(), ensure_ascii=False, indent=0) + "\n")
    print(f"{len(weights.words)} words, {WEIGHTS.stat().st_size / 1000:.0f} kB: {WEIGHTS.name}")


if __name__ == "__main__":
    main()
