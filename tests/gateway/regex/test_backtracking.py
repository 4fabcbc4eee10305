"""Which patterns could take forever."""

from __future__ import annotations

import re

import pytest

from gateway.regex.backtracking import unbounded


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", r"(\w+\s?)*x", "((?:ab)*c)*", "(?=(a*)*)b", "(?:a|b+)*", "(a{1,100})+"]
)
def test_patterns_that_could_take_forever_are_told(pattern: str) -> None:
    assert "repetition" in (unbounded(pattern) or "")


@pytest.mark.parametrize(
    "pattern",
    ["(a|b|ab)*c", "(a?ab?)*", "(?:|a)+b", "(a?)*b", "(a|.)*b", "(?:a{1,3}b?a)+", r"(?:\w|ab)+c"],
)
def test_repeated_alternatives_that_begin_alike_are_told(pattern: str) -> None:
    assert "begin alike" in (unbounded(pattern) or "")


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "(?:foo|bar|baz)+",
            r"(?:\w-)*\w",
            "(?:[a-z]-?)+x",
            r"(?:\d{3},)*\d+",
            "(?:ab?)*",
            "(x|y|z)*",
            "(?:a|ab)+c",
        ),
        *(r"(?:\w\s?)+!", r"(?i)\b(?:merger|acquisition) of \w+\b", r"(?:(?:ab|cd)-){20,}", r"(\w|\d)*!"),
    ],
)
def test_repeated_alternatives_that_differ_are_fine_and_take_no_time(pattern: str) -> None:
    assert unbounded(pattern) is None
    for text in ("a" * 500, "ab" * 250, "foobar" * 80, "1,2" * 160, "x-" * 250):
        re.search(pattern, text + "\0")  # in time exponential in the text it would never end


@pytest.mark.parametrize(
    "pattern", ["a+b+", "(?:ab|cd)*", r"(?:\d{2}-)+", r"project\s+\w+", "[a-z]+(?:x|y)?", "(?:a{1,3}){1,4}"]
)
def test_patterns_that_could_not(pattern: str) -> None:
    assert unbounded(pattern) is None
