"""The English word lists of ``lexicon.json``, by which ``question.py`` and ``rules.py`` read questions.

In the file a list of words may be split over several strings. In a list of groups each string is a group, whose first
word stands for all of them. Words that are in no list are compared as they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import orjson

from gateway.sidecar.semantic.stemmer import stem

SHIPPED = Path(__file__).with_name("lexicon.json")

Words = frozenset[str]
WordsByName = Mapping[str, Words]
Names = Mapping[str, str]
Groups = Mapping[str, str]
"""Each word of a group, to the group's first."""
Values = Mapping[str, float]
Pairs = tuple[tuple[Words, Words], ...]


@dataclass(frozen=True)
class Lexicon:
    """A field for each list; the name of its type says how it is read (``_READERS``)."""

    function: Words
    """Words that carry little by themselves."""
    contractions: Names
    negations: Words
    negative_prefixes: Words
    units_of_ten: Values
    """``zero`` to ``nineteen``."""
    tens: Values
    ordinals: Values
    other_numbers: Values
    magnitudes: Values
    roman: Values
    units: Groups
    dates: Groups
    forms: Groups
    """Forms that an answer may be asked for in."""
    weak_forms: Groups
    """Forms only after a word of ``asks_form``: ``as a list``, ``in three sentences``, ``write a story``."""
    nearby: Words
    asks_form: Words
    lengths: Groups
    audiences: Groups
    asks_audience: Words
    languages: Words
    topics: Words
    aliases: Names
    synonyms: Groups
    opposites: Pairs
    """Words that, one of each side, turn a question into another."""
    question_kinds: Names
    auxiliaries: Groups
    """At the beginning of a question, those of one group ask alike."""
    measures: Words
    """After ``how``: each asks for another quantity."""
    measured: WordsByName
    """``how old`` is asked by ``age`` too."""
    strict_quantifiers: Groups
    directed: Words
    symmetric: Words
    """What may stand between two things whose order does not matter."""
    joining: Words
    mutual: Words
    currencies: Words
    asks_unit: Words
    """Before a unit: it is asked about. Elsewhere ``year`` and ``bit`` are mere words, unless a number precedes."""
    common: Words
    """Words that some write with a capital, and that are no names."""
    suffixes: Words
    """Endings, as stemmed, that make another form of the same word."""
    generic: Words
    """Words that may be there or not, or one for another, without making it another question."""

    @classmethod
    def load(cls, path: Path = SHIPPED) -> Lexicon:
        """Raises ``OSError``, or ``ValueError`` for a file in which a list is missing, unknown or malformed."""
        lists = orjson.loads(path.read_bytes())
        kinds = {field.name: str(field.type) for field in fields(cls)}
        if not isinstance(lists, dict) or lists.keys() != kinds.keys():
            wrong = sorted(set(lists) ^ kinds.keys()) if isinstance(lists, dict) else sorted(kinds)
            raise ValueError(f"{path}: these lists are missing or unknown: {', '.join(wrong)}")
        try:
            return cls(**{name: _READERS[kind](lists[name]) for name, kind in kinds.items()})
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: a list is malformed: {error}") from error

    @cached_property
    def synonyms_by_stem(self) -> Mapping[str, str]:
        return {stem(word): stem(group) for word, group in self.synonyms.items()}

    @cached_property
    def opposites_by_stem(self) -> Mapping[str, Words]:
        found: dict[str, Words] = {}
        for left, right in self.opposites:
            for these, those in ((left, right), (right, left)):
                for root in map(stem, these):
                    found[root] = found.get(root, frozenset()) | {stem(other) for other in those}
        return found


@cache
def lexicon() -> Lexicon:
    """The shipped one; read on first use."""
    return Lexicon.load()


def groups_of(words: Iterable[str], groups: Groups) -> Words:
    """The groups to which the words belong."""
    return frozenset(groups[word] for word in words if word in groups)


def _words(strings: list[str]) -> Words:
    if not isinstance(strings, list):
        raise TypeError(f"{strings!r} is no list")
    return frozenset(word for string in strings for word in string.split())


def _groups(strings: list[str]) -> Groups:
    return {word: first for first, *others in map(str.split, strings) for word in (first, *others)}


def _names(table: Mapping[str, str]) -> Names:
    return {word: name.strip() for word, name in table.items()}


def _values(table: Mapping[str, float]) -> Values:
    return {word: float(value) for word, value in table.items()}


def _pairs(strings: list[str]) -> Pairs:
    sides = (string.split(" / ") for string in strings)
    return tuple((_words([left]), _words([right])) for left, right in sides)


def _words_by_name(table: Mapping[str, str]) -> WordsByName:
    return {name: _words([words]) for name, words in table.items()}


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "Words": _words,
    "WordsByName": _words_by_name,
    "Names": _names,
    "Groups": _groups,
    "Values": _values,
    "Pairs": _pairs,
}
