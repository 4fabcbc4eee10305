"""OpenAI's Python client."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
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
    SOUND,
    URL,
    WEATHER,
    Asked,
    Lacks,
    feature,
    run,
    same,
    true,
)

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
ASK: list[Any] = [{"role": "user", "content": QUESTION}]
FUNCTION = {"name": "get_weather", "description": "The weather in a city.", "parameters": SCHEMA}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
RESPONSE_TOOLS: list[Any] = [{"type": "function", **FUNCTION, "strict": True}]
PATIENT: Any = {"type": "json_schema", "json_schema": {"name": "long", "strict": True, "schema": LONG}}


class City(BaseModel):
    city: str


@feature("models")
def models(asked: Asked) -> None:
    true(asked.model in [model.id for model in client.models.list()], "the model is not in the list")
    same(asked.model, client.models.retrieve(asked.model).id, "the model's id")


@feature("chat")
def chat(asked: Asked) -> str | None:
    answer = client.chat.completions.create(
        model=asked.model, messages=ASK, temperature=0, max_completion_tokens=64
    )
    same("stop", answer.choices[0].finish_reason, "finish_reason")
    true(answer.usage and answer.usage.prompt_tokens and answer.usage.completion_tokens, "no usage")
    return answer.choices[0].message.content


@feature("chat-stream")
def chat_stream(asked: Asked) -> str | None:
    with client.chat.completions.stream(
        model=asked.model,
        messages=ASK,
        temperature=0,
        max_completion_tokens=64,
        stream_options={"include_usage": True},
    ) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        whole = stream.get_final_completion()
    same(whole.choices[0].message.content, said, "the pieces together")
    true(whole.usage and whole.usage.completion_tokens, "no usage")
    return said


@feature("chat-tools")
def chat_tools(asked: Asked) -> str | None:
    question: list[Any] = [{"role": "user", "content": WEATHER}]
    first = client.chat.completions.create(
        model=asked.model, messages=question, tools=TOOLS, tool_choice="required", temperature=0
    )
    message = first.choices[0].message
    same("tool_calls", first.choices[0].finish_reason, "finish_reason")
    results = _chat_results(message)
    second = client.chat.completions.create(
        model=asked.model, messages=[*question, message, *results], tools=TOOLS, temperature=0
    )
    return _text_or_call(second.choices[0].message)


@feature("chat-tools-stream")
def chat_tools_stream(asked: Asked) -> None:
    with client.chat.completions.stream(
        model=asked.model,
        messages=[{"role": "user", "content": WEATHER}],
        tools=TOOLS,
        tool_choice="required",
        temperature=0,
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        whole = stream.get_final_completion()
    _chat_results(whole.choices[0].message)
    true(done, "no event says that the arguments are done")
    same(
        [json.loads(call.function.arguments) for call in whole.choices[0].message.tool_calls or ()],
        [json.loads(event.arguments) for event in done],
        "the arguments",
    )


@feature("chat-structured")
def chat_structured(asked: Asked) -> None:
    answer = client.chat.completions.parse(
        model=asked.model, messages=[{"role": "user", "content": WEATHER}], response_format=City
    )
    true(isinstance(answer.choices[0].message.parsed, City), "nothing was parsed")


@feature("chat-image")
def chat_image(asked: Asked) -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    content: list[Any] = [{"type": "text", "text": "What is this?"}, picture]
    answer = client.chat.completions.create(
        model=asked.model, messages=[{"role": "user", "content": content}]
    )
    same(SEEN, answer.choices[0].message.content, "what is seen")


@feature("chat-thinking")
def chat_thinking(asked: Asked) -> None:
    answer = client.chat.completions.create(
        model=asked.model, messages=ASK, reasoning_effort="low", max_completion_tokens=4000
    )
    true(answer.choices[0].message.content, "no answer")
    thought = getattr(answer.choices[0].message, "reasoning_content", None)
    details = answer.usage and answer.usage.completion_tokens_details
    if not thought and not (details and details.reasoning_tokens):
        raise Lacks("the answer tells of no thoughts")


@feature("completions")
def completions(asked: Asked) -> None:
    whole = client.completions.create(model=asked.model, prompt="One, two", max_tokens=8, temperature=0)
    streamed = client.completions.create(
        model=asked.model, prompt="One, two", max_tokens=8, temperature=0, stream=True
    )
    true(whole.usage and whole.usage.completion_tokens, "no usage")
    same(whole.choices[0].text, "".join(event.choices[0].text for event in streamed), "the pieces together")


@feature("responses")
def responses(asked: Asked) -> str:
    answer = client.responses.create(
        model=asked.model, instructions="Be brief.", input=QUESTION, temperature=0, max_output_tokens=64
    )
    same("completed", answer.status, "status")
    true(answer.usage and answer.usage.input_tokens and answer.usage.output_tokens, "no usage")
    return answer.output_text


@feature("responses-stream")
def responses_stream(asked: Asked) -> str:
    with client.responses.stream(
        model=asked.model, input=QUESTION, temperature=0, max_output_tokens=64
    ) as stream:
        events = list(stream)
        whole = stream.get_final_response()
    kinds = [event.type for event in events]
    same(["response.created", "response.in_progress"], kinds[:2], "the first events")
    same("response.completed", kinds[-1], "the last event")
    same(list(range(len(events))), [event.sequence_number for event in events], "the sequence's numbers")
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    same(whole.output_text, said, "the pieces together")
    return said


@feature("responses-tools")
def responses_tools(asked: Asked) -> str:
    first = client.responses.create(
        model=asked.model, input=WEATHER, tools=RESPONSE_TOOLS, tool_choice="required", temperature=0
    )
    results = _response_results(first)
    second = client.responses.create(
        model=asked.model,
        input=[{"role": "user", "content": WEATHER}, *first.output, *results],  # type: ignore[list-item]
        tools=RESPONSE_TOOLS,
        temperature=0,
    )
    same("completed", second.status, "status")
    true(second.output, "nothing after the tool's result")
    return second.output_text


@feature("responses-tools-stream")
def responses_tools_stream(asked: Asked) -> None:
    with client.responses.stream(
        model=asked.model, input=WEATHER, tools=RESPONSE_TOOLS, tool_choice="required", temperature=0
    ) as stream:
        events = list(stream)
        whole = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    same("".join(done), "".join(deltas), "the arguments' pieces")
    _response_results(whole)


@feature("responses-structured")
def responses_structured(asked: Asked) -> None:
    answer = client.responses.parse(model=asked.model, input=WEATHER, text_format=City)
    true(isinstance(answer.output_parsed, City), "nothing was parsed")


@feature("responses-image")
def responses_image(asked: Asked) -> None:
    content: list[Any] = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PICTURE}"},
    ]
    answer = client.responses.create(model=asked.model, input=[{"role": "user", "content": content}])
    same(SEEN, answer.output_text, "what is seen")


@feature("responses-thinking")
def responses_thinking(asked: Asked) -> None:
    question: list[Any] = [{"role": "user", "content": QUESTION}]
    first = client.responses.create(
        model=asked.model,
        input=question,
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        store=False,
        max_output_tokens=4000,
    )
    counted = first.usage and first.usage.output_tokens_details.reasoning_tokens
    if not counted and not any(item.type == "reasoning" for item in first.output):
        raise Lacks("the answer tells of no thoughts")
    again = [*question, *first.output, {"role": "user", "content": "Why?"}]
    second = client.responses.create(model=asked.model, input=again, reasoning={"effort": "low"}, store=False)
    true(second.output_text, "no answer with the thoughts given back")


@feature("responses-continue")
def responses_continue(asked: Asked) -> str:
    first = client.responses.create(model=asked.model, input="I am Alice.", max_output_tokens=64)
    second = client.responses.create(
        model=asked.model, input=QUESTION, previous_response_id=first.id, max_output_tokens=64
    )
    same(first.id, second.previous_response_id, "previous_response_id")
    fetched = client.responses.retrieve(second.id)
    same(second.output_text, fetched.output_text, "what was kept")
    return second.output_text


@feature("responses-background")
def responses_background(asked: Asked) -> None:
    text: Any = {"format": {"type": "json_schema", "name": "long", "strict": True, "schema": LONG}}
    begun = client.responses.create(model=asked.model, input=SLOW, background=True, text=text)
    true(begun.status in ("queued", "in_progress"), f"status {begun.status}")
    true(client.responses.retrieve(begun.id).status in ("queued", "in_progress"), "it is over already")
    same("cancelled", client.responses.cancel(begun.id).status, "status after cancel")
    same("cancelled", client.responses.retrieve(begun.id).status, "status later on")


@feature("responses-delete")
def responses_delete(asked: Asked) -> None:
    made = client.responses.create(model=asked.model, input=QUESTION, max_output_tokens=64)
    client.responses.delete(made.id)
    try:
        client.responses.retrieve(made.id)
    except openai.NotFoundError:
        return
    raise ValueError("it is still there")


@feature("responses-input-items")
def responses_input_items(asked: Asked) -> None:
    made = client.responses.create(
        model=asked.model,
        input=[
            {"role": "user", "content": "One"},
            {"role": "assistant", "content": "Two"},
            {"role": "user", "content": QUESTION},
        ],
        max_output_tokens=64,
    )
    items = list(client.responses.input_items.list(made.id, order="asc", limit=2))
    same(["user", "assistant", "user"], [getattr(item, "role", None) for item in items], "the items' roles")


@feature("responses-input-tokens")
def responses_input_tokens(asked: Asked) -> None:
    true(client.responses.input_tokens.count(model=asked.model, input=QUESTION).input_tokens > 0, "none")


@feature("responses-compact")
def responses_compact(asked: Asked) -> None:
    conversation: list[Any] = [{"role": "user", "content": "I am Alice."}]
    compacted = client.responses.compact(model=asked.model, input=conversation)
    same("compaction", compacted.output[-1].type, "the last item")
    again: Any = [*compacted.output, {"role": "user", "content": QUESTION}]
    true(client.responses.create(model=asked.model, input=again).output_text, "no answer afterwards")


@feature("embeddings")
def embeddings(asked: Asked) -> None:
    made = client.embeddings.create(model=asked.embedder, input=["One", "Two"])
    same([0, 1], [one.index for one in made.data], "the vectors' numbers")
    plain = client.embeddings.create(model=asked.embedder, input="One", encoding_format="float")
    same(len(made.data[0].embedding), len(plain.data[0].embedding), "the vectors' length")
    true(made.usage.prompt_tokens, "no usage")


@feature("moderations")
def moderations(asked: Asked) -> None:
    [found] = client.moderations.create(input="Good morning.").results
    same(False, found.flagged, "flagged")


@feature("files")
def files(asked: Asked) -> None:
    content = b'{"a": 1}\n'
    made = client.files.create(file=("a.jsonl", content), purpose="user_data")
    same((len(content), "a.jsonl"), (made.bytes, made.filename), "the file")
    true(made.id in [one.id for one in client.files.list()], "it is not in the list")
    same(content, client.files.content(made.id).read(), "its content")
    true(client.files.delete(made.id).deleted, "it was not deleted")


@feature("batches")
def batches(asked: Asked) -> None:
    body = {"model": asked.model, "messages": ASK, "max_completion_tokens": 64, "temperature": 0}
    lines = [
        {"custom_id": f"line-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(2)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    given = client.files.create(file=("lines.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=given.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    for _ in range(600):
        batch = client.batches.retrieve(batch.id)
        if batch.status not in ("validating", "in_progress", "finalizing"):
            break
        time.sleep(0.1)
    same("completed", batch.status, "status")
    true(batch.output_file_id, "no output")
    told = [json.loads(line) for line in client.files.content(batch.output_file_id or "").text.splitlines()]
    same({"line-0", "line-1"}, {line["custom_id"] for line in told}, "the lines")
    same([200, 200], [line["response"]["status_code"] for line in told], "their statuses")
    true(batch.id in [one.id for one in client.batches.list()], "it is not in the list")


@feature("transcription")
def transcription(asked: Asked) -> str:
    return client.audio.transcriptions.create(model=asked.model, file=("a.wav", SOUND)).text


@feature("speech")
def speech(asked: Asked) -> None:
    with client.audio.speech.with_streaming_response.create(
        model=asked.model, voice="alloy", input="Hello."
    ) as response:
        true(b"".join(response.iter_bytes()), "no sound")


@feature("images")
def images(asked: Asked) -> None:
    made = client.images.generate(model=asked.model, prompt="A fox.", n=2)
    same(2, len(made.data or ()), "the pictures")


@feature("rerank")
def rerank(asked: Asked) -> None:
    """The library has no method for it, and sends it all the same."""
    body = {"model": asked.model, "query": "A fox?", "documents": ["A hen.", "A fox."]}
    found: Any = client.post("/rerank", cast_to=object, body=body)
    same(2, len(found["results"]), "the ranks")


@feature("errors")
def errors(asked: Asked) -> None:
    ask = client.chat.completions.create
    for kind, call in (
        (openai.BadRequestError, lambda: ask(model=asked.model, messages=[])),
        (
            openai.BadRequestError,
            lambda: client.responses.create(model=asked.model, input=QUESTION, temperature=9),
        ),
        (openai.NotFoundError, lambda: ask(model="no-such-model", messages=ASK)),
        (openai.AuthenticationError, lambda: client.with_options(api_key="tg-wrong").models.list()),
    ):
        try:
            call()
        except kind as error:
            true(error.message and error.type, "an error without message or type")
        else:
            raise ValueError(f"no {kind.__name__}")


@feature("retry")
def retry(asked: Asked) -> str | None:
    raw = client.with_options(max_retries=3).chat.completions.with_raw_response.create(
        model=asked.model, messages=[{"role": "user", "content": asked.busy}]
    )
    if raw.retries_taken == 0:
        raise Lacks("nothing refused the request")
    answer = raw.parse()
    try:
        client.chat.completions.create(model=asked.model, messages=[{"role": "user", "content": asked.busy}])
    except openai.RateLimitError as error:
        true(int(error.response.headers["retry-after"]) >= 1, "retry-after")
    else:
        raise ValueError("no RateLimitError without retries")
    return answer.choices[0].message.content


@feature("timeout")
def timeout(asked: Asked) -> None:
    try:
        client.with_options(timeout=IMPATIENCE_S).chat.completions.create(
            model=asked.model, messages=[{"role": "user", "content": SLOW}], response_format=PATIENT
        )
    except openai.APITimeoutError:
        return
    raise ValueError("no APITimeoutError")


@feature("abort")
def abort(asked: Asked) -> str | None:
    question: list[Any] = [{"role": "user", "content": SLOW}]
    for stream in (
        client.chat.completions.create(
            model=asked.model, messages=question, response_format=PATIENT, stream=True
        ),
        client.responses.create(model=asked.model, input=SLOW, stream=True),
    ):
        true(next(iter(stream)), "no first event")
        stream.close()
    return chat(asked)


def _chat_results(message: Any) -> list[Any]:
    calls = message.tool_calls or []
    true(calls, "no tool was called")
    for call in calls:
        same("get_weather", call.function.name, "the tool")
        true(isinstance(json.loads(call.function.arguments)["city"], str), "no city")
    return [{"role": "tool", "tool_call_id": call.id, "content": '{"celsius": 21}'} for call in calls]


def _text_or_call(message: Any) -> str | None:
    """A small model may call once more."""
    true(message.content or message.tool_calls, "nothing after the tool's result")
    return message.content


def _response_results(response: Any) -> list[Any]:
    calls = [item for item in response.output if item.type == "function_call"]
    true(calls, "no tool was called")
    for call in calls:
        true(isinstance(json.loads(call.arguments)["city"], str), "no city")
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": '{"celsius": 21}'}
        for call in calls
    ]


if __name__ == "__main__":
    run("openai")
