"""No parameter is lost in silence on its way to an API with names of its own: it is sent, told or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.types import ChatRequest
from gateway.wire.anthropic import request_to_body as anthropic
from gateway.wire.bedrock import request_to_body as bedrock
from gateway.wire.field_table import DECISIVE
from gateway.wire.gemini import request_to_body as gemini
from gateway.wire.openai.presets.preset import OPENAI
from tests.examples import examples

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
SAID: Mapping[str, Any] = {
    "temperature": 0.25,
    "top_p": 0.5,
    "top_k": 7,
    "seed": 3,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "max_tokens": 77,
    "max_completion_tokens": 78,
    "stop": ["END"],
    "logprobs": True,
    "top_logprobs": 2,
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    "reasoning_effort": "high",
    "thinking": {"type": "enabled", "budget_tokens": 2048},
    "user": "u-1",
    "service_tier": "flex",
    "google": {"cached_content": "c"},
    "bedrock": {"requestMetadata": {"a": "b"}},
    "extra_body": {"google": {"cached_content": "c"}},
    "modalities": ["text", "audio"],
    "logit_bias": {"5": 1},
}
"""A value of each that asks for something; of all others ``"something"`` does."""
NAMES = sorted(
    {*OPENAI, *DECISIVE, *SAID, "top_k", "new_next_year"}
    - {"n", "stream_options", "dimensions", "encoding_format"}
)
NEEDS = {"tool_choice": ("tools",), "parallel_tool_calls": ("tools",), "top_logprobs": ("logprobs",)}

Write = Callable[[ChatRequest], dict[str, Any]]
LeftOut = Callable[[ChatRequest], list[str]]

APIS: dict[str, tuple[Write, LeftOut]] = {
    "anthropic": (lambda request: anthropic.write_request(request, "m", max_tokens=5), anthropic.left_out),
    "gemini": (lambda request: gemini.write_request(request, "gemini-2.5-pro"), gemini.FIELDS.left_out),
    "bedrock": (lambda request: bedrock.write_request(request, "m"), bedrock.FIELDS.left_out),
}


def request_with(names: list[str]) -> ChatRequest:
    params = {name: SAID.get(name, "something") for name in names}
    return ChatRequest("m", messages=(USER,), params=params)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", NAMES)
def test_each_is_sent_told_or_refused(api: str, name: str) -> None:
    write, left_out = APIS[api]
    needs = [*NEEDS.get(name, ())]
    try:
        plain = write(request_with(needs))
    except BadRequest:
        return  # what it belongs to is refused
    request = request_with([*needs, name])
    try:
        sent = write(request)
    except BadRequest as error:
        assert error.param is not None and error.param.startswith(name)
        assert error.code == "unsupported_parameter"
        return
    orjson.dumps(sent)
    told = name in left_out(request)
    assert (sent != plain) != told, "it is either sent or told"


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from(NAMES), max_size=6, unique=True))
def test_none_changes_what_becomes_of_another(api: str, names: list[str]) -> None:
    write, left_out = APIS[api]
    request = request_with(names)
    each = {name: _fate(write, name) for name in names}
    try:
        write(request)
    except BadRequest as error:
        assert error.param is not None
        assert any(each[name] == "refused" and error.param.startswith(name) for name in names)
    else:
        assert "refused" not in each.values()
        told = set(left_out(request))
        assert told == {name for name in names if name in left_out(request_with([name]))}


def _fate(write: Write, name: str) -> str:
    try:
        write(request_with([*NEEDS.get(name, ()), name]))
    except BadRequest:
        return "refused"
    return "written"
