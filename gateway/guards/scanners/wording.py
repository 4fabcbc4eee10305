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
from gateway.guards.scanners.passages import LEAST, Span, around, passages, segments
from gateway.guards.scanners.senses import senses
from gateway.text.chunks import chunks
from gateway.text.linear import LinearModel, Measures, log_odds

WEIGHTS = Path(__file__).with_name("data") / "injection.json"
CHUNK = 1_000
"""Characters that are scored together."""
OVERLAP = 250
SHORT = 300
"""Above so many characters each passage is scored by itself too, as one order hardly changes a document's score."""
MAX_SUSPECTS = 4

_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\\W\\d_]+(?:'[a-z]+)?|\\d+|[^\\w\\s]|_|\n")
_MAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,24}){1,4}")
_URL = re.compile(r"https?://[^\s\"'<>)\]]{1,300}")
_STARTS = frozenset(".!?:\"'>#*{[(-")
"""Signs and, beside them, line feeds after which a sentence or a value begins."""
START, MAIL, URL = "\u2402", "\u2709", "\u21d2"
"""Tokens: the beginning of a sentence, any e-mail address, any link."""

_MARKER = re.compile(
    r"<\|?/?(?:im_start|im_end|system|user|assistant|inst|start_header_id|eot_id|start_of_turn|end_of_turn)\b|"
    r"\[/?inst\]|<</?sys>>|</(?:user_input|input|document|tool_result|untrusted)>|"
    r"^[^\w\n]*(?:system|assistant|developer)\W{0,3}:|"
    r"\b(?:system|developer|admin|debug|god|root|test|maintenance) ?mode\b|"
    r"\b(?:end|begin)(?: of)?(?: (?:the|this|untrusted|user|system|new)){0,3} "
    r"(?:document|text|prompt|input|instructions|message|context|data)\b",
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
    """What training writes for one origin. ``form``, ``low`` and ``high`` have an entry for each of ``FORM``."""

    grams: Mapping[str, float]
    form: Sequence[float]
    low: Sequence[float]
    """Measures below this, or above ``high``, count as this: beyond what training saw nothing is known."""
    high: Sequence[float]
    bias: float
    alone: float
    """Log-odds that are subtracted from a passage, as a harmless one may sound odd out of context."""
    whole: bool
    """Whether chunks count as a whole. A tool's result is data: only an order in it counts."""
    read: int
    """Characters that the model reads of a suspect passage and what stands around it."""
    stack: tuple[float, float, float]
    """Of the model check's log-odds: the weights of the head's log-odds and of these, and a constant."""
    kinds: Mapping[str, Mapping[str, float]]
    """For ``jailbreak``, the weights by which an attack is one; ``""`` is the bias."""


def words(text: str) -> list[str]:
    """Lower-case words and signs, with ``START`` before what begins a sentence.

    All numbers are one token, all addresses and all links; each CJK character is one.
    """
    text = text.lower()
    if "@" in text:
        text = _MAIL.sub(MAIL, text)
    if "://" in text:
        text = _URL.sub(URL, text)
    found: list[str] = []
    begins = True
    for word in _WORD.findall(text):
        if word == "\n":
            begins = True
        elif word in _STARTS:
            found.append(word)
            begins = True
        else:
            if begins:
                found.append(START)
                begins = False
            found.append("0" if word[0].isdigit() else word)
    return found


def grams(tokens: Sequence[str]) -> set[str]:
    """The different words, pairs of words, runs of three, and senses."""
    found = set(tokens)
    found.discard(START)
    found.update(map(" ".join, pairwise(tokens)))
    found.update(map(" ".join, zip(tokens, tokens[1:], tokens[2:], strict=False)))
    found |= senses(tokens)
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
    """Scores texts of one origin."""

    def __init__(self, weights: WordingWeights) -> None:
        self._weights = weights
        self._model = LinearModel.of_columns([weights.bias], [weights.grams])
        self._measures = Measures(weights.form, weights.low, weights.high)
        kinds = [dict(kind) for kind in weights.kinds.values()]
        self._kinds = LinearModel.of_columns([kind.pop("") for kind in kinds], kinds)

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> dict[str, Wording]:
        """By origin, ``user`` and ``tool``, from a weights file. Raises ``OSError`` or ``ValueError``."""
        return {
            origin: cls(WordingWeights(**given)) for origin, given in orjson.loads(path.read_bytes()).items()
        }

    def log_odds(self, text: str) -> float:
        """The highest of any chunk or passage of ``text``, in any of its readings."""
        text = plain(text)
        return max(self._of_plain(text), *map(self._of_plain, self.readings(text)), -math.inf)

    def readings(self, text: str) -> Iterator[str]:
        """Other readings of ``text``, which is plain."""
        return readings(text, self._weights.grams)

    def suspects(self, text: str) -> list[Span]:
        """What a model should read of ``text``, which is plain: the passages with the highest scores, each with what
        stands around it. One for each 2,000 characters, at most ``MAX_SUSPECTS``; of a short text all."""
        most = self._weights.read
        if len(text) <= most:
            return [(0, len(text))]
        parts = segments(text)
        ranked = sorted(((self._of_part(text[a:b]), (a, b)) for a, b in passages(text)), reverse=True)
        chosen: list[Span] = []
        for _, span in ranked or [(0.0, (0, most))]:
            if all(span[1] <= start or end <= span[0] for start, end in chosen):
                chosen.append(around(span, parts, len(text), most))
                if len(chosen) == min(MAX_SUSPECTS, 1 + len(text) // 2_000):
                    break
        return chosen

    def stacked(self, probability: float, own: float) -> float:
        """Log-odds of what a model has read: from its probability, and from this check's log-odds of the text."""
        head, wording, constant = self._weights.stack
        return head * log_odds(probability, 1e-6) + wording * own + constant

    def kind(self, text: str) -> str:
        """``jailbreak`` or ``injection``: what ``text`` is if it is an attack."""
        odds = self._kinds.log_odds(grams(words(plain(text[:CHUNK]))))
        best, kind = max(zip(odds, self._weights.kinds, strict=True), default=(0.0, ""))
        return kind if best > 0 else "injection"

    def _of_plain(self, text: str) -> float:
        own = self._weights
        worst = max(map(self._of_part, _chunks(text))) if own.whole or len(text) <= LEAST else -math.inf
        if not own.whole or len(text) > SHORT:
            spans = passages(text) or [(0, len(text))]
            worst = max(worst, max(self._of_part(text[start:end]) for start, end in spans) - own.alone)
        return worst

    def _of_part(self, text: str) -> float:
        tokens = words(text)
        return self._model.log_odds(grams(tokens))[0] + self._measures.total(form(text, tokens))


def _chunks(text: str) -> Iterator[str]:
    return chunks(text, CHUNK, OVERLAP, slack=OVERLAP)
