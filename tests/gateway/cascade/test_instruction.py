"""Tests for telling what is asked from the material that comes with it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cascade.instruction import instruction_of
from gateway.cascade.task_kind import demand, kind_of

LEASE = "The tenant shall be liable for damages and must not assign the lease without the landlord's written consent."
LOG = (
    "Traceback (most recent call last):\n  File 'a.py', line 3\nRuntimeError: deadlock in consensus protocol"
)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("What is the time?", "What is the time?"),
        (f"Put this in plain words:\n{LEASE}", "Put this in plain words"),
        (f"Summarise the note.\n\n{LEASE}\n\n{LEASE}", "Summarise the note.\n" + LEASE),
        (f"Summarise the note.\n\n{LEASE}\n\nRegards,\nthe landlord", "Summarise the note."),
        (f"How bad is this:\n\n{LOG}\n\nIs it our fault?", "How bad is this\nIs it our fault?"),
        ("Was tun?\n```\nprove(theorem)\n```", "Was tun?"),
        ("```\nf()\n```\nWas tun?", "Was tun?"),
        ("", ""),
    ],
)
def test_material_is_left_out(text: str, asked: str) -> None:
    assert instruction_of(text).text == asked


@pytest.mark.parametrize("quotes", ['""', "“”", "«»", "„“"])
def test_long_quotations_are_material_and_short_ones_are_not(quotes: str) -> None:
    assert LEASE not in instruction_of(f"Say this nicely: {quotes[0]}{LEASE}{quotes[1]}").text
    assert "no more" in instruction_of(f"Say {quotes[0]}no more{quotes[1]} nicely.").text


@pytest.mark.parametrize("verb", ["Rewrite", "Please translate", "Fasse zusammen oder formuliere", "Traduis"])
def test_the_verb_at_the_head_is_the_task(verb: str) -> None:
    kind = kind_of(f"{verb} this lease clause about liability and its legal implications.")
    assert (kind is not None and kind.name == "transformation") == (verb != "Fasse zusammen oder formuliere")


@pytest.mark.parametrize(
    ("plain", "bound"),
    [
        (
            "Write a short story.",
            "Write a short story without a name, in exactly four paragraphs, each ending on a no.",
        ),
        ("Erkläre den Motor.", "Erkläre den Motor, ohne Formeln, und nenne mindestens drei Bauteile."),
        ("Écris un poème.", "Écris un poème sans rime, puis explique chaque image."),
    ],
)
def test_conditions_and_steps_make_a_request_harder(plain: str, bound: str) -> None:
    assert demand(bound, len(bound)) > demand(plain, len(plain)) + 0.03


@given(st.text(alphabet='ab:\n"“”«»`.?', max_size=300))
def test_what_is_asked_is_part_of_the_text(text: str) -> None:
    asked = instruction_of(text).text
    assert len(asked) <= len(text) and set(asked) <= set(text) | {"\n", " "}


@pytest.mark.parametrize(
    "text", ['"' * 4000, "“" * 4000, "«a" * 2000, ":\n" * 2000, "\n\n" * 2000, "`" * 4000, "aA1_" * 1000]
)
def test_hostile_texts_take_no_longer_than_others(text: str) -> None:
    started = time.process_time()
    instruction_of(text)
    assert time.process_time() - started < 1.0  # milliseconds; seconds if it backtracked
