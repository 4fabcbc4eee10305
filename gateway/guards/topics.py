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

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
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
    """Why a pattern may take time exponential in the text, which nothing can interrupt; None where it cannot.

    That takes a repetition whose body fits the same text in several ways: one with a repetition inside, as in
    ``(a+)+``, or with alternatives or options that begin alike, as in ``(a|b|ab)*`` and ``(a?ab?)*``. Such a pattern
    can be written without.
    """
    try:
        from re import _parser  # type: ignore[attr-defined]
    except ImportError:
        return None
    parsed = _parser.parse(pattern)
    if _nested(parsed, within=False):
        return "has a repetition inside a repetition, which can take very long; write it with one, as (a+)+ is a+"
    if any(not _is_plain(body, after=body) for body in _repeated(parsed)):
        return (
            "repeats alternatives or options that can begin alike, which can take very long; let each begin with "
            "another character, as (a|ab)* is (ab?)*"
        )
    return None


def _repeated(parsed: Any) -> Iterator[Any]:
    """The bodies of all repetitions that may go on for long."""
    for operation, argument in parsed:
        if str(operation) in _REPEATS and argument[1] > _MANY:
            yield argument[2]
        for part in _parts(argument):
            yield from _repeated(part)


def _is_plain(body: Any, *, after: Any) -> bool:
    """Whether the next few characters say how ``body`` goes on; ``after`` is what may follow it."""
    items = list(body)
    for place, (operation, argument) in enumerate(items):
        name = str(operation)
        rest = [*items[place + 1 :], *after]
        if name == "BRANCH":
            ways = [[*way, *rest] for way in argument[1]]
            if any(_begin_alike(one, other) for at, one in enumerate(ways) for other in ways[:at]):
                return False
            if not all(_is_plain(way, after=rest) for way in argument[1]):
                return False
        elif name in _REPEATS:
            least, most, inner = argument
            if least != most and _begin_alike(list(inner), rest):
                return False
            if not _is_plain(inner, after=[*inner, *rest] if most > 1 else rest):
                return False
        elif name == "SUBPATTERN":
            if not _is_plain(argument[-1], after=rest):
                return False
        elif name not in _CHARACTERS and name not in _ZERO_WIDTH:
            return False
    return True


_CHARACTERS = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN"})
_ZERO_WIDTH = frozenset({"AT", "ASSERT", "ASSERT_NOT"})
_ALPHABET = tuple(map(chr, (*range(0x600), *range(0x2000, 0x2100), 0x3042, 0x4E2D, 0xAC00, 0x1F600)))
"""Characters by which sets are compared: of every kind that patterns tell apart."""


def _begin_alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether some text begins both, as far as characters that stand one by one tell, and the next one thing."""
    same = 0
    for mine, its in zip(one, other, strict=False):
        if str(mine[0]) not in _CHARACTERS or str(its[0]) not in _CHARACTERS:
            break
        if _fitting(*mine).isdisjoint(_fitting(*its)):
            return False
        same += 1
    one, other = one[same:], other[same:]
    return not one or not other or not _first(one).isdisjoint(_first(other))


def _first(items: Any) -> frozenset[str]:
    """With which characters of the alphabet ``items`` may begin; all of them where that cannot be told."""
    found: frozenset[str] = frozenset()
    for operation, argument in items:
        name = str(operation)
        if name in _ZERO_WIDTH:
            continue
        if name in _CHARACTERS:
            return found | _fitting(operation, argument)
        if name == "SUBPATTERN":
            inner, optional = argument[-1], _can_be_empty(argument[-1])
        elif name in _REPEATS:
            inner, optional = argument[2], argument[0] == 0 or _can_be_empty(argument[2])
        elif name == "BRANCH":
            found = found.union(*map(_first, argument[1]))
            if any(map(_can_be_empty, argument[1])):
                continue
            return found
        else:
            return frozenset(_ALPHABET)
        found |= _first(inner)
        if not optional:
            return found
    return found


def _can_be_empty(items: Any) -> bool:
    least: int = items.getwidth()[0]
    return least == 0


def _fitting(operation: Any, argument: Any) -> frozenset[str]:
    """In either case of letters: whether case counts is not told here."""
    from re import _compiler, _parser  # type: ignore[attr-defined]

    state = _parser.State()
    state.str = ""
    one = _compiler.compile(_parser.SubPattern(state, [(operation, argument)]), re.IGNORECASE | re.DOTALL)
    return frozenset(sign for sign in _ALPHABET if one.match(sign))


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
