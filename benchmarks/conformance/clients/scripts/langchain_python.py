"""LangChain, by chat completions, responses and Anthropic's messages."""

from __future__ import annotations

import itertools
from typing import Any

import anthropic
import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from script import (
    IMPATIENCE_S,
    KEY,
    LONG,
    PICTURE,
    QUESTION,
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

PATIENT: Any = {"type": "json_schema", "json_schema": {"name": "long", "strict": True, "schema": LONG}}


class City(BaseModel):
    """A city."""

    city: str


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return '{"celsius": 21}'


def chat_model(asked: Asked, **more: Any) -> BaseChatModel:
    more = {"max_retries": 0, "max_tokens": 256, **more}
    return ChatOpenAI(model=asked.model, base_url=f"{URL}/v1", api_key=KEY, stream_usage=True, **more)


def responses_model(asked: Asked, **more: Any) -> BaseChatModel:
    return chat_model(asked, use_responses_api=True, output_version="responses/v1", **more)


def messages_model(asked: Asked, **more: Any) -> BaseChatModel:
    more = {"max_retries": 0, "max_tokens": 256, **more}
    return ChatAnthropic(model=asked.model, base_url=URL, api_key=KEY, **more)


THINKING: dict[str, dict[str, Any]] = {
    "chat": {"reasoning_effort": "low", "max_tokens": 4000},
    "responses": {"reasoning": {"effort": "low", "summary": "auto"}, "max_tokens": 4000},
    "messages": {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4000},
}


def tell_of(api: str, model: Any) -> None:
    """The features of one API."""

    @feature(api)
    def whole(asked: Asked) -> str:
        answer = model(asked).invoke(QUESTION)
        usage = answer.usage_metadata
        true(usage and usage["input_tokens"] and usage["output_tokens"], "no usage")
        return answer.text

    @feature(f"{api}-stream")
    def streamed(asked: Asked) -> str:
        pieces = list(model(asked).stream(QUESTION))
        whole = pieces[0]
        for piece in pieces[1:]:
            whole += piece
        true(whole.usage_metadata and whole.usage_metadata["output_tokens"], "no usage")
        return "".join(piece.text for piece in pieces)

    @feature(f"{api}-tools")
    def tools(asked: Asked) -> None:
        question = HumanMessage(WEATHER)
        first = model(asked).bind_tools([get_weather], tool_choice="any").invoke([question])
        true(first.tool_calls, "no tool was called")
        results = [get_weather.invoke(call) for call in first.tool_calls]
        true(all(isinstance(result, ToolMessage) for result in results), "no results")
        second = model(asked).bind_tools([get_weather]).invoke([question, first, *results])
        true(second.text or second.tool_calls, "nothing after the tool's result")

    @feature(f"{api}-tools-stream")
    def tools_streamed(asked: Asked) -> None:
        bound = model(asked).bind_tools([get_weather], tool_choice="any")
        pieces = list(bound.stream(WEATHER))
        whole = pieces[0]
        for piece in pieces[1:]:
            whole += piece
        same(["get_weather"], [call["name"] for call in whole.tool_calls], "the tools")
        true(isinstance(whole.tool_calls[0]["args"]["city"], str), "no city")

    @feature(f"{api}-structured")
    def structured(asked: Asked) -> None:
        city = model(asked).with_structured_output(City, method="json_schema").invoke(WEATHER)
        true(isinstance(city, City), "nothing was parsed")

    @feature(f"{api}-image")
    def image(asked: Asked) -> None:
        content: list[Any] = [
            {"type": "text", "text": "What is this?"},
            {"type": "image", "base64": PICTURE, "mime_type": "image/png"},
        ]
        same(SEEN, model(asked).invoke([HumanMessage(content)]).text, "what is seen")

    @feature(f"{api}-thinking")
    def thinking(asked: Asked) -> None:
        thoughtful = model(asked, **THINKING[api])
        question = HumanMessage(QUESTION)
        first = thoughtful.invoke([question])
        true(first.text, "no answer")
        counted = (first.usage_metadata or {}).get("output_token_details", {}).get("reasoning", 0)
        if not counted and "reasoning" not in [block["type"] for block in first.content_blocks]:
            raise Lacks("the answer tells of no thoughts")
        second = thoughtful.invoke([question, first, HumanMessage("Why?")])
        true(second.text, "no answer with the thoughts given back")


tell_of("chat", chat_model)
tell_of("responses", responses_model)
tell_of("messages", messages_model)


@feature("completions")
def completions(asked: Asked) -> None:
    llm = OpenAI(
        model=asked.model, base_url=f"{URL}/v1", api_key=KEY, max_retries=0, max_tokens=8, temperature=0
    )
    same(llm.invoke("One, two"), "".join(llm.stream("One, two")), "the pieces together")


@feature("responses-continue")
def responses_continue(asked: Asked) -> str:
    first = responses_model(asked).invoke("I am Alice.")
    second = responses_model(asked).invoke(QUESTION, previous_response_id=first.response_metadata["id"])
    return str(second.text)


@feature("messages-count")
def messages_count(asked: Asked) -> None:
    true(messages_model(asked).get_num_tokens_from_messages([HumanMessage(QUESTION)]) > 0, "none")


@feature("embeddings")
def embeddings(asked: Asked) -> None:
    made = OpenAIEmbeddings(
        model=asked.embedder,
        base_url=f"{URL}/v1",
        api_key=KEY,
        max_retries=0,
        check_embedding_ctx_length=False,
    ).embed_documents(["One", "Two"])
    same(2, len(made), "the vectors")


@feature("errors")
def errors(asked: Asked) -> None:
    unknown = Asked("no-such-model", "")
    for kind, call in (
        (openai.BadRequestError, lambda: chat_model(asked).invoke(QUESTION, temperature=9)),
        (openai.BadRequestError, lambda: responses_model(asked).invoke(QUESTION, temperature=9)),
        (openai.NotFoundError, lambda: chat_model(unknown).invoke(QUESTION)),
        (anthropic.NotFoundError, lambda: messages_model(unknown).invoke(QUESTION)),
        (
            openai.AuthenticationError,
            lambda: ChatOpenAI(model=asked.model, base_url=f"{URL}/v1", api_key="tg-wrong").invoke(QUESTION),
        ),
    ):
        try:
            call()
        except kind as error:
            true(error.message, "an error without a message")
        else:
            raise ValueError(f"no {kind.__name__}")


@feature("retry")
def retry(asked: Asked) -> str:
    try:
        chat_model(asked).invoke(asked.busy)
    except openai.RateLimitError as error:
        true(int(error.response.headers["retry-after"]) >= 1, "retry-after")
    else:
        raise Lacks("nothing refused the request")
    return str(chat_model(asked, max_retries=3).invoke(asked.busy).text)


@feature("timeout")
def timeout(asked: Asked) -> None:
    try:
        chat_model(asked, timeout=IMPATIENCE_S).invoke(SLOW, response_format=PATIENT)
    except openai.APITimeoutError:
        return
    raise ValueError("no APITimeoutError")


@feature("abort")
def abort(asked: Asked) -> str:
    for stream in (
        chat_model(asked).bind(response_format=PATIENT).stream(SLOW),
        responses_model(asked).stream(SLOW),
        messages_model(asked).stream(SLOW),
    ):
        true(list(itertools.islice(stream, 1)), "no first piece")
        stream.close()  # type: ignore[attr-defined]
    return str(chat_model(asked).invoke(QUESTION).text)


if __name__ == "__main__":
    run("langchain-core", "langchain-openai", "langchain-anthropic", "openai", "anthropic")
