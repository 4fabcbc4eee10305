"""Sentences of our own writing in several languages: what is said of groups, insults, despair, and harmless twins."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from training.toxicity_contrasts import HARMLESS, HATE, SELF_HARM, VIOLENCE, loosely

Labels = Mapping[str, float]

INSULT = {"harassment": 1, "sexual": 0, "self_harm": 0}
JEER = {"harassment": 0.5, "violence": 0, "self_harm": 0}
"""Coarse words and political abuse: worse than harmless, not by themselves to be refused."""
LEWD = {"hate": 0, "sexual": 1, "self_harm": 0}
AGAINST, ABOUT, INSULTS = 14, 14, 20
"""Groups that a pattern is filled with, and insults."""
_WITHOUT_SPACES = frozenset({"zh"})


class Written(NamedTuple):
    text: str
    labels: Labels
    """As in ``toxicity_contrasts``."""
    language: str


class Identity(NamedTuple):
    """A harmless sentence that names a group, of a pattern that is never trained on."""

    text: str
    group: str
    language: str


def sentences(seed: int = 0) -> Iterator[Written]:
    """To train on."""
    chance = random.Random(seed)
    for language, lists in _lists().items():
        for text, labels in _of_one(lists, chance):
            yield Written(text if language in _WITHOUT_SPACES else loosely(text, chance), labels, language)


def identities() -> Iterator[Identity]:
    """To test on: every pattern of ``held`` with every group."""
    for language, lists in _lists().items():
        for group in lists.get("held_groups", ()):
            for pattern in lists["held"]:
                yield Identity(_capital(pattern.format(group)), group, language)


def _of_one(lists: Mapping[str, Sequence[str]], chance: random.Random) -> Iterator[tuple[str, Labels]]:
    for patterns, label, names, each in (
        ("against", HATE, "groups", AGAINST),
        ("about", HARMLESS, "groups", ABOUT),
        ("against_one", HATE, "members", AGAINST),
        ("about_one", HARMLESS, "members", ABOUT),
        ("jeers", JEER, "targets", ABOUT),
        ("remarks", HARMLESS, "targets", ABOUT),
        ("insult_frames", INSULT, "insults", INSULTS),
    ):
        for pattern in lists.get(patterns, ()):
            for name in chance.sample(lists[names], min(each, len(lists[names]))):
                yield pattern.format(name, name=name), label
    for name, label in (
        ("curses", INSULT),
        ("coarse", JEER),
        ("lewd", LEWD),
        ("chaste", HARMLESS),
        ("gore", VIOLENCE),
        ("news", HARMLESS),
        ("harmless", HARMLESS),
        ("despair", SELF_HARM),
        ("care", HARMLESS),
    ):
        for text in lists.get(name, ()):
            yield text, label
            yield _capital(text) + chance.choice((".", "!", "")), label


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


@cache
def _lists() -> Mapping[str, Mapping[str, Sequence[str]]]:
    read: Mapping[str, Mapping[str, Sequence[str]]] = yaml.safe_load(
        Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    )
    return read
