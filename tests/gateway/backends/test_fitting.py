"""Requests that a server will not have as they are, over real sockets."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from gateway import errors
from gateway.backends import fitting
from gateway.backends.openai import OpenAIBackend, cap_name
from gateway.types import Call, Candidate, Native, TokenEstimate
from tests.fakes import TARGET, FakeUpstream, Held, a_call, completion, policy, reply

pytestmark = pytest.mark.anyio


def refusal(message: str, *, code: Any = None, param: str | None = None) -> Any:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return reply({"error": error}, status=400)


def calling(params: dict[str, Any], *, stream: bool = False, **model: Any) -> Call:
    rules = policy(models={"m": {"targets": [{"backend": "up", "model": "upstream-model"}], **model}})
    call = a_call(stream=stream, params=params, policy_=rules)
    call.estimate = TokenEstimate(100, 10, 10)
    call.candidate = Candidate("m", TARGET, rules.models["m"].timeouts)
    call.candidates = (call.candidate,)
    return call


async def ask(upstream: FakeUpstream, call: Call, *, hints: bool = False) -> list[dict[str, Any]]:
    """The bodies that the server was sent until it was content."""
    backend = OpenAIBackend(
        "up", base_url=upstream.base_url, probe_url=upstream.base_url + "/models", hints=hints
    )
    try:
        async with aclosing(backend.stream(call, TARGET)) as chunks:
            assert [chunk async for chunk in chunks]
    finally:
        await backend.aclose()
    return [request.json() for request in upstream.requests]


OVER = {
    "openai": "This model's maximum context length is 4096 tokens. However, you requested 8100 tokens (100 in the "
    "messages, 8000 in the completion). Please reduce the length of the messages or completion.",
    "openai-text": "This model's maximum context length is 4096 tokens, however you requested 8100 tokens (100 in your "
    "prompt; 8000 for the completion). Please reduce your prompt; or completion length.",
    "vllm": "'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 4096 "
    "tokens and your request has 100 input tokens (8000 > 4096 - 100).",
    "sglang": "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total "
    "of 8100 tokens: 100 tokens from the input messages and 8000 tokens for the completion.",
    "answer": "max_tokens is too large: 8000. This model supports at most 3996 completion tokens, whereas you "
    "provided 8000.",
}


@pytest.mark.parametrize("message", OVER.values(), ids=OVER)
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_a_cap_that_a_server_refuses_is_lowered_to_what_it_says_is_left(
    upstream: FakeUpstream, message: str, name: str
) -> None:
    upstream.scripts = [refusal(message), reply(completion())]
    call = calling({name: 8000, "temperature": 0})
    first, second = await ask(upstream, call)
    assert (first[name], second[name]) == (8000, 3996)
    assert second == {**first, name: 3996}
    assert call.reply_headers["x-tollgate-max-tokens"] == "3996"
    assert call.receipt.notes["backend"] == {"max_tokens": 3996, "max_tokens_asked": 8000}


@pytest.mark.parametrize(
    ("message", "model"),
    [
        (
            "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.",
            {},
        ),
        (OVER["openai"], {"over_context": "refuse"}),
        ("max_tokens is not to my liking.", {}),
    ],
    ids=["the prompt alone", "by policy", "no numbers"],
)
async def test_what_lowering_cannot_mend_stays_refused(
    upstream: FakeUpstream, message: str, model: dict[str, Any]
) -> None:
    upstream.scripts = [refusal(message), reply(completion())]
    call = calling({"max_tokens": 8000}, **model)
    with pytest.raises(errors.Rejected) as caught:
        await ask(upstream, call)
    assert caught.value.message == message
    assert len(upstream.requests) == 1
    assert "x-tollgate-max-tokens" not in call.reply_headers


async def test_a_larger_context_comes_before_fewer_tokens(upstream: FakeUpstream) -> None:
    upstream.scripts = [refusal(OVER["openai"])]
    call = calling({"max_tokens": 8000})
    larger = Candidate("l", TARGET, call.timeouts, "larger_context")
    call.candidates = (*call.candidates, larger)
    with pytest.raises(errors.ContextTooLong):
        await ask(upstream, call)


async def test_a_declared_context_is_kept_to_from_the_start(upstream: FakeUpstream) -> None:
    call = calling({"max_tokens": 8000}, context=1000)
    [sent] = await ask(upstream, call)
    assert sent["max_tokens"] == 900
    assert call.reply_headers["x-tollgate-max-tokens"] == "900"
    fits = calling({"max_tokens": 900}, context=1000)
    assert (await ask(upstream, fits))[-1]["max_tokens"] == 900
    assert fits.reply_headers == {}


REFUSED = {
    "openai": ("Unknown parameter: 'top_k'.", {"code": "unknown_parameter", "param": "top_k"}),
    "openai-old": ("Unrecognized request argument supplied: top_k", {}),
    "groq": ("property 'top_k' is unsupported", {}),
    "mistral": ("body.top_k: Extra inputs are not permitted", {"code": "extra_forbidden"}),
}


@pytest.mark.parametrize("said", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_harmless_field_that_a_server_refuses_is_left_out(
    upstream: FakeUpstream, said: tuple[str, dict[str, Any]], stream: bool
) -> None:
    message, more = said
    unsupported = refusal(
        "Unsupported parameter: 'verbosity'", code="unsupported_parameter", param="verbosity"
    )
    upstream.scripts = [refusal(message, **more), unsupported, reply(completion())]
    call = calling({"top_k": 5, "verbosity": "low", "temperature": 0.5}, stream=stream)
    *_, last = await ask(upstream, call)
    assert len(upstream.requests) == 3
    assert "top_k" not in last and "verbosity" not in last
    assert last["temperature"] == 0.5
    assert call.reply_headers["x-tollgate-ignored"] == "top_k, verbosity"
    assert call.receipt.notes["backend"] == {"ignored": ["top_k", "verbosity"]}


@pytest.mark.parametrize(
    ("params", "message", "param"),
    [
        ({"logit_bias": {"1": 5}, "top_k": 3}, "Unsupported parameter: 'logit_bias'", "logit_bias"),
        ({"user": "x", "top_k": 3}, "user should be a string of at least 5 characters", "user"),
        ({"user": "x"}, "Unknown parameter: 'audio'", None),
    ],
    ids=["it changes the answer", "it is known, and wrong", "another's"],
)
async def test_what_matters_is_not_left_out(
    upstream: FakeUpstream, params: dict[str, Any], message: str, param: str | None
) -> None:
    upstream.scripts = [refusal(message, param=param)]
    with pytest.raises(errors.Rejected, match=message):
        await ask(upstream, calling(params))
    assert len(upstream.requests) == 1


async def test_a_server_that_is_never_content_is_not_asked_for_ever(upstream: FakeUpstream) -> None:
    params = dict.fromkeys(["top_k", "seed", "store", "user", "metadata", "thinking", "verbosity"], 1)
    upstream.scripts = [refusal(f"Unknown parameter: '{name}'", param=name) for name in params]
    with pytest.raises(errors.Rejected):
        await ask(upstream, calling(params))
    assert len(upstream.requests) == 5


async def test_the_engine_fits_requests_to_itself_and_its_word_is_passed_on(upstream: FakeUpstream) -> None:
    told = {"x-tollgate-max-tokens": "77", "x-tollgate-ignored": "frobnicate, store"}
    upstream.scripts = [reply(completion(), headers=told)]
    call = calling({"max_tokens": 8000}, context=1000)
    [sent] = await ask(upstream, call, hints=True)
    assert sent["max_tokens"] == 8000
    assert "x-tollgate-over-context" not in upstream.requests[0].headers
    assert call.reply_headers == told
    assert call.receipt.notes["backend"] == {
        "max_tokens": 77,
        "max_tokens_asked": 8000,
        "ignored": ["frobnicate", "store"],
    }


async def test_the_engine_is_told_to_refuse_where_the_policy_says_so(upstream: FakeUpstream) -> None:
    await ask(upstream, calling({"max_tokens": 8000}, over_context="refuse"), hints=True)
    assert upstream.requests[0].headers["x-tollgate-over-context"] == "refuse"


async def test_what_was_told_of_one_attempt_does_not_hold_for_the_next(upstream: FakeUpstream) -> None:
    call = calling({"max_tokens": 8000}, context=1000)
    await ask(upstream, call)
    call.policy = policy(models={"m": {"targets": [{"backend": "up", "model": "upstream-model"}]}})
    await ask(upstream, call)
    assert call.reply_headers == {}
    assert call.receipt.notes["backend"] == {}


async def test_what_ended_an_answer_is_read(upstream: FakeUpstream) -> None:
    whole = completion()
    whole["choices"][0]["stop_reason"] = "###"
    upstream.scripts = [reply(whole)]
    backend = OpenAIBackend("up", base_url=upstream.base_url, probe_url=upstream.base_url)
    async with aclosing(backend.stream(calling({}), TARGET)) as chunks:
        [chunk] = [chunk async for chunk in chunks]
    assert chunk.stop == "###"
    await backend.aclose()


# Caps that the caller's limits have room for.


def caps_of(body: dict[str, Any]) -> dict[str, int]:
    return {name: body[name] for name in fitting.CAPS if name in body}


@pytest.mark.parametrize("hints", [False, True], ids=["server", "engine"])
@pytest.mark.parametrize(
    ("params", "sent", "told"),
    [
        ({}, {"max_tokens": 40}, "40"),
        ({"max_tokens": 90}, {"max_tokens": 40}, "40"),
        ({"max_completion_tokens": 90}, {"max_completion_tokens": 40}, "40"),
        ({"max_tokens": 30}, {"max_tokens": 30}, None),
        ({"max_tokens": None}, {"max_tokens": 40}, "40"),
    ],
)
async def test_a_cap_that_is_paid_for_is_kept_to(
    upstream: FakeUpstream, params: dict[str, Any], sent: dict[str, int], told: str | None, hints: bool
) -> None:
    upstream.scripts = [reply(completion())]
    call = calling(params)
    call.cap = 40
    (body,) = await ask(upstream, call, hints=hints)
    assert caps_of(body) == sent
    assert call.reply_headers.get(fitting.MAX_TOKENS) == told


async def test_the_most_that_a_model_gives_is_kept_to(upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(completion())]
    (body,) = await ask(upstream, calling({"max_tokens": 9000}, max_output=500))
    assert caps_of(body) == {"max_tokens": 500}


@pytest.mark.parametrize(
    ("message", "code", "params", "bodies"),
    [
        (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
            "unsupported_parameter",
            {},
            [{"max_tokens": 400}, {"max_completion_tokens": 400}],
        ),
        (
            "max_completion_tokens: Extra inputs are not permitted",
            None,
            {"max_completion_tokens": 400},
            [{"max_completion_tokens": 400}, {"max_tokens": 400}],
        ),
        ("max_tokens: out of range", None, {}, [{"max_tokens": 400}, {"max_tokens": 100}]),
    ],
    ids=["reasoning models", "older servers", "too high for the model"],
)
async def test_our_own_cap_makes_no_request_fail(
    upstream: FakeUpstream,
    message: str,
    code: str | None,
    params: dict[str, int],
    bodies: list[dict[str, int]],
) -> None:
    upstream.scripts = [refusal(message, code=code), reply(completion())]
    call = calling(params, over_context="refuse")
    call.cap = 400
    assert [caps_of(body) for body in await ask(upstream, call)] == bodies


def test_openais_own_servers_know_the_new_name() -> None:
    assert cap_name("https://api.openai.com/v1") == "max_completion_tokens"
    assert cap_name("https://x.openai.azure.com/openai/v1") == "max_completion_tokens"
    assert cap_name("http://127.0.0.1:8000/v1") == "max_tokens"


@pytest.mark.parametrize("limited", [False, True])
async def test_no_field_leads_around_the_limits_of_who_asks(upstream: FakeUpstream, limited: bool) -> None:
    odd = {"n_predict": 10**6, "max_new_tokens": 10**6, "models": ["another/model"]}
    call = calling({"max_tokens": 50, "top_k": 3, **odd})
    call.allowance = Held(None) if limited else None
    (sent,) = await ask(upstream, call)
    left_out = {"models", "n_predict", "max_new_tokens"} if limited else {"models"}
    assert not left_out & sent.keys() and odd.keys() - left_out <= sent.keys()
    assert (sent["max_tokens"], sent["top_k"]) == (50, 3)
    assert call.reply_headers[fitting.IGNORED] == ", ".join(sorted(left_out))


def test_names_of_any_characters_are_told_in_a_header() -> None:
    """They are a caller's: with line breaks in them an answer could not be sent, after it had been paid for."""
    call = calling({})
    names = ["top_k", "a\r\nset-cookie: x", "ü" * 100, "x" * 10_000, *(f"n{i}" for i in range(1000))]
    fitting.report_ignored(call, names)
    told = call.reply_headers["x-tollgate-ignored"]
    assert told.isprintable() and told.isascii() and len(told) < 4096
    assert "a??set-cookie??x" in told
    assert len(call.receipt.notes["backend"]["ignored"]) <= 32


def test_who_else_may_answer_is_not_the_callers_to_say() -> None:
    native = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    call = calling({})
    written = Native("anthropic", {**native, "fallbacks": [{"model": "dear"}]}, lambda _: call.request)
    call.request = replace(call.request, native=written)
    asked = fitting.capped(call)
    assert asked.native is not None
    assert asked.native.body == native
    assert call.reply_headers["x-tollgate-ignored"] == "fallbacks"
