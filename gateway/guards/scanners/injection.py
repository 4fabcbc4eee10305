"""Prompt injection and jailbreaks, in users' messages, tool results and documents."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.guards.scanners.canary import LONGEST, canaries
from gateway.guards.scanners.layered import UNSURE, Judge, LayeredScanner, unsafe
from gateway.guards.scanners.normalised import plain
from gateway.guards.scanners.scanner import ORIGINS as EVERY_ORIGIN
from gateway.guards.scanners.scanner import Origin, Scanner, Verdict
from gateway.guards.scanners.wording import Wording
from gateway.policy.schema.guards import Classifier, InjectionGuard
from gateway.sidecar.api import Scored, Sidecar
from gateway.text.linear import probability
from gateway.types import Call

ORIGINS: frozenset[Origin] = frozenset({"user", "tool", "definition", "answer"})
"""If the policy names none. Not ``system``: the developer may give instructions."""
LABELS = ("injection", "indirect", "jailbreak")
CLEAR = (0.02, 0.98)
"""Probabilities below and above which the fast check alone decides."""

_LEAST = 6
"""Shorter ASCII texts, such as ids and numbers in lists of inputs, are harmless."""
_NAMED = -4.0
"""Log-odds below which the kind is not computed, as no threshold makes it an attack."""
_YIELD_AFTER = 2_000
"""Characters that are scored between two turns of the event loop."""

DOUBT = 2.0
"""Log-odds that are subtracted from a sentence of a longer text, which may sound odd out of context."""


def injection(config: InjectionGuard, sidecar: Sidecar, judge: Judge | None) -> Scanner:
    """The scanner of a guard of the policy. Raises ``OSError`` or ``ValueError`` if its weights cannot be read."""
    wording = Wording.load()
    return _ByOrigin(
        {
            origin: _layered(config, _Detector(wording, sidecar, config.classifier, origin), judge)
            for origin in EVERY_ORIGIN
        },
        canary=config.canary,
    )


def _layered(config: InjectionGuard, detector: _Detector, judge: Judge | None) -> LayeredScanner:
    return LayeredScanner(
        origins=ORIGINS,
        thresholds=dict.fromkeys(LABELS, config.threshold),
        fast=detector.fast if "fast" in config.checks else None,
        clear=CLEAR,
        model=detector.model if "model" in config.checks else None,
        judge=judge,
        unclear=config.judge.unsure if config.judge is not None else UNSURE,
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
    """A text as it is, what is hidden in it, or a sentence of it."""

    number: int
    text: str
    span: tuple[int, int] | None
    """The span of the given text that it counts for; None: that of each window."""
    doubt: float = 0.0
    """Log-odds that are subtracted."""


class _Detector:
    """Both checks for one origin."""

    def __init__(
        self, wording: Wording, sidecar: Sidecar, classifier: Classifier | None, origin: Origin
    ) -> None:
        self._wording = wording
        self._sidecar = sidecar
        self._classifier = classifier
        self._origin = origin

    def fast(self, text: str) -> Mapping[str, float]:
        if len(text) < _LEAST and text.isascii():
            return {"injection": 0.0}
        log_odds = self._wording.log_odds(text)
        return {self._label(text) if log_odds > _NAMED else "injection": probability(log_odds)}

    async def model(self, texts: Sequence[str]) -> list[list[Scored]]:
        """Scores each text, what is hidden in it (which counts for the whole), and its suspect sentences."""
        read: list[_Reading] = []
        for index, text in enumerate(texts):
            same = plain(text)
            whole = None if len(same) == len(text) else (0, len(text))
            read.append(_Reading(index, same, whole))
            read.extend(_Reading(index, hidden, (0, len(text))) for hidden in self._wording.readings(same))
            for start, end in self._wording.suspects(same):
                read.append(_Reading(index, same[start:end], whole or (start, end), DOUBT))
            await asyncio.sleep(0)
        result: list[list[Scored]] = [[] for _ in texts]
        scored = 0
        for one, parts in zip(read, await self._scores([one.text for one in read]), strict=True):
            for part in parts:
                result[one.number].append(self._scored(one, part))
                scored += part.end - part.start
                if scored > _YIELD_AFTER:
                    scored = 0
                    await asyncio.sleep(0)
        return result

    async def _scores(self, texts: Sequence[str]) -> list[list[Scored]]:
        if self._classifier is not None:
            return await self._sidecar.classify(self._classifier.model, texts)
        return await self._sidecar.score("injection", texts)

    def _scored(self, one: _Reading, part: Scored) -> Scored:
        text = one.text[part.start : part.end]
        if self._classifier is not None:
            score = unsafe(self._classifier, part.scores)
        else:
            log_odds = self._wording.stacked(part.scores.get("injection", 0.0), text)
            score = probability(log_odds - one.doubt)
        start, end = one.span or (part.start, part.end)
        return Scored(start, end, {self._label(text): score})

    def _label(self, text: str) -> str:
        return "indirect" if self._origin in ("tool", "definition") else self._wording.kind(text)
