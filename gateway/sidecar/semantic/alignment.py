"""What two questions' words have in common and what not, as numbers for the verifier's trees."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gateway.sidecar.semantic.question import Question
from gateway.sidecar.semantic.rules import unmatched

Floats = NDArray[np.float32]

BUCKETS = 1 << 14
"""Of the table of inverse document frequencies: words are hashed, none is stored."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_KINDS = _words(
    "how what why is can should do does who where when how-many how-much how-long are will did have i if"
)
_KIND_NUMBERS = {kind.replace("-", " "): number for number, kind in enumerate(_KINDS)}
_ON_ONE_SIDE = _words(
    "i you my your will can should would do is did some any there it this to in for on or and if than really ever"
    " while have been one more much get want a the best way ways good people most new work online become better"
    " after free possible first time years"
)
_ON_EACH_SIDE = _words("best what how i or and if difference")


def bucket(word: str) -> int:
    return crc32(word.encode()) % BUCKETS


def vocabulary(question: Question) -> set[int]:
    """Buckets of a question's words."""
    return {bucket(word) for word in {*question.content, *question.tokens}}


def features(a: Question, b: Question, cosine: float, idf: Floats) -> list[float]:
    """In a fixed order; ``idf`` by bucket."""

    def weight(words: Iterable[str]) -> float:
        return float(sum(idf[bucket(word)] for word in words))

    def rarest(words: Iterable[str]) -> float:
        return max((float(idf[bucket(word)]) for word in words), default=0.0)

    content_a, content_b = set(a.content), set(b.content)
    only_a, only_b, shared = content_a - content_b, content_b - content_a, content_a & content_b
    alone = len(unmatched(a, b)), len(unmatched(b, a))
    weight_a, weight_b, weight_shared = weight(only_a), weight(only_b), weight(shared)
    rare_a, rare_b = rarest(only_a), rarest(only_b)
    tokens_a, tokens_b = set(a.tokens), set(b.tokens)
    plain_a, plain_b = tokens_a - tokens_b, tokens_b - tokens_a
    kind_a, kind_b = _KIND_NUMBERS.get(a.kind, -1), _KIND_NUMBERS.get(b.kind, -1)
    grams_a, grams_b = _trigrams(a.tokens), _trigrams(b.tokens)
    return [
        cosine,
        *_both(len(only_a), len(only_b)),
        *_both(*alone),
        *_both(weight_a, weight_b),
        *_both(rare_a, rare_b),
        weight_shared,
        rarest(shared),
        len(shared),
        weight_shared / (weight_shared + weight_a + weight_b + 1e-6),
        len(shared) / (len(content_a | content_b) + 1e-6),
        *_both(len(plain_a), len(plain_b)),
        len(tokens_a & tokens_b) / (len(tokens_a | tokens_b) + 1e-6),
        weight(plain_a) + weight(plain_b),
        *_both(len(a.tokens), len(b.tokens)),
        SequenceMatcher(None, a.tokens, b.tokens, autojunk=False).ratio(),
        SequenceMatcher(None, a.content, b.content, autojunk=False).ratio(),
        len(grams_a & grams_b) / (len(grams_a | grams_b) + 1e-6),
        *_both(_closest(only_a, only_b), _closest(only_b, only_a)),
        float(a.kind == b.kind),
        *_both(kind_a, kind_b)[1:],
        len(a.names & b.names),
        len(a.numbers),
        *(float((word in tokens_a) != (word in tokens_b)) for word in _ON_ONE_SIDE),
        *(float(word in tokens_a) + float(word in tokens_b) for word in _ON_EACH_SIDE),
    ]


def _both(one: float, other: float) -> tuple[float, float, float]:
    """The same whichever way round the questions stand."""
    return one + other, min(one, other), max(one, other)


def _trigrams(tokens: tuple[str, ...]) -> set[str]:
    text = f" {' '.join(tokens)} "
    return {text[start : start + 3] for start in range(len(text) - 2)}


def _closest(words: set[str], others: set[str]) -> float:
    """How near, letter by letter, the worst of ``words`` comes to one of ``others``."""
    return min(
        (
            max((SequenceMatcher(None, word, other, autojunk=False).ratio() for other in others), default=0.0)
            for word in sorted(words)[:8]
        ),
        default=1.0,
    )
