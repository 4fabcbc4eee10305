"""The arguments of a tool call: a JSON document, its texts, and how they are replaced."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping

from gateway.guards.scanners.escapes import Unescaping
from gateway.guards.texts.paths import DEEPEST
from gateway.types import Json

_HALF = re.compile(r"\\u[dD][89a-fA-F]", re.ASCII)
"""The escape of a high surrogate (RFC 8259, section 7)."""


def leaves(document: Json) -> Iterator[Json]:
    """Keys and values, in order."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from leaves(value)
    elif isinstance(document, list):
        for value in document:
            yield from leaves(value)
    else:
        yield document


def argument_texts(arguments: str) -> str:
    """The keys and values of a tool call's arguments, a line each; unchanged if it is not JSON."""
    try:
        return "\n".join(map(leaf_text, leaves(parsed(arguments))))
    except ValueError:
        return unescaped(arguments)


def parsed(arguments: str) -> Json:
    """Raises ``ValueError`` for what is not JSON, is nested too deeply, or would not survive being written again."""
    try:
        document = json.loads(
            arguments, object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_finite
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if is_deep(document):
        raise ValueError("nested too deeply")
    if _HALF.search(arguments):
        json.dumps(document, ensure_ascii=False).encode()  # a lone surrogate raises UnicodeError
    return document


def _distinct(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice, and only its last value would be read")
    return found


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is not JSON, or not a Python number")
    return value


def unescaped(arguments: str) -> str:
    """With the escapes undone that hide characters from patterns."""
    return Unescaping().feed(arguments + "\n").removesuffix("\n")


def is_deep(document: Json) -> bool:
    level = [document]
    for _ in range(DEEPEST):
        level = [
            one
            for each in level
            if isinstance(each, dict | list)
            for one in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(level)


def leaf_text(leaf: Json) -> str:
    return leaf if isinstance(leaf, str) else json.dumps(leaf)


def rewritten(document: Json, edit: Mapping[int, str]) -> str:
    """The JSON text of ``document`` with some of its leaves, by number, replaced."""
    number = -1

    def leaf(value: Json) -> Json:
        nonlocal number
        number += 1
        return edit.get(number, value)

    def walk(value: Json) -> Json:
        if isinstance(value, dict):
            return {leaf(key): walk(one) for key, one in value.items()}
        if isinstance(value, list):
            return [walk(one) for one in value]
        return leaf(value)

    return json.dumps(walk(document), ensure_ascii=False, separators=(",", ":"))


def leaf_spans(document: Json) -> list[tuple[int, int]]:
    """Where the leaves are in the ``text`` of ``document``."""
    spans = []
    start = 0
    for value in leaves(document):
        end = start + len(leaf_text(value))
        spans.append((start, end))
        start = end + 1
    return spans
