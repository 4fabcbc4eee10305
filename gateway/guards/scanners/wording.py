"""A linear model over words and form in plain Python: the injection guard's fast check.

``training/injection.py`` writes the weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import orjson

from gateway.guards.scanners.disguise import readings
from gateway.guards.scanners.normalised import plain
from gateway.text.chunks import chunks
from gateway.text.linear import LinearModel, Measures, log_odds

WEIGHTS = Path(__file__).with_name("data") / "injection.json"
CHUNK = 1_000
"""Characters that are scored together: about a window of the model's."""
OVERLAP = 250

SHORT = 300
"""Above so many characters each sentence is scored by itself too, as one order hardly changes a document's score."""
OUT_OF_CONTEXT = 2.5
"""Log-odds that are subtracted then, as a harmless sentence may sound odd out of context."""
MAX_SUSPECTS = 4

_SENTENCE = re.compile(r"[^\s.!?\n][^.!?\n]{19,}[.!?]*")
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\\W\\d_]+(?:'[a-z]+)?|\\d+|[^\\w\\s]|_")
_MARKER = re.compile(
    r"<\|?/?(?:im_start|im_end|system|user|assistant|inst)\b|\[/?inst\]|<</?sys>>|"
    r"^[^\w\n]*(?:system|assistant)\W{0,3}:|"
    r"\b(?:system|developer|admin|debug|god|root) ?mode\b|\bend of (?:document|text|prompt|input)\b",
    re.IGNORECASE | re.MULTILINE,
)
_ADDRESSED = re.compile(
    r"\b(?:you(?:r|'re)?|chat ?gpt|gpt|assistant|chatbot|(?:language )?model|llm|ai)\b", re.IGNORECASE
)
_CAPITAL = re.compile("[A-Z]")
_DIGIT = re.compile(r"\d")
_FOREIGN = re.compile("[^\\x00-\\x7f\u2010-\u2026]")

FORM = (
    "length", "words", "variety", "longest", "capitals", "digits", "foreign", "markers", "addressed",
    "addressed_share", "lines", "quotes", "brackets", "colons", "exclamations", "questions", "asks", "code", "tags",
)  # fmt: skip
"""The names of ``form``'s numbers, in order."""


class WordingWeights(NamedTuple):
    """What training writes. ``form``, ``low`` and ``high`` have an entry for each of ``FORM``."""

    grams: Mapping[str, float]
    form: Sequence[float]
    low: Sequence[float]
    """Measures below this, or above ``high``, count as this: beyond what training saw nothing is known."""
    high: Sequence[float]
    bias: float
    kinds: Mapping[str, Mapping[str, float]]
    """For ``indirect`` and ``jailbreak``, the weights by which an attack is one; ``""`` is the bias."""
    stack: tuple[float, float, float]
    """Of the model check's log-odds: the weights of the head's log-odds and of these, and a constant."""


def words(text: str) -> list[str]:
    """Lower-case words and signs; all numbers are one token, and each CJK character is one."""
    return ["0" if word[0].isdigit() else word for word in _WORD.findall(text.lower())]


def grams(tokens: Sequence[str]) -> set[str]:
    """The different words, pairs of words, and runs of three."""
    found = set(tokens)
    found.update(map(" ".join, pairwise(tokens)))
    found.update(map(" ".join, zip(tokens, tokens[1:], tokens[2:], strict=False)))
    return found


def form(text: str, tokens: Sequence[str]) -> list[float]:
    """Measures of a text; counts as logarithms."""
    log = math.log1p
    size, count = max(len(text), 1), max(len(tokens), 1)
    addressed = len(_ADDRESSED.findall(text))
    return [
        log(size),
        log(count),
        len(set(tokens)) / count,
        log(max(map(len, tokens), default=0)),
        len(_CAPITAL.findall(text)) / size,
        len(_DIGIT.findall(text)) / size,
        0.0 if text.isascii() else len(_FOREIGN.findall(text)) / size,
        float(min(len(_MARKER.findall(text)), 3)),
        log(addressed),
        addressed / count,
        log(text.count("\n")),
        log(text.count('"') + text.count("'")),
        log(text.count("[") + text.count("{")),
        log(text.count(":")),
        log(text.count("!")),
        log(text.count("?")),
        float(text.rstrip().endswith("?")),
        log(text.count("`") + text.count("=") + text.count(";")),
        log(text.count("<")),
    ]


class Wording:
    """Scores texts."""

    def __init__(self, weights: WordingWeights) -> None:
        self._weights = weights
        self._model = LinearModel.of_columns([weights.bias], [weights.grams])
        self._measures = Measures(weights.form, weights.low, weights.high)
        kinds = [dict(kind) for kind in weights.kinds.values()]
        self._kinds = LinearModel.of_columns([kind.pop("") for kind in kinds], kinds)

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> Wording:
        """Reads a weights file. Raises ``OSError`` or ``ValueError``."""
        return cls(WordingWeights(**orjson.loads(path.read_bytes())))

    def log_odds(self, text: str) -> float:
        """The highest of any chunk of ``text``, in any of its readings."""
        text = plain(text)
        worst = max(map(self._of_chunk, _chunks(text)))
        if len(text) > SHORT:
            alone = max(map(self._of_chunk, _SENTENCE.findall(text)), default=worst)
            worst = max(worst, alone - OUT_OF_CONTEXT)
        for reading in self.readings(text):
            worst = max(worst, *map(self._of_chunk, _chunks(reading)))
        return worst

    def readings(self, text: str) -> Iterator[str]:
        """Other readings of ``text``, which is plain."""
        return readings(text, self._weights.grams)

    def suspects(self, text: str) -> list[tuple[int, int]]:
        """The ``MAX_SUSPECTS`` sentences of a long text with the highest scores above 0."""
        if len(text) <= SHORT:
            return []
        scored = [(self._of_chunk(match[0]), match.span()) for match in _SENTENCE.finditer(text)]
        return [span for score, span in sorted(scored, reverse=True)[:MAX_SUSPECTS] if score > 0]

    def stacked(self, probability: float, text: str) -> float:
        """Log-odds of a window, from the head's probability and from its wording."""
        head, own, constant = self._weights.stack
        return head * log_odds(probability, 1e-6) + own * self.log_odds(text) + constant

    def kind(self, text: str) -> str:
        """``indirect``, ``jailbreak`` or ``injection``: what ``text`` is if it is an attack."""
        odds = self._kinds.log_odds(grams(words(plain(text[:CHUNK]))))
        best, kind = max(zip(odds, self._weights.kinds, strict=True), default=(0.0, ""))
        return kind if best > 0 else "injection"

    def _of_chunk(self, text: str) -> float:
        tokens = words(text)
        return self._model.log_odds(grams(tokens))[0] + self._measures.total(form(text, tokens))


def _chunks(text: str) -> Iterator[str]:
    return chunks(text, CHUNK, OVERLAP, slack=OVERLAP)
