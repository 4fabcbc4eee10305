"""Toxicity: hate, harassment, violence, sexual content, self-harm. Trained by ``training/toxicity.py``."""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from gateway.guards.scanners.hidden_letters import unescaped
from gateway.guards.scanners.language import is_foreign
from gateway.guards.scanners.layered import Judge, LayeredScanner, Model, sentences, unsafe
from gateway.guards.scanners.ngrams import Ngrams
from gateway.guards.scanners.normalised import Normalised
from gateway.guards.scanners.scanner import Origin, Scanner, Verdict
from gateway.policy.schema.any_guard import Classifier
from gateway.policy.schema.guards import ToxicityGuard
from gateway.sidecar.api import Scored, Sidecar
from gateway.text.linear import log_odds, probability
from gateway.types import Call

CATEGORIES = ("hate", "harassment", "violence", "sexual", "self_harm")
ORIGINS: frozenset[Origin] = frozenset({"user", "tool", "definition", "answer"})
"""If the policy names none."""
SELF_HARM = "self_harm"
UNSAFE = "unsafe"
"""The one label of a classifier that replaces the head."""

_LONG, _MOST_SUSPECTS = 200, 8
"""Windows of more characters are scored by sentence too; the number of such sentences."""
_LEAST = 3
"""Shorter ASCII texts, such as ids and numbers in lists of inputs, are harmless."""
_PRECEDENCE = {"support": 1, "block": 0, "flag": -1}
"""Who insults himself in despair is to be helped; what is only flagged must not hide what is refused."""
_MAX_UNESCAPED = 1_000
"""Characters that are read of a run of escapes."""
_words = re.compile(r"[^\W\d_]+").findall
_WEIGHTS = Path(__file__).parent / "data" / "toxicity.json"


class ToxicityWeights(NamedTuple):
    """The fast check, and how its log-odds and the head's are combined."""

    fast: Ngrams
    english: tuple[float, float, float]
    """The weights of the head's log-odds and of the fast check's, and what is added."""
    foreign: tuple[float, float, float]
    """The same for texts in other languages, of which the embedding knows little."""
    offset: Mapping[str, float]
    """What is added besides to the log-odds of each category."""
    clear: tuple[float, float]
    """Between these probabilities the fast check does not decide."""

    def combine(self, scores: Mapping[str, float], text: str) -> dict[str, float]:
        """Probabilities by category, from the head's for a window and the window's text."""
        head, ngrams, more = self.foreign if is_foreign(text) else self.english
        return {
            label: probability(
                head * log_odds(scores[label], 1e-7) + ngrams * odds + more + self.offset[label]
            )
            for label, odds in zip(self.fast.labels, self.fast.log_odds(text), strict=True)
        }


@cache
def weights() -> ToxicityWeights:
    """Raises OSError, ValueError or KeyError if the installation is damaged."""
    tuned = json.loads(_WEIGHTS.read_text(encoding="utf-8"))
    low, high = tuned["clear"]
    return ToxicityWeights(
        Ngrams.load(_WEIGHTS),
        tuple(tuned["english"]),
        tuple(tuned["foreign"]),
        tuned["offset"],
        (low, high),
    )


def toxicity(config: ToxicityGuard, sidecar: Sidecar, judge: Judge | None) -> Scanner:
    """The scanner of a policy's guard; each category has its own threshold."""
    thresholds: dict[str, float] = {
        label: config.categories.get(label, config.threshold) for label in config.categories
    } | {label: config.threshold for label in (*CATEGORIES, UNSAFE) if label not in config.categories}
    model: Model | None = None
    if "model" in config.checks:
        model = scorer(sidecar) if config.classifier is None else classifier(sidecar, config.classifier)
    scanner = partial(
        LayeredScanner,
        origins=ORIGINS,
        fast=_wording if "fast" in config.checks else None,
        clear=weights().clear,
        model=model,
        judge=judge,
        unclear=config.judge.unsure if config.judge is not None else None,
    )
    if config.action != "block":
        return scanner(thresholds=thresholds)
    requests = scanner(thresholds=thresholds, precedence={SELF_HARM: _PRECEDENCE[config.self_harm.action]})
    if config.self_harm.action == "block":
        return requests
    # Answers that speak of self-harm help, nearly all of them: they pass, unless a judge finds fault with them.
    del thresholds[SELF_HARM]
    return ByOrigin(requests, scanner(thresholds=thresholds))


def _wording(text: str) -> Mapping[str, float]:
    if len(text) < _LEAST and text.isascii():
        return dict.fromkeys(CATEGORIES, 0.0)
    found = [weights().fast.probabilities(reading.text) for reading in _readings(text)]
    return found[0] if len(found) == 1 else {label: max(one[label] for one in found) for label in found[0]}


class _Reading(NamedTuple):
    """One way to read a text, and where what is read stands in it."""

    text: str
    place: Callable[[int, int], tuple[int, int]]


def _readings(text: str) -> list[_Reading]:
    """``text`` as a reader sees it, if letters of it are disguised, and the runs of escapes that hide letters."""
    found = [_Reading(text, lambda start, end: (start, end))]
    if not text.isascii():
        seen = Normalised(text)
        # Dashes and quotes that are read otherwise disguise nothing, and training had them as they are.
        if seen.text.strip() and _words(seen.text) != _words(unicodedata.normalize("NFKC", text)):
            found = [_Reading(seen.text, seen.place)]
    whole = (0, len(text))
    return found + [_Reading(run, lambda _start, _end: whole) for run in unescaped(text, _MAX_UNESCAPED)]


def scorer(sidecar: Sidecar) -> Callable[[Sequence[str]], Awaitable[list[list[Scored]]]]:
    """Probabilities of all categories for each window of each text, combined of the head's and the fast check's.

    A sentence of a long window that the fast check flags is scored by itself too, as the window's score may hide it.
    Raises ``SidecarError``.
    """
    tuned = weights()
    fast, combine = tuned.fast, tuned.combine

    async def score(texts: Sequence[str]) -> list[list[Scored]]:
        found: list[list[Scored]] = [[] for _ in texts]
        readings: list[tuple[int, _Reading]] = []
        for index, text in enumerate(texts):
            readings += [(index, reading) for reading in _readings(text)]
            await asyncio.sleep(0)
        suspects: list[tuple[int, _Reading, int, int]] = []
        scored = await sidecar.score("toxicity", [reading.text for _, reading in readings])
        for (index, reading), windows in zip(readings, scored, strict=True):
            text = reading.text
            for start, end, scores in windows:
                found[index].append(Scored(*reading.place(start, end), combine(scores, text[start:end])))
                await asyncio.sleep(0)
                if end - start > _LONG:
                    spans = sentences(text, start, end)
                    odd = [span for span in spans if max(fast.log_odds(text[slice(*span)])) >= 0]
                    suspects += [(index, reading, *span) for span in odd[:_MOST_SUSPECTS]]
                    await asyncio.sleep(0)
        if suspects:
            again = await sidecar.score(
                "toxicity", [reading.text[start:end] for _, reading, start, end in suspects]
            )
            for (index, reading, begin, _), windows in zip(suspects, again, strict=True):
                for start, end, scores in windows:
                    start, end = begin + start, begin + end
                    part = Scored(*reading.place(start, end), combine(scores, reading.text[start:end]))
                    found[index].append(part)
        return found

    return score


def classifier(sidecar: Sidecar, config: Classifier) -> Model:
    """The policy's own classifier, whose unsafe labels are summed up."""

    async def score(texts: Sequence[str]) -> list[list[Scored]]:
        return [
            [Scored(start, end, {UNSAFE: unsafe(config, scores)}) for start, end, scores in windows]
            for windows in await sidecar.classify(config.model, texts)
        ]

    return score


class ByOrigin:
    """A ``Scanner`` made of two, of which ``answers`` has the texts that the model writes now."""

    def __init__(self, requests: Scanner, answers: Scanner) -> None:
        self.origins = requests.origins
        self.longest = max(requests.longest, answers.longest)
        self._requests = requests
        self._answers = answers

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        return self._of(origin).quick(text, origin)

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        return await self._of(origin).thorough(texts, origin, call)

    def _of(self, origin: Origin) -> Scanner:
        return self._answers if origin == "answer" else self._requests
