"""What a text has of tokens at least, beside its length."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from gateway.metering.dense_text import LOOKED_AT, dense_prompt, dense_tokens
from gateway.types import ChatRequest

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("w w w", 3),
        ("w\nw\tw", 3),
        ("a1b22", 4),
        ("123456789", 3),
        ("1 2 3", 3),
        ("!?!?", 2),
        ('{"a":1}', 4),
        ("\u4f60\u597d", 1),
        ("\ud800 a", 2),
    ],
)
def test_runs_of_letters_and_figures_and_signs(text: str, tokens: int) -> None:
    assert dense_tokens(text) == tokens


@pytest.mark.parametrize("page", ["architecture", "security", "guards", "operations", "providers", "log"])
def test_prose_has_no_more_than_its_length_tells(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text()
    assert dense_tokens(text) <= len(text) / 4


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": "w w w"},
        {"prompt": ["w", "w w", [1, 2]]},
        {"messages": ({"role": "system", "content": "w w"}, {"role": "user", "content": "w"})},
        {"messages": ({"role": "user", "content": [{"type": "text", "text": "w w"}, {"text": "w"}, 7]},)},
    ],
)
def test_all_prompts_and_messages_count(asked: dict[str, Any]) -> None:
    assert dense_prompt(ChatRequest(model="m", **asked)) == 3


def test_of_a_long_text_only_the_beginning_is_read() -> None:
    assert dense_tokens("w " * LOOKED_AT) == LOOKED_AT
    text = "w " * 2**24
    began = time.process_time()
    assert dense_tokens(text) == 2**24
    assert time.process_time() - began < 1
