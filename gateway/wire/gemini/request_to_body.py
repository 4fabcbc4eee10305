"""A request in OpenAI's shape as the body of ``generateContent`` (https://ai.google.dev/api/generate-content).

What that API cannot do is refused by name if the answer would be another one without it, and left out if not. Where
OpenAI's shape has no field, the names are those of Google's own translation
(https://ai.google.dev/gemini-api/docs/openai): ``extra_content.google`` and ``extra_body.google``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import orjson

from gateway.types import ChatRequest, Json, Native
from gateway.wire.field_table import FieldTable, invalid, unsupported
from gateway.wire.gemini.body_to_request import DIALECT
from gateway.wire.turns import Media, Part, Text, Thought, ToolCall, ToolResult, Turn, messages_of, read_turns

FIELDS = FieldTable(
    names={
        "temperature": "generationConfig.temperature",
        "top_p": "generationConfig.topP",
        "top_k": "generationConfig.topK",
        "seed": "generationConfig.seed",
        "presence_penalty": "generationConfig.presencePenalty",
        "frequency_penalty": "generationConfig.frequencyPenalty",
        "logprobs": "generationConfig.responseLogprobs",
        "top_logprobs": "generationConfig.logprobs",
        "max_tokens": "generationConfig.maxOutputTokens",
        "max_completion_tokens": "generationConfig.maxOutputTokens",
    },
    translated=frozenset(
        {
            *("extra_body", "google", "reasoning_effort", "response_format", "stop"),
            *("stream_options", "thinking", "tool_choice", "tools"),
        }
    ),
)
_GOOGLES = {
    "cached_content": "cachedContent",
    "safety_settings": "safetySettings",
    "thinking_config": "thinkingConfig",
}
"""Of ``google`` and ``extra_body.google``."""

ANY_SIGNATURE = "skip_thought_signature_validator"
"""What stands for the signature of a call that another model made, or that a client did not give back: models since
Gemini 3 refuse calls without one (https://ai.google.dev/gemini-api/docs/thought-signatures)."""
_SIGNED = re.compile(r"(?:.*/)?gemini-(?:[3-9]|\d\d)")
"""Models that want signatures, and levels of thinking rather than budgets."""
BUDGETS = {
    "none": 0,
    "minimal": 1024,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 24576,
    "max": 24576,
}
"""Tokens of thinking for each effort, as Google's own translation has them for the models before Gemini 3."""
_LEVELS = {"none": "minimal", "minimal": "minimal", "low": "low", "medium": "medium"}


def write_request(request: ChatRequest, model: str) -> dict[str, Json]:
    """The body to send. A body in this dialect is sent as it is, but for what policies change. Raises ``BadRequest``
    for what this API has no equivalent of."""
    params = FIELDS.given(request)
    if request.native is not None and request.speaks(DIALECT):
        return _as_written(request, request.native, params)
    messages = messages_of(request)
    system, turns = read_turns(messages)
    signed = bool(_SIGNED.match(model))
    body: dict[str, Json] = {"contents": [_content(turn, signed=signed) for turn in turns]}
    if system:
        body["systemInstruction"] = {"parts": [{"text": text.text} for text in system]}
    config: dict[str, Json] = FIELDS.copied(params).get("generationConfig", {})
    if config.get("responseLogprobs") is False:
        config.pop("responseLogprobs")
        config.pop("logprobs", None)
    if params.get("stop"):
        config["stopSequences"] = [params["stop"]] if isinstance(params["stop"], str) else params["stop"]
    if request.n != 1:
        config["candidateCount"] = request.n
    config |= _format(params.get("response_format"))
    if thinking := _thinking(params, signed=signed):
        config["thinkingConfig"] = thinking
    for name, value in _googles(params).items():
        (config if name == "thinkingConfig" else body)[name] = value
    if config:
        body["generationConfig"] = config
    if params.get("tools"):
        body["tools"] = [{"functionDeclarations": [_tool(tool, i) for i, tool in enumerate(params["tools"])]}]
        if choice := _tool_choice(params.get("tool_choice")):
            body["toolConfig"] = {"functionCallingConfig": choice}
    return body


def _as_written(request: ChatRequest, native: Native, params: Mapping[str, Json]) -> dict[str, Json]:
    body = {name: value for name, value in native.body.items() if name != "model"}
    config: dict[str, Json] = dict(body.get("generationConfig") or {})
    cap = params.get("max_completion_tokens") or params.get("max_tokens")
    if cap is not None and cap != config.get("maxOutputTokens"):
        config["maxOutputTokens"] = cap
    if params.get("logprobs") and not config.get("responseLogprobs"):  # which a cascade asks for
        config |= {"responseLogprobs": True, "logprobs": params.get("top_logprobs", 0)}
    if config:
        body["generationConfig"] = config
    return body


def _content(turn: Turn, *, signed: bool) -> dict[str, Json]:
    parts: list[dict[str, Json]] = []
    unsigned = signed
    for part in turn.parts:
        parts += _part(part, unsigned=unsigned)
        # Of parallel calls the first alone is signed.
        unsigned = unsigned and not isinstance(part, ToolCall)
    if signature := _signature(turn.more):
        texts = [part for part in parts if "text" in part]
        if texts:
            texts[-1]["thoughtSignature"] = signature
        else:
            parts.insert(0, {"text": "", "thoughtSignature": signature})
    return {"role": "model" if turn.role == "assistant" else "user", "parts": parts or [{"text": ""}]}


def _part(part: Part, *, unsigned: bool) -> list[dict[str, Json]]:
    match part:
        case Text(text):
            return [{"text": text}]
        case Media():
            return [_media(part)]
        case Thought():
            return []  # another provider's
        case ToolCall(id, name, arguments, more):
            call: dict[str, Json] = {"functionCall": {"id": id, "name": name, "args": arguments}}
            if signature := _signature(more) or (ANY_SIGNATURE if unsigned else ""):
                call["thoughtSignature"] = signature
            return [call]
        case ToolResult(id, name, parts):
            texts = "\n".join(one.text for one in parts if isinstance(one, Text))
            result = {"functionResponse": {"id": id, "name": name, "response": _response(texts)}}
            return [result, *(_media(one) for one in parts if isinstance(one, Media))]


def _signature(more: Mapping[str, Json]) -> str:
    match more:
        case {"google": {"thought_signature": str(signature)}}:
            return signature
    return ""


def _response(text: str) -> dict[str, Json]:
    """A tool's result, which must be an object."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"result": text}


_AUDIO = {"audio/mpeg": "audio/mp3", "audio/x-wav": "audio/wav"}


def _media(media: Media) -> dict[str, Json]:
    kind = _AUDIO.get(media.type or "", media.type)
    if media.data is not None:
        return {"inlineData": {"mimeType": kind, "data": media.data}}
    return {"fileData": {**({"mimeType": kind} if kind else {}), "fileUri": media.url}}


def _format(form: Json) -> dict[str, Json]:
    match form:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"responseMimeType": "application/json"}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"responseMimeType": "application/json", "responseJsonSchema": schema}
    raise unsupported("response_format")


def _thinking(params: Mapping[str, Json], *, signed: bool) -> dict[str, Json]:
    match params.get("thinking"):
        case {"type": "disabled"}:
            return {"thinkingBudget": 0}
        case {"type": "enabled", "budget_tokens": int(budget)}:
            return {"thinkingBudget": budget, "includeThoughts": True}
        case {"type": "enabled" | "adaptive"}:
            return {"includeThoughts": True}
    effort = params.get("reasoning_effort")
    if effort is None:
        return {}
    if effort not in BUDGETS:
        raise unsupported("reasoning_effort")
    thoughts = {} if effort == "none" else {"includeThoughts": True}
    if signed:
        return {"thinkingLevel": _LEVELS.get(effort, "high"), **thoughts}
    return {"thinkingBudget": BUDGETS[effort], **thoughts}


def _googles(params: Mapping[str, Json]) -> dict[str, Json]:
    """What the caller says in Google's own words."""
    extra = params.get("extra_body")
    given = params.get("google") or (extra.get("google") if isinstance(extra, dict) else None) or {}
    if not isinstance(given, dict):
        raise invalid("google", "should be an object")
    found: dict[str, Json] = {}
    for name, value in given.items():
        if name not in _GOOGLES:
            raise unsupported(f"google.{name[:64]}")
        found[_GOOGLES[name]] = _camel(value) if name == "thinking_config" else value
    return found


def _camel(value: Json) -> Json:
    if not isinstance(value, dict):
        raise invalid("google.thinking_config", "should be an object")
    return {re.sub(r"_([a-z])", lambda found: found[1].upper(), name): one for name, one in value.items()}


def _tool(tool: Json, i: int) -> dict[str, Json]:
    match tool:
        case {"type": "function", "function": {"name": str(name), **function}}:
            declared: dict[str, Json] = {"name": name}
            if function.get("description"):
                declared["description"] = function["description"]
            parameters = function.get("parameters")
            if parameters:
                if not isinstance(parameters, dict):
                    raise invalid(f"tools[{i}].function.parameters", "should be a JSON schema")
                declared["parametersJsonSchema"] = parameters
            return declared
        case {"type": "function"}:
            raise invalid(f"tools[{i}].function", "should be an object with a name")
    raise unsupported(f"tools[{i}].type")


def _tool_choice(choice: Json) -> dict[str, Json] | None:
    match choice:
        case None | "auto":
            return None
        case "none":
            return {"mode": "NONE"}
        case "required":
            return {"mode": "ANY"}
        case {"type": "function", "function": {"name": str(name)}}:
            return {"mode": "ANY", "allowedFunctionNames": [name]}
    raise unsupported("tool_choice")
