"""A request in OpenAI's shape as the body of ``Converse`` and ``ConverseStream``
(https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html).

What that API cannot do is refused by name if the answer would be another one without it, and left out if not. Where
OpenAI's shape has no field, ``bedrock`` has it in Amazon's words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

import orjson

from gateway.types import ChatRequest, Json
from gateway.wire.field_table import FieldTable, invalid, unsupported
from gateway.wire.json_form import form_instruction
from gateway.wire.turns import Media, Part, Text, Thought, ToolCall, ToolResult, Turn, messages_of, read_turns

FIELDS = FieldTable(
    names={
        "temperature": "inferenceConfig.temperature",
        "top_p": "inferenceConfig.topP",
        "max_tokens": "inferenceConfig.maxTokens",
        "max_completion_tokens": "inferenceConfig.maxTokens",
        "top_k": "additionalModelRequestFields.top_k",
        "thinking": "additionalModelRequestFields.thinking",
    },
    translated=frozenset(
        {
            *(
                "bedrock",
                "reasoning_effort",
                "response_format",
                "service_tier",
                "stop",
            ),
            *("stream_options", "tool_choice", "tools"),
        }
    ),
)
_AMAZONS = frozenset(
    {
        *("additionalModelRequestFields", "additionalModelResponseFieldPaths", "guardrailConfig"),
        *("performanceConfig", "promptVariables", "requestMetadata"),
    }
)
"""Of ``bedrock``: fields of the body that OpenAI's shape has no name for."""
HOTTEST = 1
"""OpenAI's temperatures go to 2."""
_EFFORTS = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}
_CACHE_POINT: Json = {"cachePoint": {"type": "default"}}

Block = dict[str, Json]


def write_request(request: ChatRequest, model: str, *, prompted: bool = False) -> dict[str, Json]:
    """The body to send; ``model`` is in the path. ``prompted`` asks for JSON in the prompt, as ``json_object`` always
    is. Raises ``BadRequest`` for what this API has no equivalent of."""
    messages = messages_of(request)
    if request.n != 1:
        raise unsupported("n")
    params = FIELDS.given(request)
    system, turns = read_turns(messages)
    documents: set[str] = set()
    body: dict[str, Json] = {"messages": [_message(turn, documents) for turn in turns]}
    _trim_partial_answer(body["messages"])
    texts = [block for text in system for block in _text(text)]
    if instruction := form_instruction(params.get("response_format"), prompted=prompted):
        texts.append({"text": instruction})
    if texts:
        body["system"] = texts
    body |= FIELDS.copied(params)
    config = body.get("inferenceConfig", {})
    if "temperature" in config:
        config["temperature"] = min(config["temperature"], HOTTEST)
    if params.get("stop"):
        config["stopSequences"] = [params["stop"]] if isinstance(params["stop"], str) else params["stop"]
    if config:
        body["inferenceConfig"] = config
    if tools := _tools(
        params, has_history=any(isinstance(p, ToolCall) for turn in turns for p in turn.parts)
    ):
        body["toolConfig"] = tools
    if output := _output(params, prompted=prompted):
        body["outputConfig"] = output
    if (tier := params.get("service_tier")) not in (None, "auto"):
        body["serviceTier"] = {"type": tier}
    return _with_amazons(body, params.get("bedrock"))


def is_too_hot(request: ChatRequest) -> bool:
    """Whether ``write_request`` lowers the temperature."""
    return (request.params.get("temperature") or 0) > HOTTEST


def _with_amazons(body: dict[str, Json], given: Json) -> dict[str, Json]:
    if given is None:
        return body
    if not isinstance(given, dict):
        raise invalid("bedrock", "should be an object")
    for name, value in given.items():
        if name not in _AMAZONS:
            raise unsupported(f"bedrock.{name[:64]}")
        known = body.get(name)
        body[name] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return body


def _message(turn: Turn, documents: set[str]) -> dict[str, Json]:
    return {
        "role": turn.role,
        "content": [block for part in turn.parts for block in _blocks(part, documents)],
    }


def _blocks(part: Part, documents: set[str]) -> Iterable[Block]:
    match part:
        case Text():
            return _text(part)
        case Media():
            return (_media(part, documents),)
        case Thought(hidden=hidden) if hidden:
            return ({"reasoningContent": {"redactedContent": hidden}},)
        case Thought(text, signature):
            return ({"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}},)
        case ToolCall(id, name, arguments):
            return ({"toolUse": {"toolUseId": tool_id(id), "name": name, "input": arguments}},)
        case ToolResult(id, _, parts):
            content = [
                block for one in parts for block in _blocks(one, documents) if "cachePoint" not in block
            ]
            return (
                {"toolResult": {"toolUseId": tool_id(id), "content": content or [{"text": "(nothing)"}]}},
            )


def _text(part: Text) -> Iterable[Block]:
    # The API takes no blank texts.
    texts = ({"text": part.text},) if part.text.strip() else ()
    return (*texts, _CACHE_POINT) if part.cached and texts else texts


_UNFIT = re.compile(r"[^a-zA-Z0-9_.:-]")
_LONGEST_ID = 64


def tool_id(id: str) -> str:
    """A tool call's id, of the letters and the length that the API takes."""
    if len(id) > _LONGEST_ID:
        return sha256(id.encode()).hexdigest()
    return _UNFIT.sub("_", id) or "_"


_IMAGES = {
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/jpg": "jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
}
_AUDIO = {
    **{
        f"audio/{name}": name
        for name in ("aac", "flac", "mp3", "mp4", "mpeg", "mpga", "ogg", "opus", "wav", "webm")
    },
    "audio/m4a": "m4a",
    "audio/pcm16": "pcm",
    "audio/x-wav": "wav",
    "audio/x-aac": "x-aac",
}
_VIDEO = {
    **{f"video/{name}": name for name in ("mp4", "mpeg", "mpg", "webm", "wmv")},
    "video/3gpp": "three_gp",
    "video/quicktime": "mov",
    "video/x-flv": "flv",
    "video/x-matroska": "mkv",
}
_DOCUMENTS = {
    "application/msword": "doc",
    "application/pdf": "pdf",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
}
_FORMATS = {"image": _IMAGES, "audio": _AUDIO, "video": _VIDEO, "file": _DOCUMENTS}


def _media(media: Media, documents: set[str]) -> Block:
    kind = _FORMATS[media.kind].get((media.type or "").lower())
    if kind is None:
        raise media.refused(f"is of the type '{media.type}', which this model's provider does not take")
    if media.data is not None:
        source: dict[str, Json] = {"bytes": media.data}
    elif (media.url or "").startswith("s3://"):
        source = {"s3Location": {"uri": media.url}}
    else:
        raise media.refused("is given by its URL, and this model's provider takes base64, or s3:// URLs")
    if media.kind == "file":
        return {"document": {"format": kind, "name": _document_name(media.name, documents), "source": source}}
    return {media.kind: {"format": kind, "source": source}}


def _document_name(given: str | None, taken: set[str]) -> str:
    """Of the characters that the API takes, and no other document's of the request."""
    stem = (given or "document").rpartition(".")[0] or given or "document"
    base = re.sub(r"[^A-Za-z0-9()\[\]-]+", " ", stem).strip()[:190] or "document"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base} {number}"
    taken.add(name)
    return name


def _trim_partial_answer(messages: list[dict[str, Json]]) -> None:
    """A last turn of the assistant's is gone on from, and must not end in white space there."""
    if messages[-1]["role"] == "assistant" and messages[-1]["content"]:
        last = messages[-1]["content"][-1]
        if "text" in last:
            last["text"] = last["text"].rstrip()


def _tools(params: Mapping[str, Json], *, has_history: bool) -> dict[str, Json] | None:
    if not params.get("tools"):
        return None
    choice: dict[str, Json] | None = None
    match params.get("tool_choice"):
        case None | "auto":
            pass
        case "required":
            choice = {"any": {}}
        case {"type": "function", "function": {"name": str(name)}}:
            choice = {"tool": {"name": name}}
        case "none" if not has_history:
            return None
        case _:
            # 'none', too: with calls in the conversation the tools must be there, and then may be called.
            raise unsupported("tool_choice")
    tools: list[Json] = []
    for i, tool in enumerate(params["tools"]):
        tools.append(_tool(tool, i))
        if tool.get("cache_control"):
            tools.append(_CACHE_POINT)
    return {"tools": tools, **({} if choice is None else {"toolChoice": choice})}


def _tool(tool: Json, i: int) -> dict[str, Json]:
    match tool:
        case {"type": "function", "function": {"name": str(name), **function}}:
            parameters = function.get("parameters") or {"properties": {}}
            if not isinstance(parameters, dict):
                raise invalid(f"tools[{i}].function.parameters", "should be a JSON schema")
            spec: dict[str, Json] = {"name": name, "inputSchema": {"json": {"type": "object", **parameters}}}
            if function.get("description"):
                spec["description"] = function["description"]
            if function.get("strict"):
                spec["strict"] = True
            return {"toolSpec": spec}
        case {"type": "function"}:
            raise invalid(f"tools[{i}].function", "should be an object with a name")
    raise unsupported(f"tools[{i}].type")


def _output(params: Mapping[str, Json], *, prompted: bool) -> dict[str, Json]:
    output: dict[str, Json] = {}
    match params.get("response_format"):
        case None | {"type": "text"} | {"type": "json_object"}:
            pass
        case {"type": "json_schema", "json_schema": {"schema": dict()}} if prompted:
            pass
        case {"type": "json_schema", "json_schema": {"schema": dict(schema), **form}}:
            described: dict[str, Json] = {"schema": orjson.dumps(schema).decode()}
            described |= {name: form[name] for name in ("name", "description") if form.get(name)}
            output["textFormat"] = {"type": "json_schema", "structure": {"jsonSchema": described}}
        case _:
            raise unsupported("response_format")
    effort = params.get("reasoning_effort")
    if effort not in (None, "none"):
        if effort not in _EFFORTS:
            raise unsupported("reasoning_effort")
        output["effort"] = _EFFORTS[effort]
    return output
