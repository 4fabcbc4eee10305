"""Denied words and patterns."""

from __future__ import annotations

import random
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.guards.scanners.topics import Topics
from gateway.policy.schema.guards import TopicsGuard


def topics(*words: str, patterns: tuple[str, ...] = (), window: int = 256) -> Topics:
    return Topics(TopicsGuard(kind="topics", words=words, patterns=patterns, window=window))


def said(scanner: Topics, text: str) -> list[tuple[str, str]]:
    return [(it.label, text[it.start : it.end]) for it in scanner.quick(text, "user").findings]


@pytest.mark.parametrize(
    ("word", "text", "match"),
    [
        ("merger", "The MERGER is near", "MERGER"),
        ("merger", "the merger's date", "merger"),
        ("project falcon", "about Project\n  Falcon?", "Project\n  Falcon"),
        ("straße", "in der STRASSE dort", "STRASSE"),
        ("café", "the cafe\u0301 there", "cafe\u0301"),
        ("ΣΊΣΥΦΟΣ", "ο Σίσυφος εδώ", "Σίσυφος"),
        ("C++", "I write C++ daily", "C++"),
        ("AC/DC", "by ac/dc!", "ac/dc"),
        ("天安门", "关于天安门的事", "天安门"),
        ("ｆｕｌｌ", "at FULL width", "FULL"),
    ],
)
def test_words(word: str, text: str, match: str) -> None:
    assert said(topics(word), text) == [("word:0", match)]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("merger", "submergers and mergers"),
        ("ass", "a class assignment"),
        ("a b", "ab a-b"),
        ("cafe", "café"),
        ("merger", ""),
    ],
)
def test_no_parts_of_words(word: str, text: str) -> None:
    assert said(topics(word), text) == []


def test_the_longest_phrase_counts_and_labels_are_places_in_the_policy() -> None:
    scanner = topics("new york", "new", "new york city")
    assert said(scanner, "new york city; new york state; new") == [
        ("word:2", "new york city"),
        ("word:0", "new york"),
        ("word:1", "new"),
    ]


def test_a_phrase_that_fails_late_hides_no_shorter_one() -> None:
    assert said(topics("a b c d", "b c"), "a b c x") == [("word:1", "b c")]


def test_patterns() -> None:
    scanner = topics("gold", patterns=(r"case-\d+", r"(?i)\bfalcon\b"))
    assert said(scanner, "Falcon: case-17, gold") == [
        ("pattern:1", "Falcon"),
        ("pattern:0", "case-17"),
        ("word:0", "gold"),
    ]


@pytest.mark.parametrize("offset", range(0, 130, 3))
def test_patterns_across_the_borders_of_stretches(offset: int) -> None:
    scanner = topics(patterns=(r"\bx{30}\b",), window=32)
    text = "." * offset + "x" * 30 + "." * 100
    assert said(scanner, text) == [("pattern:0", "x" * 30)]
    assert said(scanner, text.replace("x.", "xy", 1)) == []


def test_a_match_longer_than_a_stretch_is_found_as_far_as_it_is_seen() -> None:
    found = topics(patterns=("a+",), window=16).quick("b" + "a" * 100, "user").findings
    assert found[0].start == 1 and found[-1].end == 101


def test_longest() -> None:
    assert topics("ab").longest >= 2
    assert topics(patterns=("a",), window=99).longest >= 99


@given(st.text(max_size=120))
def test_any_text_is_found_in_itself_as_words(text: str) -> None:
    scanner = topics(text or "x", "b", patterns=(r"\w",), window=16)
    end = 0
    for finding in scanner.quick(text, "user").findings:
        assert end <= finding.start < finding.end <= len(text)
        end = finding.end


def test_thousands_of_words_cost_no_more_than_a_few() -> None:
    chance = random.Random(5)
    words = tuple("".join(chance.choices(string.ascii_lowercase, k=9)) for _ in range(5000))
    text = " ".join(chance.choices(string.ascii_lowercase, k=20_000))

    def seconds(scanner: Topics) -> float:
        started = time.process_time()
        scanner.quick(text, "user")
        return time.process_time() - started

    few, many = topics(*words[:5]), topics(*words)
    assert min(seconds(many) for _ in range(3)) < 4 * min(seconds(few) for _ in range(3)) + 0.02
    assert said(many, f"x {words[4999].upper()} y") == [("word:4999", words[4999].upper())]


def test_a_quadratic_pattern_takes_time_that_grows_with_the_text() -> None:
    scanner = topics(patterns=(r"a*b",), window=64)

    def seconds(length: int) -> float:
        started = time.process_time()
        scanner.quick("a" * length, "user")
        return time.process_time() - started

    assert seconds(20_000) < 8 * seconds(5_000) + 0.1
