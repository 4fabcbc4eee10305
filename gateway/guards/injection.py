"""Prompt injection and jailbreaks, in what users write and in what tools and documents bring along."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from gateway.guards.disguise import plain
from gateway.guards.finding import Origin, Scanner, Verdict
from gateway.guards.tiers import Judge, Tiered
from gateway.guards.wording import Wording
from gateway.policy.schema.guards import Classifier, InjectionGuard
from gateway.sidecar.api import Scored, Sidecar

ORIGINS: frozenset[Origin] = frozenset({"user", "tool", "answer"})
"""Not ``system``: the developer's own words may instruct."""
LABELS = ("injection", "indirect", "jailbreak")
CLEAR = (0.02, 0.98)
"""Probabilities below and above which the fast tier alone decides."""

_NAMED = -4.0
"""Log-odds below which no threshold makes it an attack of some kind: to name the kind costs time."""
_BREATH = 2_000
"""Characters that are weighed before others have their turn on the event loop."""


def injection(config: InjectionGuard, sidecar: Sidecar, judge: Judge | None) -> Scanner:
    """The scanner of a guard of the policy. Raises ``OSError`` or ``ValueError`` if its weights cannot be read."""
    wording = Wording.load()
    return _ByOrigin(
        {
            origin: _tiered(config, _Detector(wording, sidecar, config.classifier, origin), judge)
            for origin in ORIGINS
        }
    )


def _tiered(config: InjectionGuard, detector: _Detector, judge: Judge | None) -> Tiered:
    return Tiered(
        origins=ORIGINS,
        thresholds=dict.fromkeys(LABELS, config.threshold),
        fast=detector.fast if "fast" in config.checks else None,
        clear=CLEAR,
        model=detector.model if "model" in config.checks else None,
        judge=judge,
    )


class _ByOrigin:
    """As what is found in a tool's result is another thing than the same words of a user."""

    longest = 0
    origins = ORIGINS

    def __init__(self, scanners: Mapping[Origin, Tiered]) -> None:
        self._scanners = scanners

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        return self._scanners[origin].quick(text, origin)

    async def thorough(self, texts: Sequence[str], origin: Origin) -> list[Verdict]:
        return await self._scanners[origin].thorough(texts, origin)


class _Detector:
    """The two tiers for one origin."""

    def __init__(
        self, wording: Wording, sidecar: Sidecar, classifier: Classifier | None, origin: Origin
    ) -> None:
        self._wording = wording
        self._sidecar = sidecar
        self._classifier = classifier
        self._origin = origin

    def fast(self, text: str) -> Mapping[str, float]:
        log_odds = self._wording.log_odds(text)
        return {self._label(text) if log_odds > _NAMED else "injection": _probability(log_odds)}

    async def model(self, texts: Sequence[str]) -> list[list[Scored]]:
        """Each text as it reads, and whatever is hidden in it, which counts for the whole of the text."""
        read: list[tuple[int, str, int | None]] = []
        for index, text in enumerate(texts):
            read.append((index, same := plain(text), None if len(same) == len(text) else len(text)))
            read.extend((index, hidden, len(text)) for hidden in self._wording.readings(same))
        result: list[list[Scored]] = [[] for _ in texts]
        weighed = 0
        for (index, text, whole), parts in zip(
            read, await self._scores([text for _, text, _ in read]), strict=True
        ):
            for part in parts:
                result[index].append(self._scored(text, part, whole))
                weighed += part.end - part.start
                if weighed > _BREATH:
                    weighed = 0
                    await asyncio.sleep(0)
        return result

    async def _scores(self, texts: Sequence[str]) -> list[list[Scored]]:
        if self._classifier is not None:
            return await self._sidecar.classify(self._classifier.model, texts)
        return await self._sidecar.score("injection", texts)

    def _scored(self, text: str, part: Scored, whole: int | None) -> Scored:
        """``whole``: the length of the text in which ``text`` was hidden."""
        read = text[part.start : part.end]
        if self._classifier is not None:
            probability = min(1.0, sum(part.scores.get(label, 0.0) for label in self._classifier.unsafe))
        else:
            probability = _probability(self._wording.stacked(part.scores.get("injection", 0.0), read))
        scores = {self._label(read): probability}
        return Scored(part.start, part.end, scores) if whole is None else Scored(0, whole, scores)

    def _label(self, text: str) -> str:
        return "indirect" if self._origin == "tool" else self._wording.kind(text)


def _probability(log_odds: float) -> float:
    return 1 / (1 + math.exp(-max(min(log_odds, 60.0), -60.0)))
