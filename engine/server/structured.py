"""Structured output: from the fields that request it to a grammar that compiles.

OpenAI's ``response_format`` (https://platform.openai.com/docs/guides/structured-outputs), vLLM's ``guided_*`` fields
and their successor ``structured_outputs`` (https://docs.vllm.ai/en/latest/features/structured_outputs.html), and tool
calls that OpenAI's ``tool_choice`` forces. Only one of them can be used at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import orjson

from engine.core.sampling_params import Grammar
from engine.errors import InvalidRequest, UnsupportedParameter
from engine.grammar import language
from engine.grammar.language import quoted
from engine.grammar.schema import prepared
from engine.server.requests import ChatBody, SamplingBody
from engine.server.tools import ForcedCalls, Format, whole_rules
from engine.server.tools_strict import is_strict, strict_grammar

_OBJECT = {"type": "object"}


async def grammar_of(body: SamplingBody, prefix: str = "") -> Grammar | None:
    """The grammar of the text. ``prefix``: its beginning, where the prompt already has it.

    Raises ``InvalidRequest``, which names the field and says what is wrong with it.
    """
    return await _bound(await _asked(body), prefix)


async def chat_grammar_of(
    body: ChatBody,
    format: Format,
    marker: Callable[[str], str],
    prefix: str = "",
    longest: int | None = None,
) -> Grammar | None:
    """As ``grammar_of``, with tools: forced calls are the whole answer.

    Where tools may be called and ``response_format`` asks for JSON, the answer is either calls or that JSON. ``format``
    is how the model writes calls, and ``marker`` how a marker of its format is written in Lark. ``longest``: characters
    of strings in forced calls whose schemas do not bound them; ``None``: no bound.
    """
    asked, forced = await _asked(body), _forced_calls(body, longest)
    of_text = asked is not None and not asked[0].startswith("response_format")
    if forced is None and asked is None and any(map(is_strict, body.callable_tools)):
        return await _strict(body, format, marker, longest)
    if forced is None and (asked is None or of_text or not body.callable_tools):
        return await _bound(asked, prefix)
    if asked is not None and of_text:
        raise _excluded("tool_choice", asked[0])
    answer = ""
    _check_length([tool["function"].get("parameters") for tool in body.callable_tools], "tools")
    if forced is None:
        assert asked is not None
        await _bound(asked, prefix)
        answer = language.embedded(orjson.loads(asked[1].source))
        await _check_strict(body, None)
        tools = [await _compilable(tool) for tool in body.callable_tools]
        forced = ForcedCalls(tools, body.parallel_tool_calls is not False)
    elif prefix:
        raise InvalidRequest(
            "'continue_final_message' continues text, and 'tool_choice' forces a call: give one of them.",
            param="tool_choice",
        )
    for i, tool in enumerate(body.tools or ()):
        if tool in forced.tools:
            param = f"tools[{i}].function.parameters"
            await _tried(Grammar("json_schema", _written(forced.schema(tool), param)), param)
    await _tried(Grammar("own", whole_rules(format, forced, answer)), "tools")
    return Grammar("own", whole_rules(format, forced, answer, marker), prefix)


async def _strict(
    body: ChatBody, format: Format, marker: Callable[[str], str], longest: int | None
) -> Grammar:
    """Free text, and calls from where they begin."""
    _check_length([tool["function"].get("parameters") for tool in body.callable_tools], "tools")
    await _check_strict(body, longest)
    await _tried(strict_grammar(format, body.callable_tools, longest, quoted), "tools")
    return strict_grammar(format, body.callable_tools, longest, marker)


async def _check_strict(body: ChatBody, longest: int | None) -> None:
    for i, tool in enumerate(body.callable_tools):
        if is_strict(tool):
            param = f"tools[{i}].function.parameters"
            schema = ForcedCalls((), False, longest).schema(tool)
            await _tried(Grammar("json_schema", _written(schema, param)), param)


async def _compilable(tool: dict[str, Any]) -> dict[str, Any]:
    """For a tool that need not be called: parameters that cannot be enforced are left to the model."""
    schema = _written(ForcedCalls((), False).schema(tool), "tools")
    if await asyncio.to_thread(language.check, Grammar("json_schema", schema)) is None:
        return tool
    return {**tool, "function": {**tool["function"], "parameters": {"additionalProperties": True}}}


def _forced_calls(body: ChatBody, longest: int | None) -> ForcedCalls | None:
    if body.tool_choice == "required":
        # Models that are held to calls may never stop making more, so there are several only where that is asked for.
        return ForcedCalls(body.callable_tools, body.parallel_tool_calls is True, longest)
    if isinstance(body.tool_choice, dict):
        name = body.tool_choice["function"]["name"]
        tools = [tool for tool in body.callable_tools if tool["function"]["name"] == name][:1]
        return ForcedCalls(tools, False, longest)
    return None


async def _bound(asked: tuple[str, Grammar] | None, prefix: str) -> Grammar | None:
    if asked is None:
        return None
    param, grammar = asked
    return await _tried(replace(grammar, prefix=prefix), param)


async def _asked(body: SamplingBody) -> tuple[str, Grammar] | None:
    """The field that requests structured output, and its grammar."""
    if body.guided_grammar or (body.structured_outputs and body.structured_outputs.grammar):
        # Converting a long grammar takes up to a second.
        found = await asyncio.to_thread(lambda: list(_all_asked(body)))
    else:
        found = list(_all_asked(body))
    if len(found) > 1:
        raise _excluded(found[0][0], found[1][0])
    return found[0] if found else None


def _all_asked(body: SamplingBody) -> Iterator[tuple[str, Grammar]]:
    form = body.response_format
    if form is not None and form.type == "json_object":
        yield "response_format", _schema(_OBJECT, "response_format")
    elif form is not None and form.type == "json_schema":
        if form.json_schema is None or form.json_schema.schema_ is None:
            raise InvalidRequest(
                "'response_format' of type 'json_schema' needs {'json_schema': {'name': …, 'schema': {…}}}.",
                param="response_format.json_schema",
            )
        param = "response_format.json_schema.schema"
        yield param, _schema(form.json_schema.schema_, param)
    elif form is not None and form.type != "text":
        raise UnsupportedParameter(
            f"'response_format' must be of type 'text', 'json_object' or 'json_schema', not {form.type!r}.",
            param="response_format.type",
        )
    yield from _named("guided_", body.guided_json, body.guided_regex, body.guided_grammar, body.guided_choice)
    if (given := body.structured_outputs) is not None:
        yield from _named("structured_outputs.", given.json_, given.regex, given.grammar, given.choice)
        if given.json_object:
            yield "structured_outputs.json_object", _schema(_OBJECT, "structured_outputs.json_object")


def _named(
    place: str,
    json: dict[str, Any] | str | None,
    regex: str | None,
    grammar: str | None,
    choice: list[str] | None,
) -> Iterator[tuple[str, Grammar]]:
    if json is not None:
        yield f"{place}json", _schema(json, f"{place}json")
    if regex is not None:
        yield f"{place}regex", Grammar("regex", regex)
    if grammar is not None:
        try:
            yield f"{place}grammar", language.lark(grammar)
        except ValueError as error:
            raise _unusable(f"{place}grammar", str(error)) from None
    if choice is not None:
        try:
            yield f"{place}choice", language.choice(choice)
        except ValueError as error:
            raise _unusable(f"{place}choice", str(error)) from None


def _schema(schema: dict[str, Any] | str, param: str) -> Grammar:
    if isinstance(schema, str):
        _check_length(schema, param)
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"'{param}' is not valid JSON: {error}.", param=param) from None
    if not isinstance(schema, dict):
        raise InvalidRequest(f"'{param}' must be a JSON object.", param=param)
    return Grammar("json_schema", _written(schema, param))


def _written(schema: Any, param: str) -> str:
    try:
        # The length is checked before every part is visited.
        _check_length(schema, param)
        return orjson.dumps(prepared(schema)).decode()
    except (orjson.JSONEncodeError, RecursionError):
        raise _unusable(param, "it is nested too deeply") from None


def _check_length(given: Any, param: str) -> None:
    """Raises ``InvalidRequest`` for what would be too long as a grammar."""
    try:
        length = len(given if isinstance(given, str) else orjson.dumps(given))
    except (orjson.JSONEncodeError, RecursionError):
        raise _unusable(param, "it is nested too deeply") from None
    if length > language.MAX_SOURCE:
        raise _unusable(param, language.too_long(length))


async def _tried(grammar: Grammar, param: str) -> Grammar:
    # In a thread, as a large schema takes long to compile.
    reason = await asyncio.to_thread(language.check, grammar)
    if reason is not None:
        raise _unusable(param, reason)
    return grammar


def _unusable(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"'{param}' cannot be used: {reason.rstrip('.')}.", param=param)


def _excluded(one: str, other: str) -> InvalidRequest:
    return InvalidRequest(f"'{one}' and '{other}' exclude each other: give one of them.", param=other)
