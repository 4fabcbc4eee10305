"""That the time of our own scanners grows with the text and not with its square, over texts made to make them slow."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from gateway.guards.scanners import disguise, layered, ngrams, secrets, wording
from gateway.guards.scanners.escapes import Unescaping, unglued
from gateway.guards.scanners.normalised import Normalised
from gateway.pii.patterns import PATTERNS

SCANS: dict[str, Callable[[str], object]] = {
    **{
        name: lambda text, find=pattern.find: list(Normalised(unglued(text)).find(find))  # type: ignore[misc]
        for name, pattern in PATTERNS.items()
    },
    "secrets": lambda text: list(secrets.find(text)),
    "plain": disguise.plain,
    "readings": lambda text: list(disguise.readings(text, frozenset())),
    "words": wording.words,
    "form": lambda text: wording.form(text, ["a"]),
    "passages of the wording": wording.passages,
    "sentences": lambda text: layered.sentences(text, 0, len(text)),
    "tokens": ngrams.tokens,
    "escapes": lambda text: Unescaping().feed(text),
}
UNITS = (
    *(
        "0",
        "a",
        "A",
        "1a",
        "!",
        "|",
        "@",
        "$!",
        "\n",
        " ",
        ".",
        "-",
        "_",
        ":",
        "/",
        "\\",
        '"',
        "<",
        "=",
        "1.",
        "1 ",
        "1-",
    ),
    *(
        "a.",
        "a@",
        "a@a.",
        "a b ",
        "a-",
        "0x",
        "\\x41",
        "\\u",
        "::",
        "f:",
        "eyJ",
        "eyJa.",
        "://a:",
        "password ",
        "token=",
    ),
    *(
        "-----BEGIN ",
        "GB12 ",
        "+1 ",
        "(1) ",
        "www.",
        "<|",
        "system",
        "you ",
        "aGVsbG8",
        "4@",
        "\u0301",
        "é",
        "中",
        "\u200b",
    ),
)
SHORT, LONG = 1000, 8000
ENOUGH = 0.05
"""Seconds of processor time below which nothing is measured well, nor matters."""


@pytest.mark.parametrize("name", SCANS)
def test_time_grows_with_the_text(name: str) -> None:
    scan = SCANS[name]
    for unit in UNITS:
        text = unit * LONG
        if (long := _seconds(scan, text[:LONG] + "\0")) < ENOUGH:
            continue
        # Eight times as long: 8 times the time, or 64.
        short = _seconds(scan, text[:SHORT] + "\0")
        assert min(long, _seconds(scan, text[:LONG] + "\0")) < max(24 * short, ENOUGH), unit


def _seconds(scan: Callable[[str], object], text: str) -> float:
    """Of this thread's own processor time, which other programs do not lengthen."""
    began = time.thread_time()
    scan(text)
    return time.thread_time() - began
