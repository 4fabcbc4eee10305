"""How far a model's predictions are from the reference's: sums over each text, and figures with intervals over texts.

Tokens of a text are not independent of one another, texts are: intervals are of a bootstrap over texts, in which both
models are measured on the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.evaluation.reference import Reference
from engine.evaluation.samples import Sample

ALL = "all"
POSITIONS = (16, 64, 256)
"""Where ranges of positions end, which KL is told for."""
_RESAMPLES = 2000
_CONFIDENCE = 95


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Measures:
    """Of one stratum of texts, or of all."""

    texts: int
    tokens: int
    kl: Figure
    """Kullback-Leibler divergence from the reference, in nats a token."""
    perplexity: Figure
    ratio: Figure
    """Perplexity over the reference's."""
    agreement: Figure
    """Share of tokens where both find the same most likely."""
    right: Figure
    """Share of tokens that were found most likely."""
    reference_right: float
    exact: Figure | None
    """Share of answers that are found word by word; ``None``: no text has an answer."""
    reference_exact: float | None
    lost: Figure | None
    """Share of answers that the reference finds and this model does not, less those the other way about."""


_SUMS = ("tokens", "kl", "loss", "reference_loss", "same", "right", "reference_right")
_ANSWERS = ("answers", "exact", "reference_exact")


class Tally:
    """Sums of each text."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self._samples = samples
        self._sums = np.zeros((len(samples), len(_SUMS) + len(_ANSWERS)))
        self._by_position = np.zeros((len(POSITIONS) + 1, 2))

    def add(self, number: int, pieces: Iterator[Tensor], reference: Reference) -> None:
        """The logits of the sample of that number, some rows at a time."""
        sample = self._samples[number]
        wanted = torch.tensor(sample.tokens[1:])
        right, reference_right, divergences = [], [], []
        sums = np.zeros(len(_SUMS))
        row = 0
        for logits in pieces:
            found, full = logits.log_softmax(-1), reference.rows(number, row, len(logits))
            tokens = wanted[row : row + len(logits), None]
            best, full_best = found.argmax(-1), full.argmax(-1)
            divergence = (full.exp() * (full - found)).sum(-1).clamp_min_(0)
            divergences.append(divergence)
            right.append(best == tokens[:, 0])
            reference_right.append(full_best == tokens[:, 0])
            sums += (
                len(logits),
                float(divergence.sum()),
                -float(found.gather(1, tokens).sum()),
                -float(full.gather(1, tokens).sum()),
                int((best == full_best).sum()),
                int(right[-1].sum()),
                int(reference_right[-1].sum()),
            )
            row += len(logits)
        self._sums[number, : len(_SUMS)] = sums
        self._place(torch.cat(divergences))
        if sample.answer is not None:
            answer = slice(sample.answer - 1, None)
            exact = [bool(torch.cat(marks)[answer].all()) for marks in (right, reference_right)]
            self._sums[number, len(_SUMS) :] = (1, *exact)

    def _place(self, divergence: Tensor) -> None:
        start = 0
        for i, end in enumerate((*POSITIONS, len(divergence))):
            piece = divergence[start : max(start, end)]
            self._by_position[i] += (len(piece), float(piece.sum()))
            start = max(start, end)

    def kl_by_position(self) -> list[float | None]:
        """Nats a token, of the ranges that ``POSITIONS`` end and of what follows; ``None``: no text is so long."""
        return [float(total / count) if count else None for count, total in self._by_position]

    def strata(self) -> dict[str, Measures]:
        """By stratum, and of all texts together."""
        names = np.array([sample.stratum for sample in self._samples])
        found = {ALL: _measures(self._sums)}
        if len(set(names)) > 1:
            found |= {name: _measures(self._sums[names == name]) for name in dict.fromkeys(names.tolist())}
        return found


def _measures(sums: np.ndarray) -> Measures:
    # The same texts at every call: figures are reproducible.
    generator = np.random.default_rng(0)
    draws = generator.integers(len(sums), size=(_RESAMPLES, len(sums)))
    weights = np.stack([np.bincount(draw, minlength=len(sums)) for draw in draws])
    resampled = dict(zip(_SUMS + _ANSWERS, (weights @ sums).T, strict=True))
    total = dict(zip(_SUMS + _ANSWERS, sums.sum(0), strict=True))

    def mean(name: str, per: str = "tokens") -> Figure:
        return _figure(total[name] / total[per], resampled[name], resampled[per])

    exact = lost = None
    if total["answers"]:
        exact = mean("exact", "answers")
        gone = resampled["reference_exact"] - resampled["exact"]
        lost = _figure(
            (total["reference_exact"] - total["exact"]) / total["answers"], gone, resampled["answers"]
        )
    loss, excess = mean("loss"), resampled["loss"] - resampled["reference_loss"]
    ratio = _figure((total["loss"] - total["reference_loss"]) / total["tokens"], excess, resampled["tokens"])
    return Measures(
        len(sums),
        int(total["tokens"]),
        mean("kl"),
        _exp(loss),
        _exp(ratio),
        mean("same"),
        mean("right"),
        float(total["reference_right"] / total["tokens"]),
        exact,
        float(total["reference_exact"] / total["answers"]) if total["answers"] else None,
        lost,
    )


def _figure(value: float, sums: np.ndarray, counts: np.ndarray) -> Figure:
    # A draw may have no text with an answer.
    drawn = sums[counts > 0] / counts[counts > 0]
    edge = (100 - _CONFIDENCE) / 2
    low, high = np.percentile(drawn, (edge, 100 - edge))
    return Figure(float(value), float(low), float(high))


def _exp(figure: Figure) -> Figure:
    return Figure(*(float(np.exp(part)) for part in (figure.value, figure.low, figure.high)))
