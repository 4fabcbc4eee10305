"""Embeddings on the wire: what is asked, what a server answers, and what the caller gets."""

from __future__ import annotations

from array import array
from base64 import b64decode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.types import Chunk, TokenEstimate, Usage
from gateway.wire.openai import embeddings as openai_embeddings
from gateway.wire.openai.dialect import EMBEDDINGS
from tests.fakes import a_call

json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)


def body(**more: Any) -> bytes:
    return orjson.dumps({"model": "m", "input": "Hi", **more})


@pytest.mark.parametrize("given_", ["one", ["one", "two"], [1, 2, 3], [[1, 2], [3]], "", ["one"] * 2048])
def test_inputs_are_taken_as_they_are(given_: Any) -> None:
    request = openai_embeddings.read_request(body(input=given_, dimensions=8, user="u", new_parameter=1))
    assert (request.model, request.embeds, request.prompt) == ("m", True, given_)
    assert (request.messages, request.stream, request.n) == (None, False, 1)
    assert request.params == {"dimensions": 8, "user": "u", "new_parameter": 1}
    assert openai_embeddings.write_request(request, "upstream") == {
        "model": "upstream",
        "input": given_,
        "dimensions": 8,
        "user": "u",
        "new_parameter": 1,
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["one"] * 2049}, "input"),
        ({"input": [[1]] * 2049}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": ["one", 2]}, "input[1]"),
        ({"input": None}, "input"),
        ({"input": {"text": "one"}}, "input"),
        ({"model": ""}, "model"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"stream": True}, "stream"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        openai_embeddings.read_request(body(**fields))
    assert (refusal.value.param or "").startswith(param.partition("[")[0])


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        (["one"] * 2049, "maximum length 2048, but got an array with length 2049"),
        ([[1]] * 2049, "maximum length 2048, but got an array with length 2049"),
        (["one", 2], "all texts, all token ids, or all lists of token ids"),
    ],
    ids=["texts", "token ids", "mixed"],
)
def test_what_is_wrong_with_the_whole_list_is_told_of_it(given_: Any, said: str) -> None:
    with pytest.raises(BadRequest, match=said) as refusal:
        openai_embeddings.read_request(body(input=given_))
    assert refusal.value.param == "input"


def test_input_is_required() -> None:
    with pytest.raises(BadRequest, match="Missing required parameter: 'input'"):
        openai_embeddings.read_request(b'{"model": "m"}')


def test_a_stream_that_is_declined_is_no_matter() -> None:
    assert "stream" not in openai_embeddings.read_request(body(stream=False)).params


@given(st.dictionaries(st.sampled_from([*openai_embeddings.EmbeddingsBody.model_fields]), json, max_size=4))
def test_any_parameters_are_read_or_refused(fields: dict[str, Any]) -> None:
    try:
        request = openai_embeddings.read_request(body(**fields))
    except BadRequest as error:
        assert error.param is not None
    else:
        orjson.dumps(openai_embeddings.write_request(request, "m"))
        assert openai_embeddings.inputs_of(request)


def test_a_chunk_a_vector() -> None:
    raw = {
        "object": "list",
        "model": "upstream",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]},
            {"object": "embedding", "index": 1, "embedding": "AAAAPwAAgL8="},
        ],
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    assert [*openai_embeddings.read_answer(raw)] == [
        Chunk(index=0, delta={"embedding": [0.5, -1.0]}, finish_reason="stop", more=True),
        Chunk(index=1, delta={"embedding": "AAAAPwAAgL8="}, finish_reason="stop", usage=Usage(5, 0)),
    ]


@pytest.mark.parametrize(
    "data",
    [
        None,
        "x",
        [None],
        [{}],
        [{"embedding": None}],
        [{"embedding": []}],
        [{"embedding": [1.0], "index": "0"}],
    ],
)
def test_nonsense_is_not_an_answer(data: Any) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError)):
        list(openai_embeddings.read_answer({"data": data}))


def test_the_body_is_in_order_whatever_order_the_server_had() -> None:
    call = a_call(stream=False, prompt=["a", "b"], embeds=True)
    whole = EMBEDDINGS.body_writer(call)
    whole.add(Chunk(index=1, delta={"embedding": "AAAAPw=="}, finish_reason="stop"))
    whole.add(Chunk(index=0, delta={"embedding": [0.25]}, finish_reason="stop", usage=Usage(3, 0)))
    assert orjson.loads(whole.body()) == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.25]},
            {"object": "embedding", "index": 1, "embedding": "AAAAPw=="},
        ],
        "model": "m",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }


def test_where_nobody_counted_the_estimate_is_told() -> None:
    call = a_call(stream=False, prompt="a", embeds=True)
    call.estimate = TokenEstimate(4, 0, 0)
    whole = EMBEDDINGS.body_writer(call)
    whole.add(Chunk(delta={"embedding": [0.25]}, finish_reason="stop"))
    assert orjson.loads(whole.body())["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_both_encodings_hold_the_same_numbers(numbers: list[float]) -> None:
    vector = array("f", numbers).tobytes()
    assert openai_embeddings.write_vector(vector, {}) == numbers
    assert openai_embeddings.write_vector(vector, {"encoding_format": "float"}) == numbers
    encoded = openai_embeddings.write_vector(vector, {"encoding_format": "base64"})
    assert b64decode(encoded) == vector
