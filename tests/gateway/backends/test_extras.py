"""What a budget cannot hold, at two kinds of providers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gateway.backends import extras
from gateway.errors import BadRequest
from gateway.types import Call
from tests.fakes import TARGET, Held, a_call, policy

SEARCH = {"type": "web_search_20260209", "name": "web_search"}
ADVISOR = {"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-4-6"}
OWN_TOOL = {"type": "function", "function": {"name": "look"}}
SOUND = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "aa", "format": "wav"}}]}


def calling(
    params: Mapping[str, Any], *, dollars: int | None = 9, price: float = 1.0, allowed: tuple[str, ...] = ()
) -> Call:
    rules = policy(prices={TARGET.model: {"input": price, "output": price}}, extras=allowed)
    call = a_call(params=dict(params), policy_=rules)
    call.allowance = Held(dollars)
    return call


COST_MORE: list[tuple[dict[str, Any], str]] = [
    ({"service_tier": "priority"}, "service_tier"),
    ({"service_tier": "fast"}, "service_tier"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"plugins": [{"id": "web"}]}, "plugins"),
    ({"provider": {"order": ["dear"]}}, "provider"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"tools": [OWN_TOOL, SEARCH]}, "tools[1]"),
    ({"tools": [{"type": ["web_search"]}, {"type": "browser_search"}]}, "tools[1]"),
    ({"something_new": 1}, "something_new"),
]


@pytest.mark.parametrize(("params", "param"), COST_MORE, ids=lambda one: str(one)[:40])
def test_what_no_price_counts_is_refused_under_a_budget(params: dict[str, Any], param: str) -> None:
    call = calling(params)
    with pytest.raises(BadRequest, match="budget") as caught:
        extras.check(call, call.request, TARGET)
    assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    "how",
    [{"dollars": None}, {"price": 0.0}],
    ids=["tokens alone are limited", "it has no price"],
)
@pytest.mark.parametrize(("params", "param"), COST_MORE[:3])
def test_where_no_money_is_at_stake_all_passes(
    params: dict[str, Any], param: str, how: dict[str, Any]
) -> None:
    call = calling(params, **how)
    extras.check(call, call.request, TARGET)
    call.allowance = None
    extras.check(call, call.request, TARGET)


def test_the_policy_allows_by_name() -> None:
    params = {"service_tier": "priority", "tools": [SEARCH], "something_new": 1}
    call = calling(params, allowed=("service_tier", "web_search", "something_new"))
    extras.check(call, call.request, TARGET)


def test_what_costs_no_more_than_its_tokens_passes() -> None:
    params = {
        "service_tier": "flex",
        "modalities": ["text"],
        "tools": [OWN_TOOL],
        "seed": 1,
        "top_k": 5,
        "response_format": {"type": "json_object"},
        "reasoning_effort": "low",
        "plugins": None,
        "max_completion_tokens": 5,
        "logprobs": True,
        "user": "u",
        "store": True,
        "audio": None,
    }
    call = calling(params)
    extras.check(call, call.request, TARGET)


def test_sound_is_dearer_than_text() -> None:
    call = calling({})
    spoken = replace(call.request, messages=(SOUND,))
    with pytest.raises(BadRequest, match="input_audio"):
        extras.check(call, spoken, TARGET)
    extras.check(calling({}, allowed=("input_audio",)), spoken, TARGET)
    heard = {
        "role": "user",
        "content": [{"type": "audio_url", "audio_url": {"url": "https://example.com/a"}}],
    }
    with pytest.raises(BadRequest, match="input_audio"):
        extras.check(call, replace(call.request, messages=(heard,)), TARGET)


def test_sound_that_has_a_price_passes() -> None:
    call = calling({})
    price = {TARGET.model: {"input": 1.0, "output": 1.0, "audio_input": 40.0}}
    priced = replace(call, policy=policy(prices=price))
    extras.check(priced, replace(call.request, messages=(SOUND,)), TARGET)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [SEARCH]}, "tools[0]"),
        ({"tools": [{"type": "code_execution_20260120", "name": "c"}]}, "tools[0]"),
        ({"mcp_servers": [{"type": "url", "url": "https://x"}]}, "mcp_servers"),
        ({"speed": "fast"}, "speed"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management"),
        ({"compaction": {}}, "compaction"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"container": "c_1"}, "container"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_anthropics_are_refused_alike(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        extras.check_native(calling({}), body, TARGET)
    assert caught.value.param == param
    extras.check_native(calling({}, dollars=None), body, TARGET)


def test_what_clients_of_anthropics_send_all_the_time_passes() -> None:
    body = {
        "model": "m",
        "max_tokens": 5,
        "messages": [],
        "system": [],
        "stream": True,
        "thinking": {},
        "service_tier": "auto",
        "speed": "standard",
        "metadata": {},
        "cache_control": {},
        "tools": None,
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    }
    extras.check_native(calling({}), body, TARGET)
    own = [{"name": "x", "input_schema": {}}, {"type": "bash_20250124"}, {"type": "text_editor_20250728"}]
    extras.check_native(calling({}), {"tools": own}, TARGET)


def test_a_tool_that_asks_another_model_needs_the_policys_word() -> None:
    for dollars in (9, None):
        with pytest.raises(BadRequest, match="asks another model") as caught:
            extras.check_native(calling({}, dollars=dollars), {"tools": [ADVISOR]}, TARGET)
        assert caught.value.param == "tools[0].model"
    extras.check_native(calling({}, allowed=("advisor",)), {"tools": [ADVISOR]}, TARGET)
