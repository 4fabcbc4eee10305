from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cascade.features import MAX_TEXT, SHAPE, clipped, question_of, shape, words
from gateway.types import ChatRequest, Json


def asked(*messages: tuple[str, Json]) -> ChatRequest:
    return ChatRequest(model="m", messages=tuple({"role": role, "content": said} for role, said in messages))


def test_words() -> None:
    assert words("It's 12 + 345, isn't IT? 1234567 it") == {
        "it's", "00", "+", "000", ",", "isn't", "it", "?", "0000"
    }  # fmt: skip
    assert words("") == set()


def test_shape() -> None:
    text = "Which?\nA. 10 cats\nB. $5"
    told = dict(zip(SHAPE, shape(text), strict=True))
    assert told["length"] == math.log1p(len(text))
    assert told["options"] == 2
    assert told["digits"] == math.log1p(3)
    assert told["longest_line"] == math.log1p(len("A. 10 cats"))
    assert told["first_line"] == math.log1p(len("Which?"))
    assert told["count $"] == math.log1p(1)
    assert told["count ="] == 0


def test_what_is_scored_is_the_last_user_message_and_the_length_of_all() -> None:
    request = asked(
        ("system", "Be kind."),
        ("user", "First"),
        ("assistant", None),
        (
            "user",
            [{"type": "text", "text": "Second"}, {"type": "image_url"}, {"type": "text", "text": "part"}],
        ),
        ("assistant", "Par"),
    )
    assert question_of(request) == ("Second\npart", len("Be kind.First") + len("Second\npart") + len("Par"))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("Once", ("Once", 4)), (["a", "b"], ("a\nb", 3)), ([1, 2], ("", 0)), ([[1], [2]], ("", 0))],
    ids=["text", "texts", "tokens", "lists"],
)
def test_prompts(prompt: Json, expected: tuple[str, int]) -> None:
    assert question_of(ChatRequest(model="m", prompt=prompt)) == expected


def test_long_questions_are_cut_in_the_middle() -> None:
    text = "a" * MAX_TEXT + "b" * MAX_TEXT
    question, length = question_of(asked(("user", text)))
    assert question == clipped(text) == "a" * (MAX_TEXT // 2) + "b" * (MAX_TEXT // 2)
    assert length == 2 * MAX_TEXT


@given(text=st.text())
def test_any_text_has_a_finite_shape(text: str) -> None:
    told = shape(text)
    assert len(told) == len(SHAPE)
    assert all(map(math.isfinite, told))
    assert all(words(text))
