"""Google's Python client."""

from __future__ import annotations

import base64
from typing import Any

from google import genai
from google.genai import errors as failures
from google.genai import types
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


def client(key: str = KEY, *, attempts: int = 1, **options: Any) -> genai.Client:
    retries = types.HttpRetryOptions(attempts=attempts, initial_delay=1.2, jitter=0)
    return genai.Client(
        api_key=key, http_options=types.HttpOptions(base_url=URL, retry_options=retries, **options)
    )


google = client()
models = google.models
TOOLS: list[Any] = [
    types.Tool(
        function_declarations=[
            types.FunctionDeclaration(
                name="get_weather", description="The weather in a city.", parameters_json_schema=SCHEMA
            )
        ]
    )
]
MUST = types.ToolConfig(
    function_calling_config=types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
)
PATIENT = types.GenerateContentConfig(
    max_output_tokens=4000, response_mime_type="application/json", response_json_schema=LONG
)


class City(BaseModel):
    city: str


def config(**more: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(**{"max_output_tokens": 256, **more})


@feature("models")
def listed(asked: Asked) -> None:
    name = f"models/{asked.model}"
    true(name in [model.name for model in models.list()], "the model is not in the list")
    same(name, models.get(model=asked.model).name, "the model's name")


@feature("contents")
def whole(asked: Asked) -> str:
    answer = models.generate_content(
        model=asked.model,
        contents=QUESTION,
        config=config(max_output_tokens=64, system_instruction="Be brief."),
    )
    _check(answer)
    return answer.text or ""


@feature("contents-stream")
def streamed(asked: Asked) -> str:
    pieces = [
        *models.generate_content_stream(
            model=asked.model, contents=QUESTION, config=config(max_output_tokens=64)
        )
    ]
    _check(pieces[-1])
    return "".join(piece.text or "" for piece in pieces)


@feature("contents-tools")
def tools(asked: Asked) -> None:
    question = types.Content(role="user", parts=[types.Part(text=WEATHER)])
    asking = {"model": asked.model, "config": config(tools=TOOLS, tool_config=MUST)}
    first = models.generate_content(contents=[question], **asking)
    turns = [question, first.candidates[0].content, _results(first)]
    second = models.generate_content(model=asked.model, contents=turns, config=config(tools=TOOLS))
    true(second.candidates[0].content.parts, "nothing after the tool's result")


@feature("contents-tools-stream")
def tools_streamed(asked: Asked) -> None:
    asking = {"model": asked.model, "config": config(tools=TOOLS, tool_config=MUST)}
    pieces = [*models.generate_content_stream(contents=WEATHER, **asking)]
    called = [piece for piece in pieces if piece.function_calls]
    true(called, "no tool was called")
    _results(called[0])


@feature("contents-structured")
def structured(asked: Asked) -> None:
    asking = config(response_mime_type="application/json", response_schema=City)
    answer = models.generate_content(model=asked.model, contents=WEATHER, config=asking)
    true(isinstance(answer.parsed, City), "nothing was parsed")


@feature("contents-image")
def image(asked: Asked) -> None:
    picture = types.Part.from_bytes(data=base64.b64decode(PICTURE), mime_type="image/png")
    answer = models.generate_content(
        model=asked.model, contents=[picture, "What is this?"], config=config(max_output_tokens=64)
    )
    same(SEEN, answer.text, "what is seen")


@feature("contents-thinking")
def thinking(asked: Asked) -> None:
    asking = config(
        max_output_tokens=4000,
        thinking_config=types.ThinkingConfig(include_thoughts=True, thinking_budget=1024),
    )
    chat = google.chats.create(model=asked.model, config=asking)
    first = chat.send_message(QUESTION)
    true(first.text, "no answer")
    if not any(part.thought and part.text for part in first.candidates[0].content.parts):
        raise Lacks("the answer tells of no thoughts")
    true(chat.send_message("Why?").text, "no answer with the thoughts given back")


@feature("contents-count")
def counted(asked: Asked) -> None:
    true(models.count_tokens(model=asked.model, contents=QUESTION).total_tokens, "none")


@feature("embeddings")
def embeddings(asked: Asked) -> None:
    found = models.embed_content(model=asked.embedder, contents=["one", "two"]).embeddings
    same(2, len(found or ()), "vectors")
    true(all(one.values for one in found or ()), "an empty vector")


@feature("errors")
def errors(asked: Asked) -> None:
    ask, wrong = models.generate_content, client("tg-wrong")
    for status, name, call in (
        (
            400,
            "INVALID_ARGUMENT",
            lambda: ask(model=asked.model, contents=QUESTION, config=config(temperature=9)),
        ),
        (404, "NOT_FOUND", lambda: ask(model="no-such-model", contents=QUESTION)),
        (401, "UNAUTHENTICATED", lambda: wrong.models.list()),
    ):
        try:
            call()
        except failures.ClientError as error:
            same((status, name), (error.code, error.status), "the error")
        else:
            raise ValueError(f"no {name}")


@feature("retry")
def retry(asked: Asked) -> str:
    question = asked.busy
    try:
        models.generate_content(model=asked.model, contents=question)
    except failures.ClientError as error:
        same(429, error.code, "the error")
        true(int(error.response.headers["retry-after"]) >= 1, "retry-after")
    else:
        raise Lacks("nothing refused the request")
    asking = config(max_output_tokens=64)
    patient = client(attempts=4)
    answer = patient.models.generate_content(model=asked.model, contents=asked.busy, config=asking)
    return answer.text or ""


@feature("timeout")
def timeout(asked: Asked) -> None:
    hasty = client(timeout=int(IMPATIENCE_S * 1000))
    try:
        hasty.models.generate_content(model=asked.model, contents=SLOW, config=PATIENT)
    except Exception as error:  # that of whichever HTTP library it has found
        if "Timeout" in type(error).__name__:
            return
        raise
    raise ValueError("no time-out")


@feature("abort")
def abort(asked: Asked) -> str:
    answers = models.generate_content_stream(model=asked.model, contents=SLOW, config=PATIENT)
    true(next(iter(answers)), "no first event")
    answers.close()
    return whole(asked)


def _check(answer: types.GenerateContentResponse) -> None:
    same("STOP", answer.candidates[0].finish_reason.name, "finish_reason")
    usage = answer.usage_metadata
    true(usage and usage.prompt_token_count and usage.total_token_count, "no usage")


def _results(answer: types.GenerateContentResponse) -> types.Content:
    true(answer.function_calls, "no tool was called")
    parts = []
    for call in answer.function_calls or ():
        same("get_weather", call.name, "the tool")
        true(isinstance((call.args or {})["city"], str), "no city")
        result = types.FunctionResponse(id=call.id, name=call.name, response={"celsius": 21})
        parts.append(types.Part(function_response=result))
    return types.Content(role="user", parts=parts)


if __name__ == "__main__":
    run("google-genai")
