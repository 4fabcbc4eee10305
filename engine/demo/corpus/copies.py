"""Drills in copying: a text repeated, and values put into JSON. What is copied is random, so that nothing of it can be
known by heart.

A tool call is little else than copying, and a small model is slow to find that out from calls alone: most of what it
reads there can be guessed without looking back.
"""

from __future__ import annotations

import json
import random

from engine.demo.corpus.tools import plain
from engine.demo.corpus.values import value, word


def drills(rng: random.Random) -> tuple[tuple[str, str], ...]:
    """Questions and answers, one after another."""
    return tuple(rng.choice(_DRILLS)(rng) for _ in range(rng.randrange(2, 6)))


def _words(rng: random.Random, least: int, most: int) -> list[str]:
    return [word(rng) for _ in range(rng.randrange(least, most + 1))]


def _again(rng: random.Random) -> tuple[str, str]:
    text = rng.choice([" ", " ", ", "]).join(_words(rng, 2, 12))
    return rng.choice(["Repeat: ", "Copy: ", "Say again: "]) + text, text


def _listed(rng: random.Random) -> tuple[str, str]:
    """The same words, each of which begins otherwise: after a space in the question, after a quote in the answer."""
    words = _words(rng, 1, 6)
    if rng.random() < 0.5:
        words = [word.capitalize() for word in words]
    return rng.choice(["List: ", "As a list: "]) + " ".join(words), json.dumps(words)


def _fields(rng: random.Random) -> tuple[str, str]:
    names = list(dict.fromkeys(_words(rng, 1, 4)))
    values = {name: value(rng) for name in names}
    pairs = ", ".join(f"{name} {plain(given)}" for name, given in values.items())
    return rng.choice(["JSON: ", "As JSON: "]) + pairs, json.dumps(values, ensure_ascii=False)


def _names(rng: random.Random) -> tuple[str, str]:
    """One of several names, found by how it begins."""
    names = list(dict.fromkeys("_".join(_words(rng, 2, 3)) for _ in range(rng.randrange(2, 6))))
    wanted = rng.choice(names)
    return f"Which of {', '.join(names)} begins with {wanted.split('_')[0]}?", wanted


_DRILLS = (_again, _again, _listed, _fields, _fields, _names)
