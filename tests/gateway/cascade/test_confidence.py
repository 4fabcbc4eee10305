from __future__ import annotations

from typing import Any

import pytest

from gateway.cascade.confidence import Assessment, assess, token_logprobs
from gateway.policy.schema import Escalate
from gateway.types import ChatRequest, Chunk

ASKED = ChatRequest(model="m", messages=({"role": "user", "content": "Hello"},))


def schema_request(schema: Any) -> ChatRequest:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return ChatRequest(model="m", messages=ASKED.messages, params={"response_format": wanted})


def said(text: str, *, index: int = 0, logprob: float | None = None, **delta: Any) -> list[Chunk]:
    told = None if logprob is None else {"content": [{"token": "x", "logprob": logprob}]}
    return [
        Chunk(index=index, delta={"content": text, **delta}, logprobs=told),
        Chunk(index=index, delta={}, finish_reason="stop"),
    ]


def test_every_choice_must_do() -> None:
    fine, bad = said("Fine.", logprob=-0.1), said("I cannot help with that.", index=1, logprob=-0.9)
    assert assess(fine, ASKED, Escalate()) == Assessment(True, "good", -0.1)
    assert assess([*fine, *bad], ASKED, Escalate()) == Assessment(False, "refusal", -0.9)
    unsure = Escalate(mean_logprob_below=-0.5, on_refusal=False)
    assert assess([*fine, *bad], ASKED, unsure) == Assessment(False, "low_logprob", -0.9)


def test_each_check_can_be_turned_off() -> None:
    no_checks = Escalate(on_refusal=False, on_invalid_schema=False)
    chunks = said("I cannot help with that.", refusal="No.", logprob=-5.0)
    assert assess(chunks, schema_request({"type": "object"}), no_checks).good


def test_a_schema_is_checked() -> None:
    request = schema_request({"type": "object", "required": ["a"]})
    assert assess(said('{"a": 1}'), request, Escalate()).good
    assert assess(said('{"b": 1}'), request, Escalate()).reason == "invalid_schema"
    assert assess(said("```json\n{}\n```"), request, Escalate()).reason == "invalid_schema"


def test_a_tool_call_is_no_json_answer() -> None:
    calls = [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]
    chunks = [
        Chunk(delta={"content": None, "tool_calls": calls}),
        Chunk(delta={}, finish_reason="tool_calls"),
    ]
    assert assess(chunks, schema_request({"type": "object"}), Escalate()).good


def test_a_request_without_a_sound_response_format_is_not_checked() -> None:
    for wanted in (
        None,
        "json",
        {"type": "json_schema"},
        {"type": 3},
        {"type": "json_schema", "json_schema": 1},
    ):
        request = ChatRequest(model="m", messages=ASKED.messages, params={"response_format": wanted})
        assert assess(said("{}"), request, Escalate()).good


@pytest.mark.parametrize(
    ("told", "values"),
    [
        ({"content": [{"logprob": -1.5}, {"logprob": 0.0}]}, [-1.5, 0.0]),
        ({"content": [{"logprob": -9999.0}, {"logprob": None}, {}, 7, {"logprob": "x"}]}, []),
        ({"content": None, "refusal": []}, []),
        ({"tokens": ["a", "b"], "token_logprobs": [None, -2]}, [-2]),
        ({"token_logprobs": 7}, []),
        ({}, []),
    ],
    ids=["chat", "gaps", "empty", "completions", "nonsense", "nothing"],
)
def test_logprobs_are_read(told: dict[str, Any], values: list[float]) -> None:
    assert [*token_logprobs(told)] == values
