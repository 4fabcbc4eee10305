"""A scanner in layers: a fast check decides the clear cases, a model the ambiguous ones, a judge what is then open."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gateway.findings import Finding
from gateway.guards.scanners.scanner import Origin, Unscanned, Verdict
from gateway.policy.schema.any_guard import Classifier
from gateway.sidecar.api import Scored, SidecarError
from gateway.text.linear import log_odds
from gateway.types import Call

Fast = Callable[[str], Mapping[str, float]]
"""Probability by label; at most 2 ms for 1,000 characters."""
Model = Callable[[Sequence[str]], Awaitable[list[list[Scored]]]]
"""A model's scores of each text, window by window. Raises ``SidecarError``."""

_SENTENCE = re.compile(r"[^\s.!?\n](?:[^.!?\n]|[.!?](?!\s|$))*[.!?]*")
UNSURE = (0.2, 0.8)
"""A model's probabilities between which a judge is asked, unless the policy has others."""
_TINY = 1e-9
_NARROWED = 64
"""Sentences of unsafe windows that are scored again to narrow down the findings."""


class Judge(Protocol):
    """A larger model for what the others leave undecided."""

    async def judge(self, texts: Sequence[str], origin: Origin, asker: Call | None = None) -> list[Verdict]:
        """One verdict a text; ``asker`` is the request that they belong to. Raises ``Unscanned``."""
        ...


class LayeredScanner:
    """A ``Scanner`` made of a fast check, a model and a judge, each of which may be missing.

    ``thresholds`` are the operator's, by label; labels without one are ignored. ``clear`` and ``unclear`` are
    probabilities as they would be at a threshold of 0.5, and move with the threshold in log-odds: with ``clear``
    (0.1, 0.9) and a threshold of 0.8, the fast check alone decides below 0.31 and above 0.97. Between them the model
    is asked; where its best score lies within ``unclear``, the judge is. Without a model the judge is asked within
    ``unclear``, or where that is None, within ``clear``.
    """

    def __init__(
        self,
        *,
        origins: frozenset[Origin],
        thresholds: Mapping[str, float],
        fast: Fast | None,
        clear: tuple[float, float],
        model: Model | None,
        judge: Judge | None = None,
        unclear: tuple[float, float] | None = None,
        precedence: Mapping[str, int] = {},
        narrow: bool = True,
    ) -> None:
        """``precedence``: of the labels that reach their thresholds, the highest names the finding, then the surest; 0
        where it has none. ``narrow`` False: the parts that ``model`` scores are as narrow as findings should be."""
        self.origins = origins
        self.longest = 0
        self._thresholds = {label: log_odds(threshold, _TINY) for label, threshold in thresholds.items()}
        self._fast = fast
        self._unclear = band(unclear or UNSURE)
        self._low, self._high = (log_odds(bound, _TINY) for bound in clear)
        if judge is not None and unclear is not None:
            if model is None:
                self._low, self._high = self._unclear
            else:  # what it is to be asked must not be decided before
                self._low, self._high = min(self._low, self._unclear[0]), max(self._high, self._unclear[1])
        self._model = model
        self._judge = judge
        self._narrow = narrow
        self._precedence = precedence

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        if self._fast is None:
            return None
        label, score, margin = self._best(self._fast(text))
        if (self._model is not None or self._judge is not None) and self._low < margin < self._high:
            return None
        if margin < 0:
            return Verdict((), score, "fast")
        first, last = 0, len(text)
        unsafe = [
            (start, end)
            for start, end in sentences(text, 0, len(text))
            if self._margin(label, self._fast(text[start:end]).get(label, 0.0)) >= 0
        ]
        if unsafe:
            first, last = unsafe[0][0], unsafe[-1][1]
        return Verdict((Finding(label, first, last, score),), score, "fast")

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        if self._model is None:
            if self._judge is None:
                raise Unscanned(
                    "there is neither a model nor a judge for what the fast check leaves undecided"
                )
            return await self._judge.judge(texts, origin, call)
        try:
            windows = await self._model(texts)
            verdicts = await self._verdicts(self._model, texts, windows)
        except SidecarError as error:
            raise Unscanned(f"{type(error).__name__}: {error}") from error
        if self._judge is not None:
            low, high = self._unclear
            best = [max((self._best(part.scores)[2] for part in parts), default=low) for parts in windows]
            asked = [index for index, margin in enumerate(best) if low < margin < high]
            if asked:
                judged = await self._judge.judge([texts[index] for index in asked], origin, call)
                for index, verdict in zip(asked, judged, strict=True):
                    verdicts[index] = verdict
        return verdicts

    async def _verdicts(
        self, model: Model, texts: Sequence[str], windows: Sequence[Sequence[Scored]]
    ) -> list[Verdict]:
        """Findings narrowed down to the unsafe sentences of unsafe windows, which are scored by themselves."""
        score = [0.0] * len(texts)
        hits: list[tuple[int, str, float, Scored]] = []
        for index, parts in enumerate(windows):
            nearest = -math.inf
            for part in parts:
                label, probability, margin = self._best(part.scores)
                if margin > nearest:
                    nearest, score[index] = margin, probability
                if margin >= 0:
                    hits.append((index, label, probability, part))
        findings: list[list[Finding]] = [[] for _ in texts]
        narrowed = [(part.start, part.end) for _, _, _, part in hits]
        if hits and self._narrow:
            narrowed = await self._narrowed(model, texts, hits)
        for (index, label, probability, _), (start, end) in zip(hits, narrowed, strict=True):
            findings[index].append(Finding(label, start, end, probability))
        return [Verdict(_apart(found), best, "model") for found, best in zip(findings, score, strict=True)]

    async def _narrowed(
        self, model: Model, texts: Sequence[str], hits: Sequence[tuple[int, str, float, Scored]]
    ) -> list[tuple[int, int]]:
        pieces = [sentences(texts[index], part.start, part.end) for index, _, _, part in hits]
        # Windows of one sentence, and of very many, stay as they are.
        left = _NARROWED
        for at, spans in enumerate(pieces):
            if len(spans) > left:
                pieces[at] = []
            left -= len(pieces[at])
        wanted = [
            texts[index][start:end]
            for (index, _, _, _), spans in zip(hits, pieces, strict=True)
            if len(spans) > 1
            for start, end in spans
        ]
        try:
            scored = iter(await model(wanted) if wanted else [])
        except SidecarError:  # the finding stays, as wide as its window
            return [(part.start, part.end) for _, _, _, part in hits]
        narrowed = []
        for (_, label, _, part), spans in zip(hits, pieces, strict=True):
            unsafe = spans
            if len(spans) > 1:
                unsafe = [
                    span
                    for span in spans
                    if any(self._margin(label, one.scores.get(label, 0.0)) >= 0 for one in next(scored))
                ]
            narrowed.append((unsafe[0][0], unsafe[-1][1]) if unsafe else (part.start, part.end))
        return narrowed

    def _margin(self, label: str, probability: float) -> float:
        """How far, in log-odds, a probability is above the label's threshold."""
        return log_odds(probability, _TINY) - self._thresholds[label]

    def _best(self, scores: Mapping[str, float]) -> tuple[str, float, float]:
        """The label furthest above its threshold, its probability, and its margin."""
        best = ("", 0.0, -math.inf)
        foremost = (False, 0, -math.inf)
        for label, probability in scores.items():
            if label in self._thresholds:
                margin = self._margin(label, probability)
                reached = margin >= 0
                rank = (reached, self._precedence.get(label, 0) if reached else 0, margin)
                if rank > foremost:
                    best, foremost = (label, probability, margin), rank
        return best


def band(unsure: tuple[float, float]) -> tuple[float, float]:
    """Probabilities as log-odds around a threshold; 0 and 1 have nothing beyond them."""
    low, high = unsure
    return (
        -math.inf if low == 0 else log_odds(low, _TINY),
        math.inf if high == 1 else log_odds(high, _TINY),
    )


def unsafe(classifier: Classifier, scores: Mapping[str, float]) -> float:
    """The probability of the labels listed under ``unsafe``. Raises ``SidecarError`` for one that the model lacks."""
    missing = [label for label in classifier.unsafe if label not in scores]
    if missing:
        raise SidecarError(
            f"the classifier '{classifier.model}' has no label '{missing[0]}'; write under 'unsafe' some of: "
            + ", ".join(scores)
        )
    return min(1.0, sum(scores[label] for label in classifier.unsafe))


def sentences(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Their spans within ``[start, end)``, without the white space around them."""
    return [match.span() for match in _SENTENCE.finditer(text, start, end)]


def _apart(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """In order and without overlaps: those that overlap are merged under the label with the highest score."""
    apart: list[Finding] = []
    for finding in sorted(findings, key=lambda each: each.start):
        if apart and finding.start < apart[-1].end:
            last = apart[-1]
            surest = max(last, finding, key=lambda each: each.score)
            finding = Finding(surest.label, last.start, max(last.end, finding.end), surest.score)
            apart[-1] = finding
        else:
            apart.append(finding)
    return tuple(apart)
