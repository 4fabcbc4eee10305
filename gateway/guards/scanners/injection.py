"""Prompt injection and jailbreaks, in users' messages, tool results and documents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.guards.scanners.canary import LONGEST, canaries
from gateway.guards.scanners.layered import Judge, LayeredScanner, unsafe
from gateway.guards.scanners.normalised import plain
from gateway.guards.scanners.scanner import ORIGINS as EVERY_ORIGIN
from gateway.guards.scanners.scanner import Origin, Scanner, Verdict
from gateway.guards.scanners.wording import Wording
from gateway.policy.schema.any_guard import Classifier
from gateway.policy.schema.guards import InjectionGuard
from gateway.sidecar.api import Scored, Sidecar
from gateway.text.linear import probability
from gateway.types import Call

ORIGINS: frozenset[Origin] = frozenset({"user", "tool", "definition", "answer"})
"""If the policy names none. Not ``system``: the developer may give instructions."""
_OF_TOOLS: frozenset[Origin] = frozenset({"tool"})
"""Whose texts are judged by the weights for tools' results. A user's wish is harmless, and the definition of a tool is
full of what it does; the same words in a result are an attack."""
LABELS = ("injection", "indirect", "jailbreak")
CLEAR = (0.02, 0.98)
"""Probabilities below and above which the fast check alone decides."""

_LEAST = 6
"""Shorter ASCII texts, such as ids and numbers in lists of inputs, are harmless."""
_NAMED = -4.0
"""Log-odds below which the kind is not computed, as no threshold makes it an attack."""


def injection(config: InjectionGuard, sidecar: Sidecar, judge: Judge | None) -> Scanner:
    """The scanner of a guard of the policy. Raises ``OSError`` or ``ValueError`` if its weights cannot be read."""
    wording = Wording.load()
    return _ByOrigin(
        {
            origin: _layered(
                config, _Detector(wording[_weights(origin)], sidecar, config.classifier, origin), judge
            )
            for origin in EVERY_ORIGIN
        },
        canary=config.canary,
    )


def _weights(origin: Origin) -> str:
    return "tool" if origin in _OF_TOOLS else "user"


def _layered(config: InjectionGuard, detector: _Detector, judge: Judge | None) -> LayeredScanner:
    return LayeredScanner(
        origins=ORIGINS,
        thresholds=dict.fromkeys(LABELS, config.threshold),
        fast=detector.fast if "fast" in config.checks else None,
        clear=CLEAR,
        model=detector.model if "model" in config.checks else None,
        judge=judge,
        unclear=config.judge.unsure if config.judge is not None else None,
        narrow=config.classifier is not None,
    )


class _ByOrigin:
    """By origin, as findings in a tool's result have other labels than those in a user's message."""

    origins = ORIGINS

    def __init__(self, scanners: Mapping[Origin, LayeredScanner], *, canary: bool) -> None:
        """``canary``: answers are searched for one."""
        self._scanners = scanners
        self._canary = canary
        self.longest = LONGEST if canary else 0

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        if self._canary and origin == "answer" and (leaked := canaries(text)):
            return Verdict(leaked, 1.0, "fast")
        return self._scanners[origin].quick(text, origin)

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        return await self._scanners[origin].thorough(texts, origin, call)


class _Reading(NamedTuple):
    """What the model reads: a suspect part of a text, or what is hidden in it."""

    number: int
    text: str
    span: tuple[int, int]
    """The span of the given text that it counts for."""
    own: float
    """The fast check's log-odds of the text."""


class _Detector:
    """Both checks for one origin."""

    def __init__(
        self, wording: Wording, sidecar: Sidecar, classifier: Classifier | None, origin: Origin
    ) -> None:
        self._wording = wording
        self._sidecar = sidecar
        self._classifier = classifier
        self._origin = origin
        self._head = _weights(origin)

    def fast(self, text: str) -> Mapping[str, float]:
        if len(text) < _LEAST and text.isascii():
            return {"injection": 0.0}
        log_odds = self._wording.log_odds(text)
        return {self._label(text) if log_odds > _NAMED else "injection": probability(log_odds)}

    async def model(self, texts: Sequence[str]) -> list[list[Scored]]:
        """Scores of each text, the most suspect part of it, and what is hidden in it, which counts for the whole."""
        if self._classifier is not None:
            return await self._classified(self._classifier, texts)
        read: list[_Reading] = []
        for index, text in enumerate(texts):
            read.extend(self._readings(index, text))
            await asyncio.sleep(0)
        result: list[list[Scored]] = [[] for _ in texts]
        for one, parts in zip(
            read, await self._sidecar.score("injection", [one.text for one in read]), strict=True
        ):
            result[one.number].append(self._scored(one, parts))
            await asyncio.sleep(0)
        return result

    def _readings(self, index: int, text: str) -> Iterator[_Reading]:
        same, whole = plain(text), (0, len(text))
        own = self._wording.log_odds(text)
        for start, end in self._wording.suspects(same):
            yield _Reading(index, same[start:end], (start, end) if len(same) == len(text) else whole, own)
        for hidden in self._wording.readings(same):
            for start, end in self._wording.suspects(hidden):
                yield _Reading(index, hidden[start:end], whole, own)

    def _scored(self, one: _Reading, parts: Sequence[Scored]) -> Scored:
        head = max(part.scores.get(self._head, 0.0) for part in parts)
        score = probability(self._wording.stacked(head, one.own))
        return Scored(*one.span, {self._label(one.text): score})

    async def _classified(self, classifier: Classifier, texts: Sequence[str]) -> list[list[Scored]]:
        """What the operator's own model says of all of each text, and of what is hidden in it."""
        read: list[tuple[int, str, bool]] = []
        for index, text in enumerate(texts):
            same = plain(text)
            read.append((index, same, len(same) == len(text)))
            read.extend((index, hidden, False) for hidden in self._wording.readings(same))
        result: list[list[Scored]] = [[] for _ in texts]
        scored = await self._sidecar.classify(classifier.model, [text for _, text, _ in read])
        for (index, text, placed), parts in zip(read, scored, strict=True):
            for part in parts:
                span = (part.start, part.end) if placed else (0, len(texts[index]))
                label = self._label(text[part.start : part.end])
                result[index].append(Scored(*span, {label: unsafe(classifier, part.scores)}))
            await asyncio.sleep(0)
        return result

    def _label(self, text: str) -> str:
        return "indirect" if self._origin in ("tool", "definition") else self._wording.kind(text)
