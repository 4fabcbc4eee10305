"""Anthropic's Python client."""

from __future__ import annotations

from typing import Any

import anthropic
from pydantic import BaseModel
from script import (
    IMPATIENCE_S,
    KEY,
    LONG,
    PICTURE,
    QUESTION,
    SCHEMA,
    SEEN,
    SLOW,
    URL,
    WEATHER,
    Asked,
    Lacks,
    feature,
    run,
    same,
    true,
)

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
ASK: list[Any] = [{"role": "user", "content": QUESTION}]
TOOLS: list[Any] = [{"name": "get_weather", "description": "The weather in a city.", "input_schema": SCHEMA}]
PATIENT: Any = {"format": {"type": "json_schema", "schema": LONG}}


class City(BaseModel):
    city: str


@feature("models")
def models(asked: Asked) -> None:
    true(asked.model in [model.id for model in client.models.list()], "the model is not in the list")
    same(asked.model, client.models.retrieve(asked.model).id, "the model's id")


@feature("messages")
def messages(asked: Asked) -> str:
    answer = client.messages.create(model=asked.model, max_tokens=64, system="Be brief.", messages=ASK)
    same("end_turn", answer.stop_reason, "stop_reason")
    true(answer.usage.input_tokens and answer.usage.output_tokens, "no usage")
    return _text(answer)


@feature("messages-stream")
def messages_stream(asked: Asked) -> str:
    with client.messages.stream(model=asked.model, max_tokens=64, messages=ASK) as stream:
        said = "".join(stream.text_stream)
        whole = stream.get_final_message()
    same(_text(whole), said, "the pieces together")
    true(whole.usage.output_tokens, "no usage")
    return said


@feature("messages-tools")
def messages_tools(asked: Asked) -> None:
    question: list[Any] = [{"role": "user", "content": WEATHER}]
    first = client.messages.create(
        model=asked.model,
        max_tokens=256,
        messages=question,
        tools=TOOLS,
        tool_choice={"type": "any"},
    )
    same("tool_use", first.stop_reason, "stop_reason")
    turns = [*question, {"role": "assistant", "content": first.content}, _results(first)]
    second = client.messages.create(model=asked.model, max_tokens=256, messages=turns, tools=TOOLS)
    true(second.content, "nothing after the tool's result")


@feature("messages-tools-stream")
def messages_tools_stream(asked: Asked) -> None:
    with client.messages.stream(
        model=asked.model,
        max_tokens=256,
        messages=[{"role": "user", "content": WEATHER}],
        tools=TOOLS,
        tool_choice={"type": "any"},
    ) as stream:
        kinds = {event.type for event in stream}
        whole = stream.get_final_message()
    true("input_json" in kinds, "the arguments did not come in pieces")
    _results(whole)


@feature("messages-structured")
def messages_structured(asked: Asked) -> None:
    answer = client.messages.parse(
        model=asked.model, max_tokens=256, messages=[{"role": "user", "content": WEATHER}], output_format=City
    )
    true(isinstance(answer.parsed_output, City), "nothing was parsed")


@feature("messages-image")
def messages_image(asked: Asked) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    content: list[Any] = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    answer = client.messages.create(
        model=asked.model, max_tokens=64, messages=[{"role": "user", "content": content}]
    )
    same(SEEN, _text(answer), "what is seen")


@feature("messages-thinking")
def messages_thinking(asked: Asked) -> None:
    with client.messages.stream(
        model=asked.model,
        max_tokens=4000,
        thinking={"type": "enabled", "budget_tokens": 1024},
        messages=ASK,
    ) as stream:
        first = stream.get_final_message()
    true(_text(first), "no answer")
    if not any(block.type == "thinking" and block.thinking for block in first.content):
        raise Lacks("the answer tells of no thoughts")
    turns: list[Any] = [
        *ASK,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "Why?"},
    ]
    second = client.messages.create(
        model=asked.model,
        max_tokens=4000,
        thinking={"type": "enabled", "budget_tokens": 1024},
        messages=turns,
    )
    true(_text(second), "no answer with the thoughts given back")


@feature("messages-count")
def messages_count(asked: Asked) -> None:
    counted = client.messages.count_tokens(model=asked.model, messages=ASK, system="Be brief.", tools=TOOLS)
    true(counted.input_tokens > 0, "none")


@feature("errors")
def errors(asked: Asked) -> None:
    ask = client.messages.create
    for kind, call in (
        (anthropic.BadRequestError, lambda: ask(model=asked.model, max_tokens=64, messages=[])),
        (anthropic.NotFoundError, lambda: ask(model="no-such-model", max_tokens=64, messages=ASK)),
        (anthropic.AuthenticationError, lambda: client.with_options(api_key="tg-wrong").models.list()),
    ):
        try:
            call()
        except kind as error:
            true(isinstance(error.body, dict) and error.body["error"]["type"], "an error without a type")
            true(error.request_id, "an error without a request's id")
        else:
            raise ValueError(f"no {kind.__name__}")


@feature("retry")
def retry(asked: Asked) -> str:
    raw = client.with_options(max_retries=3).messages.with_raw_response.create(
        model=asked.model, max_tokens=64, messages=[{"role": "user", "content": asked.busy}]
    )
    if raw.retries_taken == 0:
        raise Lacks("nothing refused the request")
    try:
        client.messages.create(
            model=asked.model, max_tokens=64, messages=[{"role": "user", "content": asked.busy}]
        )
    except anthropic.RateLimitError as error:
        true(int(error.response.headers["retry-after"]) >= 1, "retry-after")
    else:
        raise ValueError("no RateLimitError without retries")
    return _text(raw.parse())


@feature("timeout")
def timeout(asked: Asked) -> None:
    try:
        client.with_options(timeout=IMPATIENCE_S).messages.create(
            model=asked.model,
            max_tokens=4000,
            messages=[{"role": "user", "content": SLOW}],
            output_config=PATIENT,
        )
    except anthropic.APITimeoutError:
        return
    raise ValueError("no APITimeoutError")


@feature("abort")
def abort(asked: Asked) -> str:
    question: list[Any] = [{"role": "user", "content": SLOW}]
    with client.messages.stream(
        model=asked.model, max_tokens=4000, messages=question, output_config=PATIENT
    ) as stream:
        true(next(iter(stream)), "no first event")
    return messages(asked)


def _text(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def _results(message: Any) -> Any:
    calls = [block for block in message.content if block.type == "tool_use"]
    true(calls, "no tool was called")
    for call in calls:
        same("get_weather", call.name, "the tool")
        true(isinstance(call.input["city"], str), "no city")
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": '{"celsius": 21}'} for call in calls
    ]
    return {"role": "user", "content": results}


if __name__ == "__main__":
    run("anthropic")
