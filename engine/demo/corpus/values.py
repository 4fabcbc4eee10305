"""Random values of arguments, mostly of kinds that no model can know by heart."""

from __future__ import annotations

import random
from collections.abc import Callable

import engine.demo.corpus.facts as facts
from engine.demo.corpus.facts import NAMES, SHORT_WORDS
from engine.demo.corpus.tools import Value

Draw = Callable[[random.Random], Value]


def word(rng: random.Random) -> str:
    """A word that nobody has seen."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randrange(2, 4)))


def place(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.5:
        return rng.choice(facts.rows(facts.COUNTRIES))[1]
    if roll < 0.75:
        return rng.choice(_CITIES)
    return word(rng).capitalize()


def name(rng: random.Random) -> str:
    return rng.choice(NAMES) if rng.random() < 0.6 else word(rng).capitalize()


def phrase(rng: random.Random) -> str:
    roll = rng.random()
    if roll < 0.3:
        return rng.choice(_TOPICS)
    return " ".join(
        rng.choice(SHORT_WORDS) if rng.random() < 0.7 else word(rng) for _ in range(rng.randrange(1, 4))
    )


def code(rng: random.Random) -> str:
    letters = "".join(rng.choice("ABCDEFGHJKLMNPRSTUVWXYZ") for _ in range(rng.randrange(1, 4)))
    return letters + rng.choice(["-", ""]) + str(rng.randrange(1, 10000))


def symbol(rng: random.Random) -> str:
    return "".join(rng.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ") for _ in range(rng.randrange(3, 5)))


def whole(rng: random.Random) -> int:
    return rng.randrange(0, rng.choice([10, 100, 1000, 100_000]))


def number(rng: random.Random) -> float | int:
    return rng.randrange(1, 500) if rng.random() < 0.6 else rng.randrange(1, 5000) / 10


def sum_(rng: random.Random) -> str:
    space = rng.choice(["", " "])
    return f"{whole(rng)}{space}{rng.choice('+-*/')}{space}{whole(rng)}"


def mail(rng: random.Random) -> str:
    return f"{name(rng).lower()}@{rng.choice(['example.com', 'example.org', word(rng) + '.com'])}"


def date(rng: random.Random) -> str:
    return f"{rng.randrange(2020, 2030)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


def value(rng: random.Random) -> Value:
    """Any that an argument may have."""
    return rng.choice(ARGUMENTS)[2](rng)


def split_words(text: str) -> list[str]:
    return text.split()


_SYLLABLES = split_words(
    """ba be bo ca co da de di do fa fi ga go ha hi ka ki ko la le li lo ma me mi mo na ne no pa pe po ra
    re ri ro sa se si so ta te ti to va ve vi wa wi ya yo za zo an el in or ur ell ost and ing ster ton
    ville burg"""
)
_CITIES = ["San Francisco", "New York", "Boston", "Seattle", "Chicago", "Los Angeles", "San Francisco, CA", "New York, NY", "Boston, MA",
           "Paris, France", "London, UK", "Munich", "Hamburg", "Zurich", "Geneva", "Milan", "Barcelona", "Amsterdam", "Brussels", "Prague",
           "Singapore", "Sydney", "Toronto", "Dubai", "Mumbai", "Shanghai", "Hong Kong", "Seoul", "Istanbul", "Moscow"]  # fmt: skip
_TOPICS = ["the weather", "red shoes", "cheap flights", "open source models", "good books", "python lists", "solar power", "news about Mars",
           "pizza near me", "the best pizza", "history of jazz", "train times", "climate change", "chess openings"]  # fmt: skip
ARGUMENTS: list[tuple[list[str], str, Draw]] = [
    (["name", "user", "person", "owner", "to", "username"], "string", name),
    (["city", "location", "place", "destination", "town"], "string", place),
    (["query", "text", "title", "subject", "message", "topic", "q", "input", "s"], "string", phrase),
    (["id", "code", "order_id", "key", "number", "ref"], "string", code),
    (["count", "amount", "n", "limit", "quantity", "a", "size"], "integer", whole),
    (["price", "value", "weight", "x", "b", "ratio"], "number", number),
    (["date", "day", "on", "due"], "string", date),
    (["colour", "color"], "red|green|blue", lambda rng: rng.choice(["red", "green", "blue"])),
    (["mode", "level"], "low|high", lambda rng: rng.choice(["low", "high"])),
    (["urgent", "force", "loud"], "boolean", lambda rng: rng.random() < 0.5),
]  # fmt: skip
