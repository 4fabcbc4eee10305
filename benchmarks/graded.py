"""Does the cascade's score order requests as people would? Its rank correlation with a blind grading.

``graded_requests.jsonl`` has 200 requests of fifteen kinds and five languages, written for this project and graded from
1 to 5 by what a correct answer demands, by one judge who knew neither the rules nor any score.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from gateway.cascade.complexity import ComplexityClassifier
from gateway.cascade.scorers import RequestScorer
from gateway.types import ChatRequest

GRADED = Path(__file__).with_name("graded_requests.jsonl")
BELOW = 0.4
RESAMPLES = 2000


@dataclass
class Graded:
    """Requests with their levels; ``odd`` lines (the first is one) are the half that no rule was made by."""

    texts: list[str]
    levels: np.ndarray
    languages: np.ndarray
    kinds: np.ndarray
    odd: np.ndarray

    @classmethod
    def read(cls, path: Path = GRADED) -> Graded:
        with path.open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return cls(
            [row["text"] for row in rows],
            np.array([row["level"] for row in rows]),
            np.array([row["language"] for row in rows]),
            np.array([row["kind"] for row in rows]),
            np.arange(len(rows)) % 2 == 0,
        )

    def scores(self) -> dict[str, np.ndarray]:
        """Of each request by name: what the gateway says, and what simpler scores would."""
        classifier = ComplexityClassifier.load()
        scorer = RequestScorer(classifier)

        async def ours() -> list[float]:
            return [
                await scorer.complexity(ChatRequest(model="", messages=({"role": "user", "content": text},)))
                for text in self.texts
            ]

        return {
            "as the gateway scores": np.array(asyncio.run(ours())),
            "trained weights alone": np.array([classifier.score(text, len(text)) for text in self.texts]),
            "length alone": np.array([len(text) for text in self.texts]),
        }


def rank_correlation(scores: np.ndarray, levels: np.ndarray) -> float:
    """Spearman's, ties shared."""
    return float(spearmanr(scores, levels).statistic)


def interval(scores: np.ndarray, levels: np.ndarray) -> tuple[float, float]:
    """The middle 95 % of the rank correlations of resampled requests."""
    random = np.random.default_rng(0)
    drawn = random.integers(0, len(levels), (RESAMPLES, len(levels)))
    low, high = np.quantile([rank_correlation(scores[rows], levels[rows]) for rows in drawn], (0.025, 0.975))
    return float(low), float(high)


def tables(graded: Graded) -> str:
    """In Markdown: the rank correlations by half and language, then by kind, then the score by level."""
    scores, levels = graded.scores(), graded.levels
    masks = {"all": np.ones(len(levels), bool), "odd lines": graded.odd, "even lines": ~graded.odd}
    masks |= {one: graded.languages == one for one in sorted(set(graded.languages))}
    lines = [
        "| score | " + " | ".join(f"{name} ({mask.sum()})" for name, mask in masks.items()) + " |",
        "|---|" + "---|" * len(masks),
    ]
    for name, values in scores.items():
        cells = [f"{rank_correlation(values[mask], levels[mask]):.2f}" for mask in masks.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    ours = scores["as the gateway scores"]
    spread = "; ".join(
        "{} {:.2f} to {:.2f}".format(name, *interval(ours[masks[name]], levels[masks[name]]))
        for name in ("all", "odd lines")
    )
    lines += ["", f"95 % of resamples, as the gateway scores: {spread}", ""]
    lines += ["| kind | requests | all | odd lines |", "|---|---|---|---|"]
    for kind in sorted(set(graded.kinds)):
        mask = graded.kinds == kind
        held_out = mask & graded.odd
        lines.append(
            f"| {kind} | {mask.sum()} | {rank_correlation(ours[mask], levels[mask]):.2f} | "
            f"{rank_correlation(ours[held_out], levels[held_out]):.2f} ({held_out.sum()}) |"
        )
    lines += [
        "",
        f"| level | mean score | below {BELOW:g} | below {BELOW:g}, odd lines |",
        "|---|---|---|---|",
    ]
    for level in sorted(set(levels)):
        mask = levels == level
        share, held_out = (ours[mask] < BELOW).mean(), (ours[mask & graded.odd] < BELOW).mean()
        lines.append(f"| {level} | {ours[mask].mean():.2f} | {share:.0%} | {held_out:.0%} |")
    return "\n".join(lines)
