"""Personal data: patterns in the gateway, and Presidio in the sidecar for what patterns cannot find."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from operator import attrgetter
from urllib.parse import urlsplit

from gateway.findings import Finding
from gateway.guards.scanners.custom_patterns import CustomPatterns
from gateway.guards.scanners.escapes import unglued
from gateway.guards.scanners.normalised import CONTEXT, Normalised, plain
from gateway.guards.scanners.scanner import ORIGINS, Origin, Unscanned, Verdict
from gateway.pii.entities import asked_of_sidecar, expanded
from gateway.pii.patterns import PATTERNS
from gateway.pii.patterns.card import TEST_CARDS
from gateway.pii.patterns.pattern import Pattern
from gateway.pii.recognizers import NAMES
from gateway.policy.schema.guards import PiiAllow, PiiGuard
from gateway.sidecar.api import Sidecar, SidecarError
from gateway.types import Call

_LONGEST_NAME = 128
"""Characters of a name, or of a number, with the context by which Presidio recognizes it."""
_CLEAN = {check: Verdict(check=check) for check in ("fast", "model")}
_SEPARATORS = str.maketrans("", "", " .-/()\u00a0")


class Allowed:
    """What a guard is to let pass: the operator's own domains and networks, test cards, certain texts. Asked by a
    finding's label and text."""

    def __init__(self, config: PiiAllow) -> None:
        self._domains = tuple(domain.lower().strip(".") for domain in config.domains)
        self._networks: list[IPv4Network | IPv6Network] = [ip_network(each) for each in config.networks]
        self._test_cards = config.test_cards
        self._texts = frozenset(_bare(text) for text in config.texts)
        self.is_empty = not (self._domains or self._networks or self._test_cards or self._texts)

    def __call__(self, label: str, text: str) -> bool:
        text = plain(text)
        if self._texts and _bare(text) in self._texts:
            return True
        if label == "CREDIT_CARD":
            return self._test_cards and text.translate(_SEPARATORS) in TEST_CARDS
        return any(self._is_own(host) for host in _hosts(label, text))

    def _is_own(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return any(host == domain or host.endswith(f".{domain}") for domain in self._domains)
        return any(address in network for network in self._networks)


def _bare(text: str) -> str:
    return plain(text).translate(_SEPARATORS).casefold()


def _hosts(label: str, text: str) -> Iterator[str]:
    """The one host that an e-mail address, a URL or an address of a machine names."""
    if label == "IP_ADDRESS":
        yield text
    elif label == "EMAIL_ADDRESS":
        yield text.rpartition("@")[2].lower()
    elif label == "URL":
        try:
            yield (urlsplit(text if "://" in text else f"//{text}").hostname or "").rstrip(".")
        except ValueError:
            return


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
