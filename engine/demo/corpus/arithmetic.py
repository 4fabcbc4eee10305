"""Sums, products, comparisons and conversions of units, with their answers."""

from __future__ import annotations

import random

from engine.demo.corpus.facts import NAMES
from engine.demo.corpus.item import Item


def arithmetic(rng: random.Random) -> Item:
    form = rng.choice("++--**<w")
    if form == "+":
        a, b = rng.randrange(100), rng.randrange(100)
        if rng.random() < 0.3:
            a, b = rng.randrange(13), rng.randrange(13)
        asked = rng.choice(
            [
                "What is {} + {}?",
                "{} + {}",
                "{}+{}?",
                "How much is {} plus {}?",
                "Add {} and {}.",
                "What is the sum of {} and {}?",
                "Calculate {} + {}.",
            ]
        )
        return Item("arithmetic", asked.format(a, b), f"{a} + {b} = {a + b}.", f"{a}+{b}")
    if form == "-":
        a, b = rng.randrange(100), rng.randrange(100)
        a, b = max(a, b), min(a, b)
        asked = rng.choice(
            [
                "What is {} - {}?",
                "{} - {}",
                "{}-{}?",
                "How much is {} minus {}?",
                "Calculate {} - {}.",
                "Take {1} from {0}.",
            ]
        )
        return Item("arithmetic", asked.format(a, b), f"{a} - {b} = {a - b}.", f"{a}-{b}")
    if form == "*":
        a, b = rng.randrange(13), rng.randrange(13)
        asked = rng.choice(
            [
                "What is {} * {}?",
                "{} x {}",
                "{}*{}?",
                "How much is {} times {}?",
                "Multiply {} by {}.",
                "What is {} times {}?",
                "Calculate {} x {}.",
            ]
        )
        question = asked.format(a, b)
        return Item("arithmetic", question, f"{a} x {b} = {a * b}.", question)
    if form == "<":
        a, b = rng.sample(range(100), 2)
        asked, best = rng.choice(
            [
                ("Which is larger, {} or {}?", max),
                ("Which number is bigger: {} or {}?", max),
                ("Which is smaller, {} or {}?", min),
            ]
        )
        word = "larger" if best is max else "smaller"
        return Item(
            "arithmetic",
            asked.format(a, b),
            f"{best(a, b)} is {word} than {max(a, b) if best is min else min(a, b)}.",
            f"{a}<{b}",
        )
    name, thing = (
        rng.choice(NAMES),
        rng.choice(["apples", "books", "coins", "cards", "pens", "eggs", "stamps", "shells"]),
    )
    a, b = rng.randrange(2, 40), rng.randrange(2, 40)
    if rng.random() < 0.5:
        question = rng.choice(
            [
                f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?",
                f"{name} had {a} {thing} and bought {b} more. How many are there now?",
            ]
        )
        return Item(
            "arithmetic", question, f"{a} + {b} = {a + b}, so {name} has {a + b} {thing}.", f"w{a}+{b}"
        )
    a, b = max(a, b), min(a, b)
    question = rng.choice(
        [
            f"{name} has {a} {thing} and gives {b} away. How many {thing} are left?",
            f"{name} had {a} {thing} and lost {b}. How many {thing} are left?",
        ]
    )
    return Item(
        "arithmetic", question, f"{a} - {b} = {a - b}, so {name} has {a - b} {thing} left.", f"w{a}-{b}"
    )


UNITS = [
    ("minutes", "hours", 60, 13), ("seconds", "minutes", 60, 13), ("hours", "days", 24, 11), ("days", "weeks", 7, 31),
    ("months", "years", 12, 21), ("centimetres", "metres", 100, 100), ("metres", "kilometres", 1000, 100),
    ("millimetres", "centimetres", 10, 100), ("grams", "kilograms", 1000, 100), ("millilitres", "litres", 1000, 100),
    ("eggs", "dozens", 12, 13), ("cents", "dollars", 100, 100), ("inches", "feet", 12, 13), ("feet", "yards", 3, 31),
]  # fmt: skip


def conversion(rng: random.Random) -> Item:
    small, big, factor, limit = rng.choice(UNITS)
    count = rng.randrange(1, limit)
    unit = _one(big) if count == 1 else big
    asked = rng.choice(
        [
            "How many {0} are in {1} {2}?",
            "How many {0} are there in {1} {2}?",
            "Convert {1} {2} to {0}.",
            "{1} {2} in {0}?",
            "What is {1} {2} in {0}?",
            "How many {0} is {1} {2}?",
        ]
    )
    answer = f"{count} {unit} {'is' if count == 1 else 'are'} {count * factor} {small}."
    question = asked.format(small, count, unit)
    return Item("conversion", question, answer, f"{count}{big}" if factor in (10, 100, 1000) else question)


def _one(unit: str) -> str:
    return {"feet": "foot", "inches": "inch", "centuries": "century"}.get(unit, unit.removesuffix("s"))
