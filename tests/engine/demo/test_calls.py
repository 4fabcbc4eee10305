"""Conversations with tools that the demo model can be taught by."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

from tokenizers import Tokenizer

from engine.demo import corpus, tokens, train
from engine.demo.corpus.tools import Tool
from engine.server.chat_template import ChatTemplate
from engine.server.template_files import Templates
from engine.server.tools import HERMES, detect
from engine.server.tools_parser import ToolParser

TOKENIZER = Tokenizer.from_file(str(train.HERE / "model" / "tokenizer.json"))
TEMPLATE = ChatTemplate(Templates(tokens.CHAT_TEMPLATE))


def drawn(count: int, *, held: bool = False) -> list[corpus.Conversation]:
    rng = random.Random(4)
    return [corpus.tool_conversation(rng, held=held) for _ in range(count)]


def read(answer: str, tools: tuple[Tool, ...]) -> tuple[str, list[dict[str, Any]]]:
    """The text of an answer and the calls in it, as the engine reads them."""
    parser = ToolParser(HERMES, [tool.name for tool in tools], whole=True)
    first, last = parser.push(answer), parser.finish(cut=False)
    found = [{"name": call.name, "arguments": call.arguments} for call in (*first.calls, *last.calls)]
    return first.text + last.text, found


def messages(conversation: corpus.Conversation) -> list[dict[str, Any]]:
    """The same as an API has it."""
    received: list[dict[str, Any]] = []
    if conversation.system is not None:
        received.append({"role": "system", "content": conversation.system})
    for i, (question, answer) in enumerate(conversation.turns):
        received.append({"role": "tool" if i in conversation.results else "user", "content": question})
        text, made = read(answer, conversation.tools) if answer else ("", [])
        for call in made:
            call["arguments"] = json.loads(call["arguments"])
        if answer:
            reported = [{"type": "function", "function": call} for call in made]
            received.append({"role": "assistant", "content": text, "tool_calls": reported})
    return received


def test_what_is_learned_is_what_the_template_shows() -> None:
    encoder = tokens.Encoder(TOKENIZER)
    for conversation in drawn(300):
        tools = [tool.schema() for tool in conversation.tools]
        shown = TEMPLATE.render(messages(conversation), tools, generation_prompt=False)
        ids, weights = encoder.encode(conversation)
        assert TOKENIZER.decode(ids, skip_special_tokens=False) == shown
        assert len(ids) == len(weights)
        prompt = encoder.prompt(conversation)
        assert ids[: len(prompt)] == prompt
    assert detect(tokens.CHAT_TEMPLATE) == HERMES


def test_a_call_names_a_tool_that_is_there_and_its_parameters() -> None:
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    for conversation in drawn(1000):
        tools = {tool.name: tool for tool in conversation.tools}
        for _, answer in conversation.turns:
            for call in read(answer, conversation.tools)[1]:
                parameters = {one.name: one for one in tools[call["name"]].parameters}
                given = json.loads(call["arguments"])
                assert given.keys() <= parameters.keys()
                assert {one.name for one in parameters.values() if one.required} <= given.keys()
                for name, value in given.items():
                    kind = parameters[name].kind
                    assert value in kind.split("|") if "|" in kind else isinstance(value, kinds[kind])


def test_a_demanded_call_teaches_its_arguments_and_not_that_it_is_made() -> None:
    encoder = tokens.Encoder(TOKENIZER)
    forced = next(one for one in drawn(1000) if one.forced)
    ids, weights = encoder.encode(forced)
    begin = len(encoder.prompt(forced))
    given = len(TOKENIZER.encode(tokens.FORCED).ids)
    assert TOKENIZER.decode(ids[begin : begin + given]) == tokens.FORCED
    assert set(weights[begin : begin + given]) == {0.0}
    assert set(weights[begin + given :]) == {1.0}


def test_no_held_out_call_is_ever_trained_on() -> None:
    def made(conversations: list[corpus.Conversation]) -> set[str]:
        last = (one.turns[-1][1] for one in conversations if one.kind == "calls")
        return {answer for answer in last if answer.count("<tool_call>") == 1}

    trained = [one for one in itertools.islice(corpus.tool_stream(1), 5000) if not isinstance(one, str)]
    asked = made(drawn(1000, held=True))
    assert len(asked) > 200
    assert not asked & made(trained)
