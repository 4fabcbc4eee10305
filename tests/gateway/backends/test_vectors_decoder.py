"""Vectors that are parsed as they come: the same answer, however it is cut and whatever is in it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.openai_decoder import OpenAIBodyDecoder
from gateway.backends.vectors_decoder import MOST_KEPT, VectorsDecoder
from gateway.errors import GatewayError
from gateway.types import Chunk
from gateway.wire.openai.dialect import EMBEDDINGS
from tests.fakes import USAGE, a_call, cut_at

VECTOR = {"object": "embedding", "index": 0, "embedding": [0.5, -1.25e-3, 3]}


def read(kind: type[OpenAIBodyDecoder], data: bytes, sizes: list[int]) -> list[Chunk] | str:
    """The chunks, or how the error begins."""
    body = kind("up", EMBEDDINGS, a_call(stream=False, prompt=["a"] * 9, embeds=True))
    try:
        for part in cut_at(data, sizes):
            assert not body.feed(part)
        return list(body.finish())
    except GatewayError as error:
        return error.message[:40]


def vector(index: int, **more: Any) -> dict[str, Any]:
    return {**VECTOR, "index": index, **more}


ANSWERS: dict[str, Any] = {
    "vectors": {"object": "list", "data": [vector(n) for n in range(9)], "model": "m", "usage": USAGE},
    "base64": {"data": [vector(0, embedding="AAAAPw=="), vector(1, embedding="//8=")]},
    "details": {"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 5}}, "data": [vector(0)]},
    "braces in texts": {"data": [vector(0, note='a } b { "embedding" ] ['), vector(1, note="\\")]},
    "nested": {"data": [vector(0, more={"of": {"it": []}}), vector(1, more={"embedding": [1]})]},
    "no indices": {"data": [{"embedding": [1.0]}, {"embedding": [2.0]}]},
    "places of our own": {"data": [{"": 0}, vector(1), {"": 7}, {"": []}]},
    "a vector elsewhere": {"first": vector(5), "data": [vector(0)]},
    "an error": {"error": {"message": "embedding { failed", "type": "x"}},
    "odd": {"data": [{"embedding": 3}]},
    "empty": {"data": []},
    "null": {"data": None},
    "chat": {"choices": []},
    "a list": [vector(0)],
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
@given(sizes=st.lists(st.integers(1, 60), max_size=60))
def test_it_is_read_as_any_body(answer: Any, sizes: list[int]) -> None:
    for data in (orjson.dumps(answer), orjson.dumps(answer, option=orjson.OPT_INDENT_2)):
        whole, cut = read(OpenAIBodyDecoder, data, []), read(VectorsDecoder, data, sizes)
        if isinstance(whole, str):
            assert isinstance(cut, str)
        else:
            assert cut == whole


@given(
    data=st.binary(max_size=80) | st.text('{}[]",:\\ embding01', max_size=80).map(str.encode),
    sizes=st.lists(st.integers(1, 9)),
)
def test_anything_is_an_answer_or_an_error(data: bytes, sizes: list[int]) -> None:
    read(VectorsDecoder, data, sizes)


def test_vectors_are_parsed_before_the_end() -> None:
    body = VectorsDecoder("up", EMBEDDINGS, a_call(stream=False, prompt=["a"] * 9, embeds=True))
    body.feed(b'{"data":[' + b",".join(orjson.dumps(vector(n)) for n in range(8)) + b",")
    assert len(body._vectors) == 8
    body.feed(orjson.dumps(vector(8))[:-1])
    assert len(body._vectors) == 8
    body.feed(b"}]}")
    assert [chunk.index for chunk in body.finish()] == list(range(9))


def test_what_never_becomes_a_vector_is_not_looked_through_for_ever() -> None:
    body = VectorsDecoder("up", EMBEDDINGS, a_call(stream=False, prompt=["a"] * 9, embeds=True))
    body.feed(b'{"note":"')
    for _ in range(40):
        body.feed(b"}" * 2**16)
        assert len(body._kept) <= MOST_KEPT
    body.feed(b'","data":[' + orjson.dumps(vector(0)) + b"]}")
    assert [chunk.delta for chunk in body.finish()] == [{"embedding": VECTOR["embedding"]}]
