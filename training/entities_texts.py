"""Sentences full of names, places, organisations and addresses, from ``entities_texts.yaml``."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_FILE = Path(__file__).with_name("entities_texts.yaml")
_FIELD = re.compile(r"\{(\w+)\}")
_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
    "Mai",
    "Juni",
    "mars",
    "mayo",
    "maggio",
]


@dataclass(frozen=True)
class Labelled:
    text: str
    spans: tuple[tuple[str, int, int], ...]
    """Label, start, end."""
    source: str
    template: str
    """What texts that differ in their entities alone have in common."""


@cache
def _lists() -> Mapping[str, Sequence[str]]:
    raw: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    by_bar = ("places", "organizations", "suffixes", "kinds", "units")
    return {
        name: value
        if isinstance(value, list)
        else [part.strip() for part in value.split("|" if name in by_bar else None) if part.strip()]
        for name, value in raw.items()
    }


class Filler:
    """Makes up what stands in a sentence's places."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.make: Mapping[str, tuple[str, Callable[[], str]]] = {
            "P": ("PERSON", self.person),
            "F": ("PERSON", lambda: self._of("first")),
            "L": ("PERSON", lambda: self._of("last")),
            "G": ("LOCATION", self.place),
            "O": ("ORGANIZATION", self.organization),
            "A": ("ADDRESS", self.street),
            "Z": ("ADDRESS", self.postal_code),
            "D": ("", self.day),
            "M": ("", self.time),
            "E": ("", self.email),
            "T": ("", lambda: self._digits("0## ### ####")),
        }
        """By a sentence's letters: the label, and what makes the text."""

    def _of(self, name: str) -> str:
        return self._chance.choice(_lists()[name])

    def _digits(self, form: str) -> str:
        return "".join(str(self._chance.randint(0, 9)) if sign == "#" else sign for sign in form)

    def person(self) -> str:
        first, last = self._of("first"), self._of("last")
        initial = self._of("first")[0]
        forms = [f"{first} {last}"] * 8 + [
            first, last, f"{first} {initial}. {last}", f"{initial}. {last}", f"{first} {last}-{self._of('last')}",
            f"{last}, {first}", f"{first} {self._of('first')} {last}", f"{first} {last} {self._of('last')}",
        ]  # fmt: skip
        name = self._chance.choice(forms)
        style = self._chance.random()
        return name.lower() if style < 0.06 else name.upper() if style < 0.09 else name

    def place(self) -> str:
        place = self._of("places").removeprefix("the ")
        style = self._chance.random()
        if style < 0.08:
            place = f"{place}, {self._of('places').removeprefix('the ')}"
        return place.lower() if style > 0.94 else place.upper() if style > 0.92 else place

    def organization(self) -> str:
        style = self._chance.random()
        stem = self._of("stems") if style < 0.7 else self._of("last")
        suffix = self._of("suffixes")
        name = self._of("organizations").removeprefix("the ")
        made = (
            f"{stem} {suffix}",
            f"{stem} {suffix} {self._of('suffixes')}",
            f"{stem} & {self._of('last')}",
            stem.lower(),
        )
        if self._chance.random() < 0.5:
            return name
        return self._chance.choices(made, (6, 1, 1, 1))[0]

    def street(self) -> str:
        chance = self._chance
        values: dict[str, Callable[[], str]] = {
            "n": lambda: str(chance.choice((chance.randint(1, 99), chance.randint(1, 9999)))),
            "nn": lambda: self._digits("####"),
            "ab": lambda: chance.choice(("", "", "a", "B", "C")),
            "N": lambda: chance.choice(("N", "S.", "West", "East", "NW")),
            "ord": lambda: chance.choice(("1st", "2nd", "3rd", "5th", "42nd", "116th")),
            "street": lambda: self._of("street_names"),
            "St": lambda: self._of("kinds"),
            "Apt": lambda: self._of("units"),
            "first": lambda: self._of("first"),
            "last": lambda: self._of("last"),
            "stem": lambda: self._of("stems"),
        }
        return _FIELD.sub(lambda field: values[field[1]](), self._of("streets"))

    def postal_code(self) -> str:
        form = self._chance.choice(
            ("#####", "####", "#####-####", "## ###", "##-###", "######", "#### AB", "#####-###", "SW#A #AA")
        )
        return self._digits(form)

    def day(self) -> str:
        chance = self._chance
        day, month, year = chance.randint(1, 28), chance.choice(_MONTHS), chance.randint(1940, 2025)
        in_digits = chance.randint(1, 12)
        return chance.choice(
            (
                f"{day} {month} {year}",
                f"{month} {day}, {year}",
                f"{year}-{in_digits:02}-{day:02}",
                f"{day:02}.{in_digits:02}.{year}",
                f"{in_digits}/{day}/{year}",
                "Monday",
                "next Friday",
            )
        )

    def time(self) -> str:
        return f"{self._chance.randint(0, 23)}:{self._chance.choice(('00', '15', '30', '45'))}"

    def email(self) -> str:
        name = f"{self._of('first')}.{self._of('last')}".lower().replace(" ", "")
        return f"{name}@example.{self._chance.choice(('com', 'org', 'net'))}"


def generated(count: int, chance: random.Random) -> list[Labelled]:
    filler = Filler(chance)
    return [_filled(chance.choice(_lists()["sentences"]), filler, chance) for _ in range(count)]


def _filled(sentence: str, filler: Filler, chance: random.Random) -> Labelled:
    text, spans, done = "", [], 0
    for field in _FIELD.finditer(sentence):
        if field[1] not in filler.make:
            continue
        label, make = filler.make[field[1]]
        text += sentence[done : field.start()].replace("\\n", "\n")
        made = make()
        if label:
            spans.append((label, len(text), len(text) + len(made)))
        text += made
        done = field.end()
    text += sentence[done:].replace("\\n", "\n")
    if chance.random() < 0.1:
        text = text.rstrip(".?!")
    return Labelled(text, tuple(spans), "generated", sentence)


def swapped(text: Labelled, chance: random.Random) -> Labelled:
    """The same sentence with other names in it."""
    filler = Filler(chance)
    make = {"PERSON": filler.person, "LOCATION": filler.place, "ORGANIZATION": filler.organization}
    parts, spans, done, size = [], [], 0, 0
    for label, start, end in sorted(text.spans, key=lambda span: span[1]):
        if start < done:
            continue
        fresh = make[label]() if label in make else text.text[start:end]
        parts += [text.text[done:start], fresh]
        size += start - done
        spans.append((label, size, size + len(fresh)))
        size += len(fresh)
        done = end
    return Labelled("".join((*parts, text.text[done:])), tuple(spans), text.source, text.template)
