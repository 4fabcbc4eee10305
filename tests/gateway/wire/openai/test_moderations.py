from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.wire.openai import moderations as openai_moderations
from gateway.wire.openai.moderations import MAX_CHARACTERS, MOST


def body(given_: Any, **more: Any) -> bytes:
    return orjson.dumps({"input": given_, **more})


@pytest.mark.parametrize(
    ("given_", "texts"),
    [
        ("one", ["one"]),
        ("", [""]),
        (["one", "two"], ["one", "two"]),
        ([{"type": "text", "text": "one"}], ["one"]),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], ["one\ntwo"]),
        (["x"] * MOST, ["x"] * MOST),
        ("x" * MAX_CHARACTERS, ["x" * MAX_CHARACTERS]),
    ],
)
def test_inputs(given_: Any, texts: list[str]) -> None:
    assert openai_moderations.read_request(body(given_)) == texts
    assert openai_moderations.read_request(body(given_, model="omni-moderation-latest", more=1)) == texts


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ([], "input"),
        (["x"] * (MOST + 1), "input"),
        (["x", 3], "input"),
        ({"type": "text", "text": "one"}, "input"),
        (None, "input"),
        ([{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}], "text only"),
        ([{"type": "text", "text": "one"}, {"type": "text"}], "part 1"),
        ("x" * (MAX_CHARACTERS + 1), "100,000"),
        (["x" * MAX_CHARACTERS, "x"], "100,000"),
    ],
)
def test_refusals_name_the_input(given_: Any, said: str) -> None:
    with pytest.raises(BadRequest, match=said) as refusal:
        openai_moderations.read_request(body(given_))
    assert (refusal.value.param or "").startswith("input")


@given(st.binary(max_size=40) | st.recursive(st.none() | st.text(max_size=3), st.lists).map(orjson.dumps))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        openai_moderations.read_request(data)
