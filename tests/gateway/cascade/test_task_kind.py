"""Tests for the order that requests get by the kind of task they name."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cascade.task_kind import TASKS, demand, kind_of

ORDER = (
    (
        "What is 2+2?",
        "What is the capital of France?",
        "Translate this sentence into German: the cat sleeps.",
    ),
    ("Hallo!", "Was ist die Hauptstadt von Peru?", "Schreibe eine Python-Funktion, die Wörter zählt."),
    ("thanks", "Write a short poem about my cat", "Prove that the square root of two is irrational."),
    ("你好", "请把这句话翻译成英文", "设计一个分布式缓存系统"),
    ("hola", "Explícame por qué el cielo es azul", "Demuestra que hay infinitos números primos"),
    (
        "who wrote Faust?",
        "Why does my goroutine leak?",
        "Design a Byzantine fault tolerant consensus protocol.",
    ),
)


@pytest.mark.parametrize("texts", ORDER)
def test_what_asks_for_more_scores_higher(texts: tuple[str, ...]) -> None:
    scores = [demand(text, len(text)) for text in texts]
    assert scores == sorted(set(scores))


def test_material_in_between_does_not_tell_the_task() -> None:
    material = "The proof of the theorem is by contradiction, it says in the book. " * 40
    kind = kind_of(f"Summarize this for me:\n{'Lorem ipsum dolor. ' * 20}{material}{'Dolor sit amet. ' * 30}")
    assert kind is not None and kind.name == "transformation"


def test_length_conditions_and_terms_count() -> None:
    plain = "Write a function that merges two lists."
    assert demand(plain, 64_000) > demand(plain, 1000) > demand(plain, 500) == demand(plain, len(plain))
    assert demand(plain + "\n- no imports\n- must be stable", 100) > demand(plain, 100)
    assert demand(plain + " Make it idempotent and serializable.", 100) > demand(plain, 100)


def test_a_remark_is_easier_than_a_text_of_unknown_kind() -> None:
    assert demand("a table for two, next thursday", 30) < demand("blue " * 30, 150)


@given(st.text(max_size=400), st.integers(0, 10**7))
def test_every_text_has_a_score(text: str, length: int) -> None:
    assert 0 <= demand(text, length) <= 1


@pytest.mark.parametrize(
    "text", ["what is " * 500, "?" * 4000, "1+" * 2000, "why does my " * 333, "- a\n" * 1000]
)
def test_hostile_texts_take_no_longer_than_others(text: str) -> None:
    started = time.process_time()
    demand(text, len(text))
    assert time.process_time() - started < 1.0  # milliseconds; seconds if it backtracked


def test_levels_rise_in_the_table() -> None:
    levels = [kind.level for kind in TASKS]
    assert levels == sorted(levels)
