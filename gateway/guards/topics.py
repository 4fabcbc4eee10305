"""Words, phrases and patterns that are not to be spoken of."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.guards.escapes import unglued
from gateway.guards.finding import Finding, Origin, Verdict
from gateway.guards.pii import apart
from gateway.policy.schema.guards import TopicsGuard

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, kana and Chinese characters: no spaces between words, so each sign is a word."""
_WORD = re.compile(
    rf"[{_UNSPACED}]|[^\W{_UNSPACED}\u0300-\u036f][^\W{_UNSPACED}]*(?:[\u0300-\u036f]+[^\W{_UNSPACED}]*)*|\S"
)
_SLACK = 16
"""Characters of wider spaces, and of the signs beside a phrase that show where its words end."""


class Topics:
    """The ``Scanner`` of one ``topics`` guard. Labels are ``word:<index>`` and ``pattern:<index>``, as in the policy.

    All words together are looked for in one pass. A pattern is tried on stretches of twice the guard's window, which
    overlap by the window: so its time grows with the text and not with its square, what it finds is at most that
    long, and what it is sure to find is at most a window long. ``unbounded`` finds most patterns that even so could
    take forever.
    """

    origins: frozenset[Origin] = frozenset({"user", "assistant", "tool", "answer"})

    def __init__(self, config: TopicsGuard) -> None:
        self._phrases: dict[str, Any] = {}
        for index, phrase in enumerate(config.words):
            node = self._phrases
            for match in _WORD.finditer(phrase):
                node = node.setdefault(_key(match[0]), {})
            if node is not self._phrases:
                node.setdefault("", index)
        self._patterns = tuple(re.compile(pattern) for pattern in config.patterns)
        self._window = config.window
        longest = max(map(len, config.words), default=0)
        self.longest = max(longest and longest + _SLACK, config.window if config.patterns else 0)

    def quick(self, text: str, origin: Origin) -> Verdict:
        plain = unglued(text)
        findings = [*self._said(plain), *self._matched(text)]
        if plain is not text:
            findings += self._matched(plain)
        if not findings:
            return Verdict()
        return Verdict(tuple(apart(findings, {})), 1.0)

    async def thorough(self, texts: Sequence[str], origin: Origin) -> list[Verdict]:
        return [self.quick(text, origin) for text in texts]

    def _said(self, text: str) -> Iterator[Finding]:
        """The longest phrase at each word; phrases stand in a tree, word by word."""
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

    def _matched(self, text: str) -> Iterator[Finding]:
        step, length = self._window, len(text)
        for index, pattern in enumerate(self._patterns):
            first = last = 0
            for start in range(0, length, step):
                end = min(start + 2 * step, length)
                for match in pattern.finditer(text, start, end):
                    if match.start() >= start + step and end < length:
                        break  # the next stretch shows it whole
                    if match.start() >= last:
                        if last > first:
                            yield Finding(f"pattern:{index}", first, last)
                        first = match.start()
                    # One that is longer than a stretch goes on in the next.
                    last = max(last, match.end())
            if last > first:
                yield Finding(f"pattern:{index}", first, last)


def _key(word: str) -> str:
    """Without regard to case, and to how the same letter is put together in Unicode."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", word).casefold())


_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT"})
_MANY = 16


def unbounded(pattern: str) -> str | None:
    """Why a pattern may take time exponential in the text, which nothing can interrupt; None where it does not.

    A repetition inside a repetition, as in ``(a+)+``, is what does it. Such a pattern can be written without. Repeated
    alternatives or options that fit the same text, as in ``(a|b|ab)*``, do it too, and are not found.
    """
    try:
        from re import _parser  # type: ignore[attr-defined]
    except ImportError:
        return None
    if _nested(_parser.parse(pattern), within=False):
        return "has a repetition inside a repetition, which can take very long; write it with one, as (a+)+ is a+"
    return None


def _nested(parsed: Any, *, within: bool) -> bool:
    for operation, argument in parsed:
        name = str(operation)
        if name in _REPEATS:
            repeats = argument[1] > _MANY
            if repeats and within:
                return True
            inner = [argument[2]]
            if any(_nested(each, within=within or repeats) for each in inner):
                return True
        else:
            for part in _parts(argument):
                if _nested(part, within=within):
                    return True
    return False


def _parts(argument: Any) -> Iterator[Any]:
    """The parsed patterns that stand in an operation's argument: groups, alternatives, look-arounds."""
    if hasattr(argument, "data"):
        yield argument
    elif isinstance(argument, tuple | list):
        for each in argument:
            yield from _parts(each)
