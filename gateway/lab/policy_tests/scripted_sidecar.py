"""The small models of the sidecar, by a test's own words."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.findings import Finding
from gateway.lab.policy_tests.schema import Models, Scores
from gateway.sidecar.api import Hit, LookupResult, Scored, SidecarDown

LIKENESS = 0.99
USUAL = {"injection": ("user", "tool"), "toxicity": ("hate",)}
"""What a model finds where the script does not name it."""


class _Entry(NamedTuple):
    """Of the semantic cache."""

    question: str
    payload: bytes
    key: str
    since: float
    expires: float


class ScriptedSidecar:
    """The sidecar's operations by the test's own words; what they do not name is harmless, and like nothing else."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._entries: dict[str, list[_Entry]] = {}
        """By partition."""

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        raise SidecarDown("no texts are embedded in tests of a policy")

    async def score(self, head: str, texts: Sequence[str]) -> list[list[Scored]]:
        scripted: tuple[Scores, ...] = getattr(self._models, head, ())
        if head == "complexity":
            if not scripted:
                raise SidecarDown("no complexity is scripted")
            return [[Scored(0, len(text), {"lost": _score(scripted, text)})] for text in texts]
        return [[Scored(0, len(text), _Labels(scripted, text, USUAL[head]))] for text in texts]

    async def classify(self, model: str, texts: Sequence[str]) -> list[list[Scored]]:
        return [[Scored(0, len(text), _Labels(self._models.classifier, text, ("unsafe",)))] for text in texts]

    async def entities(
        self, texts: Sequence[str], *, language: str, entities: Sequence[str]
    ) -> list[list[Finding]]:
        return [
            [
                Finding(one.label or "PERSON", found.start(), found.end(), one.score)
                for one in self._models.entities
                for found in re.finditer(re.escape(one.match), text)
            ]
            for text in texts
        ]

    async def look_up(
        self, partition: str, question: str, *, budget: float, floor: float, projects: bool = False
    ) -> LookupResult:
        now = time.monotonic()
        entries = [one for one in self._entries.get(partition, []) if one.expires > now]
        for one in reversed(entries):
            same = {one.question, question}
            if len(same) == 1 or any(same <= {*alike} for alike in self._models.alike):
                return LookupResult(Hit(one.payload, LIKENESS, LIKENESS, now - one.since), "hit", LIKENESS)
        return LookupResult(None, "unlike" if entries else "empty", 0.0 if entries else None)

    async def remember(self, partition: str, question: str, payload: bytes, *, key: str, ttl: float) -> None:
        now = time.monotonic()
        self._entries.setdefault(partition, []).append(_Entry(question, payload, key, now, now + ttl))

    async def forget(self, partition: str, key: str) -> None:
        self._entries[partition] = [one for one in self._entries.get(partition, []) if one.key != key]

    async def status(self) -> Mapping[str, Any]:
        return {"models": {}, "queue": 0, "entries": 0}

    async def aclose(self) -> None:
        """Nothing is held."""


class _Labels(dict[str, float]):
    """A model's scores of a text: what is scripted, and nothing for any other label."""

    def __init__(self, scripted: Sequence[Scores], text: str, usual: Sequence[str]) -> None:
        super().__init__()
        for one in scripted:
            if one.match in text:
                for label in usual if one.label is None else (one.label,):
                    self[label] = max(self.get(label, 0.0), one.score)

    def __missing__(self, label: str) -> float:
        return 0.0


def _score(scripted: Sequence[Scores], text: str) -> float:
    return max((one.score for one in scripted if one.match in text), default=0.0)
