"""Where bodies are read: at once, or beside the event loop; and that requests of all dialects can be."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson
import pytest

from gateway.children.process_pool import ProcessPool
from gateway.errors import BadRequest
from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.web import body_parser
from gateway.web.body_parser import BodyParser
from gateway.wire import json_body
from gateway.wire.anthropic import body_to_request
from gateway.wire.anthropic.dialect import AnthropicDialect
from gateway.wire.openai import chat as openai_chat
from gateway.wire.openai import moderations as openai_moderations
from gateway.wire.openai.dialect import CHAT, COMPLETIONS, EMBEDDINGS

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def reader() -> AsyncIterator[BodyParser]:
    pool = ProcessPool(1)
    yield BodyParser(pool)
    await pool.aclose()


def where(data: bytes, limits: RequestLimits) -> int:
    return os.getpid()


SHORT = b'{"a":' + b"[{}]" * 100 + b"}"
DENSE = orjson.dumps({"a": [{"b": "c"}] * 20_000})
LONG = orjson.dumps({"a": ['She said "no", and went on; ' + "and on, " * 1000] * 100})


async def test_long_bodies_of_many_values_are_read_elsewhere(reader: BodyParser) -> None:
    assert len(SHORT) < body_parser.AT_ONCE < min(len(DENSE), len(LONG))
    assert await reader.read(where, SHORT, USUAL, "a") == os.getpid()
    assert await reader.read(where, LONG, USUAL, "a") == os.getpid()
    assert await reader.read(where, DENSE, USUAL, "a") != os.getpid()


TURNS = [{"role": "user", "content": [{"type": "text", "text": "é\n"}] * 4}] * 1000
FRONTS: list[tuple[Any, dict[str, Any]]] = [
    (CHAT.read_request, {"messages": TURNS}),
    (COMPLETIONS.read_request, {"prompt": list(range(200_000))}),
    (EMBEDDINGS.read_request, {"input": [list(range(100))] * 2000}),
    (AnthropicDialect().read_request, {"messages": TURNS, "max_tokens": 5}),
    (body_to_request.read_count_request, {"messages": TURNS}),
    (openai_moderations.read_request, {"input": ["a b"] * 2048, "more": [{}] * 20_000}),
    (partial(json_body.with_model, model="other"), {"messages": TURNS}),
]


@pytest.mark.parametrize(("read", "fields"), FRONTS, ids=[str(number) for number in range(len(FRONTS))])
async def test_what_is_read_elsewhere_is_the_same(
    reader: BodyParser, read: Any, fields: dict[str, Any]
) -> None:
    data = orjson.dumps({"model": "m", "metadata": {"a": "b"}, **fields})
    elsewhere, here = await reader.read(read, data, USUAL, "a"), read(data, USUAL)
    assert elsewhere == here
    native = getattr(here, "native", None)
    if native is not None:
        assert elsewhere.native.body == native.body and elsewhere.native.read(native.body) == here


async def test_refusals_are_the_same(reader: BodyParser) -> None:
    data = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": 1}] * 9000})
    with pytest.raises(BadRequest) as refusal:
        await reader.read(openai_chat.read_request, data, USUAL, "a")
    assert refusal.value.param == "messages[0].content"


async def test_one_that_takes_too_long_is_refused(
    reader: BodyParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_parser, "TIMEOUT", 0.001)
    with pytest.raises(BadRequest, match=r"takes more than 0\.001 s to parse"):
        await reader.read(openai_chat.read_request, orjson.dumps({"a": [{"b": "c"}] * 80_000}), USUAL, "a")
