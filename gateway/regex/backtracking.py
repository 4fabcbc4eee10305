"""Which patterns may take exponential time in Python's backtracking engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

_REPEATS = frozenset({"MAX_REPEAT", "MIN_REPEAT"})
_MANY = 16


def unbounded(pattern: str) -> str | None:
    """Why a pattern may take exponential time, which nothing can interrupt; None if it cannot.

    The cause is a repetition whose body matches the same text in several ways: one with a repetition inside, as in
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
    """The bodies of all long repetitions."""
    for operation, argument in parsed:
        if str(operation) in _REPEATS and argument[1] > _MANY:
            yield argument[2]
        for part in _parts(argument):
            yield from _repeated(part)


def _is_plain(body: Any, *, after: Any) -> bool:
    """Whether the next few characters determine how ``body`` matches; ``after`` is what may follow it."""
    items = list(body)
    for at, (operation, argument) in enumerate(items):
        name = str(operation)
        rest = [*items[at + 1 :], *after]
        if name == "BRANCH":
            ways = [[*way, *rest] for way in argument[1]]
            if any(_begin_alike(one, other) for number, one in enumerate(ways) for other in ways[:number]):
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
"""Sample characters by which sets are compared, of every class that patterns distinguish."""


def _begin_alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether some text may begin both, by their leading single characters and the item that follows."""
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
    """With which characters of the alphabet ``items`` may begin; all of them if unknown."""
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
    """In either case, as the flags are not known here."""
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
    """The parsed patterns in an operation's argument: groups, alternatives, look-arounds."""
    if hasattr(argument, "data"):
        yield argument
    elif isinstance(argument, tuple | list):
        for each in argument:
            yield from _parts(each)
