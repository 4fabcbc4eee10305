"""A question as the rules see it: its words, and the numbers, units, dates, names and forms that it asks about."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from gateway.sidecar.semantic.lexicon import groups_of, lexicon
from gateway.sidecar.semantic.stemmer import stem

MAX_CHARACTERS = 1000
"""Of a longer question the embedding sees but a part: such a one must be the same to the letter."""

_TOKEN = re.compile(
    r"[a-z]\.(?:[a-z]\.)+"  # u.s.
    r"|\d{1,3}(?:,\d{2,3})+(?:\.\d+)?[a-z%°]*"  # 1,000,000
    r"|\d+(?:[.:]\d+)*[^\W\d_]*[\w+]*%?"  # 3.5kg, 10:30, 4th, 50%, 80k, 2x
    r"|[^\W\d_]\w*(?:['’\-][^\W_]\w*)*(?:\+\+|\#)?"  # words, co-operate, c++, h2o
    r"|[$€£¥₹%°]|[−+*/^=<>]",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(.*)")
_CLAUSE = re.compile(r"[.?!:;\"“”\n(]\s*$")

_TITLE = re.compile(r"\b(?:dr|mr|mrs|ms|st|prof|vs)\. ?$", re.IGNORECASE)

_SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁺⁻]+")
_CODE = re.compile(
    r"[`{}\[\]|\\~^*=<>_@]|&&|\d ?& ?\d|[-+!]{2}|[!;]\w|->|\w\(|\(\w\b|(?<![\w)])-\w"
    r"|\d(?:!|\.{3})|\d [-+*/] \d|\b[a-zA-Z] [-+*/] [a-zA-Z]\b|(['\"])\S\1"
)
"""Looks like a program or a formula, of which every sign counts, and whether a letter is a capital."""
_PROSE = frozenset("?.!,;:'\"`´‘’“”„«»()-–—…¿¡/&%°$€£¥₹+*^=<>#、。，？！：；（）「」『』《》・")
"""Punctuation, which carries little, and signs that are tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What stands in a question. Sets hold canonical forms, so that ``kg`` and ``kilograms`` are one."""

    text: str
    tokens: tuple[str, ...]
    """Lower-case words in order, contractions written out."""
    content: tuple[str, ...]
    """Canonical stems of the words that are not function words, in order."""
    stems: frozenset[str]
    """Stems of all words."""
    numbers: tuple[float, ...]
    """Sorted."""
    codes: frozenset[str]
    """Words with digits in them: ``m605n``."""
    names: frozenset[str]
    """Capitalised within a sentence, or names in any writing."""
    units: frozenset[str]
    dates: frozenset[str]
    forms: frozenset[str]
    """How the answer shall look."""
    audiences: frozenset[str]
    kind: str
    """``how``, ``why``, ``how many``, ``is`` …"""
    negations: int
    signs: str
    """What is neither word nor punctuation, in order: emoji, operators, the vowel signs of some scripts."""


def canonical(word: str) -> str:
    """The stem of a word, or of the word that stands for its synonyms."""
    words = lexicon()
    root = stem(words.aliases.get(word) or words.units.get(word, word))
    return words.synonyms_by_stem.get(root, root)


@lru_cache(maxsize=4096)
def read(text: str) -> Question:
    """Read a question."""
    words = lexicon()
    text = _SUPERSCRIPT.sub(lambda power: "^" + power[0], text[:MAX_CHARACTERS])
    text = unicodedata.normalize("NFKC", text).replace("’", "'")
    found = [(match[0], match.start()) for match in _TOKEN.finditer(text)]
    spelled = [token for token, _ in found]
    tokens: list[str] = []
    for token in spelled:
        low = token.lower()
        if low in words.contractions:
            tokens += words.contractions[low].split()
        elif low.endswith("n't"):
            tokens += [low[:-3], "not"]
        elif "'" in low and low.rpartition("'")[2] in {"s", "re", "ve", "ll", "d", "m"}:
            tokens.append(low.rpartition("'")[0])
        else:
            tokens.append(words.aliases.get(low, low) if "." in low else low)
    numbers, codes, spoken = _numbers(tokens, spelled)
    names = _names(found, text)
    content = tuple(
        canonical(token)
        for position, token in enumerate(tokens)
        if position not in spoken and token not in words.function and (len(token) > 1 or token.isalnum())
    )
    return Question(
        text=text,
        tokens=tuple(tokens),
        content=content,
        stems=frozenset(stem(token) for token in tokens),
        numbers=tuple(sorted(numbers)),
        codes=frozenset(codes),
        names=names,
        units=_units(tokens),
        dates=groups_of(tokens, words.dates) | _periods(tokens),
        forms=_forms(tokens),
        audiences=_asked(tokens, words.audiences, words.asks_audience),
        kind=_kind(tokens),
        negations=sum(token in words.negations for token in tokens),
        signs=_signs(text),
    )


def _signs(text: str) -> str:
    text = text.strip().rstrip("? ")
    if _CODE.search(text) is None:
        text = text.rstrip("?.! ")
        return "".join([c for c in text if not (c.isalnum() or c.isspace() or c in _PROSE)])
    text = text[:1].lower() + text[1:].removesuffix(".")
    return "".join([c for c in text if not (c.isspace() or (c.isalnum() and not c.isupper()))])


def _numbers(tokens: list[str], spelled: list[str]) -> tuple[list[float], set[str], set[int]]:
    """The numbers, the words that are part number and part not, and the positions of both."""
    words = lexicon()
    numbers: list[float] = []
    codes: set[str] = set()
    positions: set[int] = set()
    open_value: float | None = None  # of the number word that may go on: twenty … three, five … hundred
    for position, token in enumerate(tokens):
        value: float | None = None
        if match := _NUMBER.fullmatch(token.replace(",", "")):
            tail = match[2].rstrip("%")
            if tail in words.magnitudes:
                value = float(match[1]) * words.magnitudes[tail]
            elif not tail or tail in {"st", "nd", "rd", "th", "s"} or tail in words.units:
                value = float(match[1])
            else:
                codes.add(token)
                positions.add(position)
        elif token in words.magnitudes and len(token) > 2:
            value = words.magnitudes[token] * (1.0 if open_value is None else open_value)
            if open_value is not None:
                numbers.pop()
        elif token != "one" and token in words.units_of_ten:
            value = float(words.units_of_ten[token])
            if open_value in words.tens.values():
                value += numbers.pop()
        elif token in words.tens:
            value = float(words.tens[token])
        elif token in words.ordinals and not (
            token == "second" and position and tokens[position - 1] == "per"
        ):
            value = float(words.ordinals[token])
        elif token in words.other_numbers:
            value = words.other_numbers[token]
        elif any(character.isdigit() for character in token):
            codes.add(token.replace("-", ""))
            positions.add(position)
        open_value = value
        if value is not None:
            numbers.append(value)
            positions.add(position)
    numbers += [float(words.roman[token]) for token in spelled if token in words.roman]
    return numbers, codes, positions


def _names(found: list[tuple[str, int]], text: str) -> frozenset[str]:
    """Names, as canonical words. Titles In Capitals tell nothing, so there only known names count."""
    words = lexicon()
    plain = [token for token, _ in found if token[0].isalpha() and token.lower() not in words.function]
    capitals = sum(token[0].isupper() for token in plain)
    headline = len(plain) > 3 and capitals > 0.7 * len(plain)
    names = set()
    for token, start in found:
        low = token.lower().removesuffix("'s")
        known = low in words.topics or low in words.languages
        if len(token) == 1 and token.isupper() and token not in "IA" and start:
            names.add(low)  # vitamin C, plan B
        if known or (
            token[0].isupper()
            and low not in words.function
            and low not in words.dates
            and low not in words.common
            and low not in words.units
            and (token[1:] != token[1:].lower() or not headline)
            and not (headline and text.isupper())
            and start
            and not (_CLAUSE.search(text[max(0, start - 3) : start]) and not _TITLE.search(text[:start]))
        ):
            names.add(canonical(low))
    return frozenset(names)


_BEFORE_UNIT = frozenset(("a", "an", "half", "degree", "degrees", "square", "cubic"))


def _units(tokens: list[str]) -> frozenset[str]:
    words = lexicon()
    units = set()
    for position, token in enumerate(tokens):
        before = tokens[position - 1] if position else ""
        if (match := _NUMBER.fullmatch(token)) and match[2] in words.units:
            units.add(words.units[match[2]])
        elif token in words.units:
            numeric = before[:1].isdigit() or before in words.units_of_ten or before in words.magnitudes
            known = not token.isalpha() or words.units[token] in words.currencies
            if (
                numeric
                or known
                or before in words.asks_unit
                or before in words.tens
                or before in _BEFORE_UNIT
            ):
                units.add(words.units[token])
        elif token in {"am", "pm"} and before[:1].isdigit():
            units.add(token)
    return frozenset(units)


def _periods(tokens: list[str]) -> set[str]:
    """``last week``, ``this week``."""
    words = lexicon()
    return {
        f"{one} {words.units.get(following, following)}"
        for one, following in pairwise(tokens)
        if one in words.nearby and (following in words.units or following in words.dates)
    }


def _asked(tokens: list[str], groups: Mapping[str, str], asking: frozenset[str]) -> frozenset[str]:
    """Groups whose words stand at most three words behind one that asks for them, or behind a number."""
    return frozenset(
        groups[token]
        for position, token in enumerate(tokens)
        if token in groups
        and any(
            before in asking or before.isdigit() or before in lexicon().units_of_ten
            for before in tokens[max(0, position - 3) : position]
        )
    )


def _forms(tokens: list[str]) -> frozenset[str]:
    words = lexicon()
    return (
        groups_of(tokens, words.forms)
        | _asked(tokens, words.weak_forms, words.asks_form)
        | {
            token
            for position, token in enumerate(tokens[1:])
            if token in words.languages and tokens[position] == "in"
        }
    )


def _kind(tokens: list[str]) -> str:
    """The question word, wherever it stands, with what it measures; else the verb that begins the sentence."""
    words = lexicon()
    for position, token in enumerate(tokens):
        if kind := words.question_kinds.get(token):
            following = tokens[position + 1] if position + 1 < len(tokens) else ""
            if kind == "how" and following in words.measures:
                return f"how {following}"
            if kind == "how" and following == "come":
                return "why"
            if kind in {"what", "how"} and {"reason", "reasons", "cause", "causes"} & set(
                tokens[position : position + 5]
            ):
                return "why"
            if kind == "what" and following == "time":
                return "when"
            return kind
    return tokens[0] if tokens else ""
