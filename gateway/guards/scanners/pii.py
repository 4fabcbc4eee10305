"""Personal data: patterns in the gateway, and Presidio in the sidecar for what patterns cannot find."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from gateway.findings import Finding
from gateway.guards.scanners.allowed import Allowed
from gateway.guards.scanners.custom_patterns import CustomPatterns
from gateway.guards.scanners.escapes import unglued
from gateway.guards.scanners.normalised import CONTEXT, Normalised
from gateway.guards.scanners.scanner import ORIGINS, Origin, Unscanned, Verdict
from gateway.pii.entities import asked_of_sidecar, expanded
from gateway.pii.patterns import PATTERNS
from gateway.pii.patterns.pattern import Pattern
from gateway.pii.recognizers import NAMES
from gateway.policy.schema.guards import PiiGuard
from gateway.sidecar.api import Sidecar, SidecarError
from gateway.types import Call

_LONGEST_NAME = 128
"""Characters of a name, or of a number, with the context by which Presidio recognizes it."""
_CLEAN = {check: Verdict(check=check) for check in ("fast", "model")}


class Pii:
    """The ``Scanner`` of one ``pii`` guard. ``sidecar`` is asked only for entities that have no pattern here."""

    origins: frozenset[Origin] = frozenset(ORIGINS)

    def __init__(self, config: PiiGuard, sidecar: Sidecar | None) -> None:
        fast = "fast" in config.checks
        entities = expanded(config.entities, config.checks)
        self._patterns = tuple(PATTERNS[entity] for entity in entities if fast and entity in PATTERNS)
        groups: dict[str, list[Pattern]] = {}
        for pattern in self._patterns:
            groups.setdefault(pattern.needs, []).append(pattern)
        self._by_need = [(re.compile(f"[{needs}]" if needs else ""), own) for needs, own in groups.items()]
        """Patterns by the characters without which they find nothing."""
        self._asked = asked_of_sidecar(config.entities, config.checks)
        # Numbers are the same in all languages; names and dates are not.
        self._named = tuple(entity for entity in self._asked if entity in NAMES or entity == "DATE_TIME")
        self._order = {entity: rank for rank, entity in enumerate(entities)}
        self._languages = config.languages
        self._threshold = config.threshold
        self._sidecar = sidecar
        self._own = CustomPatterns(config.patterns, config.window)
        self._allowed = Allowed(config.allow)
        longest = [self._own.longest, *(pattern.longest for pattern in self._patterns)]
        if self._asked:
            longest.append(_LONGEST_NAME)
        self.longest = max(longest) and max(longest) + CONTEXT

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        if self._asked:
            return None
        return self._verdict(text, self._matches(text), "fast")

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        if self._sidecar is None:
            raise Unscanned("there is no sidecar to find " + ", ".join(self._asked))
        first, *others = self._languages
        questions = [(first, self._asked), *((language, self._named) for language in others if self._named)]
        try:
            found = await asyncio.gather(
                *(
                    self._sidecar.entities(texts, language=language, entities=entities)
                    for language, entities in questions
                )
            )
        except SidecarError as error:
            raise Unscanned(f"{type(error).__name__}: {error}") from error
        verdicts = []
        for index, text in enumerate(texts):
            if index:
                await asyncio.sleep(0)
            findings = [*self._matches(text), *(finding for each in found for finding in each[index])]
            verdicts.append(self._verdict(text, findings, "model"))
        return verdicts

    def _matches(self, text: str) -> Iterator[Finding]:
        seen = Normalised(unglued(text))
        yield from seen.find(self._own.find)
        if seen.text != text:
            yield from self._own.find(text)
        for needed, patterns in self._by_need:
            if needed.search(seen.text):
                for pattern in patterns:
                    yield from seen.find(pattern.find)

    def _verdict(self, text: str, findings: Iterable[Finding], check: str) -> Verdict:
        candidates = list(findings)
        if candidates and not self._allowed.is_empty:
            candidates = [
                one for one in candidates if not self._allowed(one.label, text[one.start : one.end])
            ]
        if not candidates:
            return _CLEAN[check]
        certain = [finding for finding in candidates if finding.score >= self._threshold]
        best = max(finding.score for finding in candidates)
        return Verdict(tuple(apart(certain, self._order)), best, check)


def apart(findings: Iterable[Finding], order: Mapping[str, int]) -> list[Finding]:
    """Resolve overlaps; the result is in the text's order.

    The higher score wins, then the one first in ``order``, then the longer one.
    """
    ranked = sorted(
        (finding for finding in findings if finding.end > finding.start),
        key=lambda it: (-it.score, order.get(it.label, len(order)), it.start - it.end, it.start),
    )
    kept: list[Finding] = []
    for finding in ranked:
        at = bisect(kept, finding.start, key=_start)
        if (not at or kept[at - 1].end <= finding.start) and (
            at == len(kept) or finding.end <= kept[at].start
        ):
            kept.insert(at, finding)
    return kept


_start = attrgetter("start")
