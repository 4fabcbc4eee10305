"""``/v1/responses`` before the bundled engine, as OpenAI's client asks it."""

from __future__ import annotations

import time
from typing import Any

import openai
import pydantic
import pytest

from tests.e2e.conftest import Stack

CAPITAL = "What is the capital of France?"


@pytest.fixture(scope="module")
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0)


def test_a_stream_says_what_a_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="tollgate-demo", input=CAPITAL, temperature=0)
    assert "Paris" in whole.output_text
    assert (whole.status, whole.model) == ("completed", "tollgate-demo")
    with client.responses.stream(model="tollgate-demo", input=CAPITAL, temperature=0) as answer:
        said = [event.delta for event in answer if event.type == "response.output_text.delta"]
        final = answer.get_final_response()
    assert "".join(said) == final.output_text == whole.output_text
    assert final.usage == whole.usage
    assert final.usage is not None
    assert final.usage.input_tokens > 5


def test_a_conversation(client: openai.OpenAI) -> None:
    first = client.responses.create(model="tollgate-demo", input=CAPITAL, temperature=0)
    second = client.responses.create(
        model="tollgate-demo",
        input="What is the capital of Norway?",
        previous_response_id=first.id,
        temperature=0,
    )
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + 5
    counted = client.responses.input_tokens.count(
        model="tollgate-demo", input="?", previous_response_id=second.id
    )
    assert counted.input_tokens > 5
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_a_form_is_kept_to(client: openai.OpenAI) -> None:
    class Capital(pydantic.BaseModel):
        city: str

    response = client.responses.parse(
        model="tollgate-demo", input=CAPITAL, text_format=Capital, temperature=0
    )
    assert isinstance(response.output_parsed, Capital)


def test_a_tool_is_called_and_its_result_taken(client: openai.OpenAI) -> None:
    tools: Any = [
        {
            "type": "function",
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        }
    ]
    asked: Any = {"model": "tollgate-demo", "tools": tools, "temperature": 0}
    with client.responses.stream(
        input="What is the weather in Paris?", tool_choice="required", **asked
    ) as answer:
        kinds = {event.type for event in answer}
        first = answer.get_final_response()
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= kinds
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, call.status) == ("get_weather", "completed")
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    second = client.responses.create(input=result, previous_response_id=first.id, **asked)
    assert second.status == "completed"


def test_an_answer_that_is_cut_off(client: openai.OpenAI) -> None:
    response = client.responses.create(model="tollgate-demo", input="Tell me a story.", max_output_tokens=3)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_conversation_too_long_for_the_model_is_truncated_where_that_is_allowed(
    client: openai.OpenAI,
) -> None:
    turns: Any = []
    for i in range(60):
        turns += [
            {"role": "user", "content": f"Remember number {i}. " + "It is a number among many others. " * 10},
            {"role": "assistant", "content": "I will."},
        ]
    turns.append({"role": "user", "content": CAPITAL})
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="tollgate-demo", input=turns)
    assert caught.value.code == "context_length_exceeded"
    raw = client.responses.with_raw_response.create(
        model="tollgate-demo", input=turns, truncation="auto", max_output_tokens=16
    )
    assert 0 < int(raw.headers["x-tollgate-truncated"]) < len(turns)
    assert raw.parse().output_text


def test_one_in_the_background(client: openai.OpenAI) -> None:
    response = client.responses.create(model="tollgate-demo", input=CAPITAL, temperature=0, background=True)
    deadline = time.monotonic() + 300
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.05)
        response = client.responses.retrieve(response.id)
    assert "Paris" in response.output_text


def test_a_summary(client: openai.OpenAI) -> None:
    compacted = client.responses.compact(model="tollgate-demo", input=CAPITAL)
    kept: Any = [item.to_dict() for item in compacted.output]
    asked: Any = [*kept, {"role": "user", "content": CAPITAL}]
    assert client.responses.create(model="tollgate-demo", input=asked, max_output_tokens=16).id
