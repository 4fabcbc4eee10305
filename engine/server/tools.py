"""Tool call formats: which one a model's chat template uses, and that format as a grammar.

Formats, by the first of these that a template shows:

- ``mistral``: ``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]``
- ``harmony``: ``<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>``, one call an answer;
  gpt-oss. ``reasoning.py`` parts its channels, and passes on one form of the header
- ``mistral_args``: ``[TOOL_CALLS]name[ARGS]{…}``, once a call
- ``phi``: ``<|tool_call|>[{"name": …, "arguments": {…}}, …]<|/tool_call|>``
- ``qwen3_coder``: ``<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>``, once a call;
  Qwen3-Coder, Qwen3.5 and Nemotron 3, see ``tools_xml.py``
- ``hermes``: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, once a call; Qwen and many others
- ``llama``: ``{"name": …, "parameters": {…}}`` as the whole answer, perhaps after ``<|python_tag|>``
- ``phi4_mini``: as ``phi``, or ``functools[{"name": …, "arguments": {…}}, …]``; its template shows tools that stand in
  the system message, and no calls

A model whose template shows none of them is read, and where calls are forced written, as ``hermes``.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import string
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.grammar.language import TIGHT, embedded, quoted
from engine.grammar.schema import prepared
from engine.server import tools_xml
from engine.server.reasoning import THOUGHTS

Layout = Literal["object", "list", "args", "xml", "channel"]


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    layout: Layout
    """``object``: one JSON object a call; ``list``: one JSON list of them; ``args``: name[ARGS]{…}; ``xml``: tags;
    ``channel``: name<|message|>{…}."""
    begin: str
    """The marker before a call."""
    others: tuple[str, ...] = ()
    """Variants that models write."""
    end: str = ""
    """The marker after it."""
    gap: str = ""
    """Text between the markers and the call."""
    arguments: str = "arguments"
    bare: bool = False
    """Whether an answer that begins with the call needs no marker."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that must be decoded even where they are special tokens."""
        inner = {"args": ("[ARGS]", "[CALL_ID]"), "channel": ("<|channel|>", "<|message|>")}.get(
            self.layout, ()
        )
        return (self.begin, *([self.end] if self.end else ()), *inner)

    def new_id(self) -> str:
        """A call's id. Mistral's templates require nine letters and digits."""
        if self.begin == "[TOOL_CALLS]":
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


HERMES = Format("hermes", "object", "<tool_call>", end="</tool_call>", gap="\n")
LLAMA = Format("llama", "object", "<|python_tag|>", arguments="parameters", bare=True)
MISTRAL = Format("mistral", "list", "[TOOL_CALLS]")
MISTRAL_ARGS = Format("mistral_args", "args", "[TOOL_CALLS]")
PHI = Format("phi", "list", "<|tool_call|>", end="<|/tool_call|>")
PHI4_MINI = Format("phi4_mini", "list", "<|tool_call|>", ("functools",), "<|/tool_call|>")
HARMONY = Format("harmony", "channel", "<|channel|>commentary to=functions.", end="<|call|>")
QWEN3_CODER = Format("qwen3_coder", "xml", "<tool_call>", ("<function=",), "</tool_call>", gap="\n")


def detect(template: str) -> Format:
    """The format that a chat template's source shows."""
    if "<|channel|>commentary" in template and "functions." in template:
        return HARMONY
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if "[ARGS]" in template else MISTRAL
    if "<|tool_call|>" in template:
        return PHI
    if "<function=" in template and "<parameter=" in template:
        return QWEN3_CODER
    if "<tool_call>" in template:
        return HERMES
    if "<|python_tag|>" in template or ("ipython" in template and "parameters" in template):
        return LLAMA
    if "<|tool|>" in template or "functools" in template:
        return PHI4_MINI
    return HERMES


@dataclass(frozen=True, slots=True)
class ForcedCalls:
    """Tool calls that the whole answer must consist of."""

    tools: Sequence[Mapping[str, Any]]
    """Those that may be called, as in OpenAI's API."""
    several: bool
    """Whether more than one call may be made."""
    longest: int | None = None
    """Characters of strings in arguments whose schemas do not bound them; ``None``: no bound."""

    def schema(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call of ``tool``."""
        parameters = tool["function"].get("parameters") or {}
        if all(name in _ANNOTATIONS or (name in _LISTS and not value) for name, value in parameters.items()):
            return {"type": "object", "additionalProperties": False}
        return prepared({"type": "object", **parameters}, longest=self.longest)


_ANNOTATIONS = frozenset(
    {"$comment", "$id", "$schema", "default", "description", "examples", "title", "type"}
)
_LISTS = frozenset({"properties", "required"})
"""A schema with nothing but annotations and these, empty, has no arguments."""


CALLS = "start: calls"
"""How a grammar begins whose answers are calls, or may be."""


def whole_rules(
    format: Format, forced: ForcedCalls, answer: str = "", marker: Callable[[str], str] = quoted
) -> str:
    """A Lark grammar of an answer that is calls, or ``answer``, in Lark, if there is one. ``marker``: as below."""
    calls = call_rules(format, forced, marker)
    if not answer:
        return f"{CALLS}\n{calls}"
    header = f'{marker("<|channel|>")} "final" {marker("<|message|>")} ' if format.layout == "channel" else ""
    return f"{CALLS} | answer\nanswer: {header}content\ncontent: {answer}\n{calls}"


def call_rules(format: Format, forced: ForcedCalls, marker: Callable[[str], str] = quoted) -> str:
    """A Lark grammar whose rule ``calls`` is one or more calls and nothing else.

    ``marker`` writes a marker as Lark has it: as text, or as the token that it is.
    """
    calls = [f"call_{i}" for i in range(len(forced.tools))]
    rules = [
        line
        for rule, tool in zip(calls, forced.tools, strict=True)
        for line in call_rule(format, rule, tool["function"]["name"], forced.schema(tool), marker)
    ]
    one = f"call: {' | '.join(calls)}"
    begin, end, gap = (
        marker(format.begin),
        format.end and marker(format.end),
        format.gap and quoted(format.gap),
    )
    if format.layout == "list":
        more = '(", " call)*' if forced.several else ""
        # Old templates have a space after the marker.
        rules.append(f'calls: {begin} " "? "[" call {more} "]" {end}')
    elif format.layout == "channel":
        # What ends the answer ends the call.
        rules.append("calls: call")
    elif format.layout == "args" or not format.bare:
        # A model that writes the gap has not decided on another call yet: it may still end.
        more = f"({gap} wrapped)* {gap and f'{gap}?'}" if forced.several else ""
        rules.append(f"wrapped: {begin} {gap} call {gap} {end}")
        rules.append(f"calls: wrapped {more}")
    else:
        # Llama's own templates allow one call only.
        rules.append("calls: call")
    return "\n".join([one, *rules])


def call_rule(
    format: Format, rule: str, name: str, schema: dict[str, Any], marker: Callable[[str], str]
) -> Iterator[str]:
    """A Lark grammar whose rule ``rule`` is one call, without the markers around it."""
    if format.layout == "xml":
        yield from tools_xml.rules(rule, name, schema)
    elif format.layout == "args":
        yield f"{rule}: {quoted(name)} {marker('[ARGS]')} {embedded(schema, TIGHT)}"
    elif format.layout == "channel":
        header = (
            f"{marker('<|channel|>')} {quoted(f'commentary to=functions.{name} ')} {marker('<|constrain|>')}"
        )
        yield f"{rule}: {header} {quoted('json')} {marker('<|message|>')} {embedded(schema, TIGHT)}"
    else:
        head = quoted(f'{{"name": {json.dumps(name)}, "{format.arguments}": ')
        yield f'{rule}: {head} {embedded(schema, TIGHT)} "}}"'


def template_tools(
    tools: Sequence[Mapping[str, Any]] | None, format: Format
) -> Sequence[Mapping[str, Any]] | None:
    """As templates expect them.

    Most write all that a function has. ``strict``, which agent frameworks send with each, is a word to the server:
    models were not trained with it. gpt-oss's template fails for a tool without a description.
    """
    if tools is None:
        return None
    least = {"description": ""} if format is HARMONY else {}
    return [
        {**tool, "function": {**least, **{k: v for k, v in tool["function"].items() if k != "strict"}}}
        for tool in tools
    ]


def template_messages(
    messages: list[dict[str, Any]], format: Format, tools: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Past calls and their results in the form that Hugging Face's templates expect, where OpenAI's differs.

    Arguments become objects (OpenAI has them as JSON in a string), results get the name of what was called, and
    Mistral's templates ids of the form that they require. https://huggingface.co/docs/transformers/chat_extras.
    Phi-4-mini's template renders ``tools`` only in the system message, and calls only as text; gpt-oss's one call a
    message, beside reasoning or text, but not both.
    """
    names: dict[str, str] = {}
    found = []
    for message in messages:
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [_past_call(call, format, names) for call in calls]}
        if message.get("role") == "tool" and isinstance(number := message.get("tool_call_id"), str):
            message = {**message, "tool_call_id": _past_id(number, format)}
            if number in names:
                message.setdefault("name", names[number])
        found.append(message)
    if format is HARMONY:
        return list(_one_by_one(found))
    return _as_text(found, tools) if format is PHI4_MINI else found


def _one_by_one(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each call in a message of its own, with its result behind it."""
    left = deque(messages)
    while left:
        message = left.popleft()
        calls, text = message.get("tool_calls") or [], message.get("content")
        thoughts = {name: said for name in THOUGHTS if (said := message.get(name))}
        if calls and text and thoughts:
            joined = {name: f"{said}\n\n{text}" for name, said in thoughts.items()}
            message = {**message, **joined, "content": None}
        if len(calls) < 2:
            yield message
            continue
        results = []
        while left and left[0].get("role") == "tool":
            results.append(left.popleft())
        for call in calls:
            yield {**message, "tool_calls": [call]}
            message = {"role": message["role"], "content": None}
            yield from (one for one in results if one.get("tool_call_id") == call.get("id"))
            results = [one for one in results if one.get("tool_call_id") != call.get("id")]
        yield from results


def _as_text(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls as content, and tools in the system message, which comes first."""
    found = []
    for message in messages:
        if calls := message.get("tool_calls"):
            functions = [call.get("function", call) for call in calls]
            written = f"{PHI4_MINI.begin}{json.dumps(functions, ensure_ascii=False)}{PHI4_MINI.end}"
            message = {**message, "content": (message.get("content") or "") + written}
        found.append(message)
    if tools:
        if not found or found[0]["role"] != "system":
            found.insert(0, {"role": "system", "content": ""})
        functions = [tool["function"] for tool in tools]
        found[0] = {**found[0], "tools": json.dumps(functions, ensure_ascii=False)}
    return found


def _past_call(call: dict[str, Any], format: Format, names: dict[str, str]) -> dict[str, Any]:
    function, number = call.get("function"), call.get("id")
    if isinstance(function, dict):
        if isinstance(number, str) and isinstance(function.get("name"), str):
            names[number] = function["name"]
        call = {**call, "function": {**function, "arguments": _past_arguments(function.get("arguments"))}}
    return {**call, "id": _past_id(number, format)} if isinstance(number, str) else call


def _past_arguments(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        found = json.loads(arguments or "{}")
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text for a prompt
    except (ValueError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def _past_id(number: str, format: Format) -> str:
    if format.begin != "[TOOL_CALLS]" or re.fullmatch(r"[A-Za-z0-9]{9}", number):
        return number
    return hashlib.sha256(number.encode()).hexdigest()[:9]
