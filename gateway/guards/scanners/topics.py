"""Words, phrases and patterns that a policy forbids."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.findings import Finding
from gateway.guards.scanners.custom_patterns import CustomPatterns
from gateway.guards.scanners.escapes import unglued
from gateway.guards.scanners.normalised import CONTEXT, Normalised, plain
from gateway.guards.scanners.pii import apart
from gateway.guards.scanners.scanner import Origin, Verdict
from gateway.policy.schema.guards import TopicsGuard
from gateway.types import Call

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana and Chinese characters: no spaces between words, so each sign is a word."""
_WORD = re.compile(
    rf"[{_UNSPACED}]|[^\W{_UNSPACED}\u0300-\u036f][^\W{_UNSPACED}]*(?:[\u0300-\u036f]+[^\W{_UNSPACED}]*)*|\S"
)
_SLACK = 16
"""Characters of wider spaces, and of the context that shows where a phrase's words end."""


class Topics:
    """The ``Scanner`` of one ``topics`` guard. Labels are ``word:<index>`` and ``pattern:<index>``, as in the policy.

    All words are searched in one pass. ``unbounded`` finds most patterns that could take exponential time.
    """

    origins: frozenset[Origin] = frozenset({"user", "assistant", "tool", "answer"})

    def __init__(self, config: TopicsGuard) -> None:
        self._phrases: dict[str, Any] = {}
        for index, phrase in enumerate(config.words):
            node = self._phrases
            for match in _WORD.finditer(plain(phrase)):
                node = node.setdefault(_key(match[0]), {})
            if node is not self._phrases:
                node.setdefault("", index)
        self._patterns = CustomPatterns(
            {f"pattern:{index}": pattern for index, pattern in enumerate(config.patterns)}, config.window
        )
        longest = max(map(len, config.words), default=0)
        longest = max(longest and longest + _SLACK, self._patterns.longest)
        self.longest = longest and longest + CONTEXT

    def quick(self, text: str, origin: Origin) -> Verdict:
        seen = Normalised(unglued(text))
        findings = [*seen.find(self._phrases_in), *self._patterns.find(text)]
        if seen.text != text:
            findings += seen.find(self._patterns.find)
        if not findings:
            return Verdict()
        return Verdict(tuple(apart(findings, {})), 1.0)

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        return [self.quick(text, origin) for text in texts]

    def _phrases_in(self, text: str) -> Iterator[Finding]:
        """The longest phrase at each word, by a trie of words."""
        if not self._phrases:
            return
        words = list(_WORD.finditer(text))
        plain = text.isascii()
        keys = [word[0].lower() for word in words] if plain else [_key(word[0]) for word in words]
        for first, key in enumerate(keys):
            node = self._phrases.get(key)
            last = first
            found: tuple[int, int] | None = None
            while node is not None:
                if "" in node:
                    found = (node[""], last)
                last += 1
                node = node.get(keys[last]) if last < len(keys) else None
            if found:
                yield Finding(f"word:{found[0]}", words[first].start(), words[found[1]].end())


def _key(word: str) -> str:
    """Case-folded, in Unicode normal form."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())
