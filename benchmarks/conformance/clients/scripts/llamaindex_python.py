"""LlamaIndex, by chat completions, responses and Anthropic's messages."""

from __future__ import annotations

import base64
import itertools
from typing import Any

import openai
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.anthropic import Anthropic
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
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


def get_weather(city: str) -> str:
    """The weather in a city."""
    return '{"celsius": 21}'


TOOL = FunctionTool.from_defaults(get_weather)


def chat_model(asked: Asked, **more: Any) -> Any:
    return OpenAILike(
        **{
            "model": asked.model,
            "api_base": f"{URL}/v1",
            "api_key": KEY,
            "max_retries": 0,
            "max_tokens": 256,
            "context_window": 8192,
            "is_chat_model": True,
            "is_function_calling_model": True,
            **more,
        }
    )


def responses_model(asked: Asked, **more: Any) -> Any:
    return OpenAIResponses(
        **{
            "model": asked.model,
            "api_base": f"{URL}/v1",
            "api_key": KEY,
            "max_retries": 0,
            "max_output_tokens": 256,
            "context_window": 8192,
            **more,
        }
    )


def messages_model(asked: Asked, **more: Any) -> Any:
    """Raises ``Lacks`` for a name that this library does not know: it asks for no model but Anthropic's."""
    llm = Anthropic(
        **{"model": asked.model, "base_url": URL, "api_key": KEY, "max_retries": 0, "max_tokens": 256, **more}
    )
    try:
        llm.metadata  # noqa: B018
    except ValueError as error:
        raise Lacks("the library takes names of Anthropic's models only") from error
    return llm


THINKING: dict[str, dict[str, Any]] = {
    "chat": {"additional_kwargs": {"reasoning_effort": "low"}, "max_tokens": 4000},
    "responses": {"reasoning_options": {"effort": "low", "summary": "auto"}, "max_output_tokens": 4000},
    "messages": {
        "thinking_dict": {"type": "enabled", "budget_tokens": 1024},
        "max_tokens": 4000,
        "temperature": 1.0,
    },
}


def tell_of(api: str, model: Any) -> None:
    """The features of one API."""

    @feature(api)
    def whole(asked: Asked) -> str:
        answer = model(asked).chat([ChatMessage(role="user", content=QUESTION)])
        true(answer.raw and _get(answer.raw, "usage"), "no usage")
        return str(answer.message.content)

    @feature(f"{api}-stream")
    def streamed(asked: Asked) -> str:
        pieces = list(model(asked).stream_chat([ChatMessage(role="user", content=QUESTION)]))
        said = "".join(piece.delta or "" for piece in pieces)
        same(pieces[-1].message.content, said, "the pieces together")
        return said

    @feature(f"{api}-tools")
    def tools(asked: Asked) -> None:
        llm = model(asked)
        question = ChatMessage(role="user", content=WEATHER)
        first = llm.chat_with_tools([TOOL], chat_history=[question], tool_required=True)
        results = []
        for call in llm.get_tool_calls_from_response(first):
            true(isinstance(call.tool_kwargs["city"], str), "no city")
            told = {"tool_call_id": call.tool_id, "name": call.tool_name}
            results.append(ChatMessage(role="tool", content='{"celsius": 21}', additional_kwargs=told))
        second = llm.chat_with_tools([TOOL], chat_history=[question, first.message, *results])
        calls = llm.get_tool_calls_from_response(second, error_on_no_tool_call=False)
        true(second.message.content or calls, "nothing after the tool's result")

    @feature(f"{api}-tools-stream")
    def tools_streamed(asked: Asked) -> None:
        llm = model(asked)
        *_, last = llm.stream_chat_with_tools([TOOL], user_msg=WEATHER, tool_required=True)
        calls = llm.get_tool_calls_from_response(last)
        same(["get_weather"], [call.tool_name for call in calls], "the tools")
        true(isinstance(calls[0].tool_kwargs["city"], str), "no city")

    @feature(f"{api}-structured")
    def structured(asked: Asked) -> None:
        more = {"should_use_structured_outputs": True} if api == "chat" else {}
        answer = (
            model(asked, **more).as_structured_llm(City).chat([ChatMessage(role="user", content=WEATHER)])
        )
        true(isinstance(answer.raw, City), "nothing was parsed")

    @feature(f"{api}-image")
    def image(asked: Asked) -> None:
        picture = ImageBlock(image=base64.b64decode(PICTURE), image_mimetype="image/png")
        message = ChatMessage(role="user", blocks=[TextBlock(text="What is this?"), picture])
        same(SEEN, model(asked).chat([message]).message.content, "what is seen")

    @feature(f"{api}-thinking")
    def thinking(asked: Asked) -> None:
        llm = model(asked, **THINKING[api])
        question = ChatMessage(role="user", content=QUESTION)
        first = llm.chat([question])
        true(first.message.content, "no answer")
        usage = _get(first.raw, "usage")
        details = _get(usage, "completion_tokens_details") or _get(usage, "output_tokens_details")
        thought = any(block.block_type == "thinking" for block in first.message.blocks)
        if not thought and not (details and _get(details, "reasoning_tokens")):
            raise Lacks("the answer tells of no thoughts")
        second = llm.chat([question, first.message, ChatMessage(role="user", content="Why?")])
        true(second.message.content, "no answer with the thoughts given back")


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


tell_of("chat", chat_model)
tell_of("responses", responses_model)
tell_of("messages", messages_model)


@feature("completions")
def completions(asked: Asked) -> None:
    llm = chat_model(asked, is_chat_model=False, max_tokens=8, temperature=0)
    whole = llm.complete("One, two").text
    same(
        whole, "".join(piece.delta or "" for piece in llm.stream_complete("One, two")), "the pieces together"
    )


@feature("responses-continue")
def responses_continue(asked: Asked) -> str:
    llm = responses_model(asked, track_previous_responses=True, store=True)
    llm.chat([ChatMessage(role="user", content="I am Alice.")])
    return str(llm.chat([ChatMessage(role="user", content=QUESTION)]).message.content)


@feature("embeddings")
def embeddings(asked: Asked) -> None:
    embedder = OpenAIEmbedding(
        model_name=asked.embedder, api_base=f"{URL}/v1", api_key=KEY, max_retries=0, embed_batch_size=2
    )
    same(2, len(embedder.get_text_embedding_batch(["One", "Two"])), "the vectors")


@feature("errors")
def errors(asked: Asked) -> None:
    question = [ChatMessage(role="user", content=QUESTION)]
    unknown = Asked("no-such-model", "")
    for kind, call in (
        (openai.BadRequestError, lambda: chat_model(asked, additional_kwargs={"top_p": 9}).chat(question)),
        (
            openai.BadRequestError,
            lambda: responses_model(asked, additional_kwargs={"top_p": 9}).chat(question),
        ),
        (openai.NotFoundError, lambda: chat_model(unknown).chat(question)),
        (openai.AuthenticationError, lambda: chat_model(asked, api_key="tg-wrong").chat(question)),
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
        chat_model(asked).chat([ChatMessage(role="user", content=asked.busy)])
    except openai.RateLimitError as error:
        true(int(error.response.headers["retry-after"]) >= 1, "retry-after")
    else:
        raise Lacks("nothing refused the request")
    answer = chat_model(asked, max_retries=3).chat([ChatMessage(role="user", content=asked.busy)])
    return str(answer.message.content)


@feature("timeout")
def timeout(asked: Asked) -> None:
    llm = chat_model(asked, timeout=IMPATIENCE_S, additional_kwargs={"response_format": PATIENT})
    try:
        llm.chat([ChatMessage(role="user", content=SLOW)])
    except openai.APITimeoutError:
        return
    raise ValueError("no APITimeoutError")


@feature("abort")
def abort(asked: Asked) -> str:
    question = [ChatMessage(role="user", content=SLOW)]
    for llm in (chat_model(asked, additional_kwargs={"response_format": PATIENT}), responses_model(asked)):
        stream = llm.stream_chat(question)
        true(list(itertools.islice(stream, 1)), "no first piece")
        stream.close()
    return str(chat_model(asked).chat([ChatMessage(role="user", content=QUESTION)]).message.content)


if __name__ == "__main__":
    run(
        "llama-index-core",
        "llama-index-llms-openai",
        "llama-index-llms-openai-like",
        "llama-index-llms-anthropic",
        "openai",
        "anthropic",
    )
