"""Mistral (https://docs.mistral.ai/api/endpoint/chat). It refuses all fields that it does not know, with 422."""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Mapping, Sequence
from hashlib import sha256

from gateway.types import Json
from gateway.wire.openai.presets.preset import Message, Preset, call_ids, only

_FIELDS = {
    "system": frozenset({"role", "content"}),
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "tool_calls", "prefix"}),
    "tool": frozenset({"role", "content", "tool_call_id", "name"}),
}
_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")


def _messages(messages: Sequence[Message]) -> tuple[list[Message], set[str]]:
    ids = {name: _call_id(name) for name in call_ids(messages) if not _CALL_ID.fullmatch(name)}
    return only(_FIELDS, [_with_ids(_with_thinking(_with_documents(message)), ids) for message in messages])


def _with_documents(message: Message) -> Message:
    """A file is a document by its URL there, which may be a data URL; or one that lies with Mistral, by its id."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_document(part) for part in content]}


def _document(part: Json) -> Json:
    match part:
        case {"type": "file", "file": {"file_data": str(url), **file}}:
            named = {"document_name": file["filename"]} if file.get("filename") else {}
            return {"type": "document_url", "document_url": url, **named}
        case {"type": "file", "file": {"file_id": str(id)}}:
            return {"type": "file", "file_id": id}
    return part


def _call_id(name: str) -> str:
    """Nine letters and digits, as Mistral demands; the same for the same id."""
    return b32encode(sha256(name.encode()).digest())[:9].decode()


def _with_ids(message: Message, ids: Mapping[str, str]) -> Message:
    if not ids:
        return message
    changed: dict[str, Json] = {}
    if isinstance(calls := message.get("tool_calls"), list):
        changed["tool_calls"] = [
            {**call, "id": ids.get(str(call.get("id")), call.get("id"))} if isinstance(call, dict) else call
            for call in calls
        ]
    if isinstance(name := message.get("tool_call_id"), str) and name in ids:
        changed["tool_call_id"] = ids[name]
    return {**message, **changed} if changed else message


def _with_thinking(message: Message) -> Message:
    """Thinking is a part of the content there."""
    thought = message.get("reasoning_content")
    if message.get("role") != "assistant" or not isinstance(thought, str) or not thought:
        return message
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) and content else content or []
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": thought}]}
    rest = {name: value for name, value in message.items() if name != "reasoning_content"}
    return {**rest, "content": [thinking, *parts]}


def _continued(messages: list[Message]) -> list[Message]:
    return [*messages[:-1], {**messages[-1], "prefix": True}]


def _answer(raw: Mapping[str, Json]) -> Mapping[str, Json]:
    """Thinking, and the text beside it, come as parts of the content."""
    choices = raw.get("choices")
    if not isinstance(choices, list):
        return raw
    read = [_choice(choice) if isinstance(choice, dict) else choice for choice in choices]
    same = all(one is other for one, other in zip(read, choices, strict=True))
    return raw if same else {**raw, "choices": read}


def _choice(choice: Mapping[str, Json]) -> Mapping[str, Json]:
    changed: dict[str, Json] = {}
    for name in ("delta", "message"):
        said = choice.get(name)
        if isinstance(said, dict) and isinstance(said.get("content"), list):
            changed[name] = _said(said)
    if choice.get("finish_reason") == "model_length":  # the context is full
        changed["finish_reason"] = "length"
    return {**choice, **changed} if changed else choice


def _said(said: Mapping[str, Json]) -> dict[str, Json]:
    thinking: list[str] = []
    text: list[str] = []
    beside: list[Json] = []
    for part in said["content"]:
        match part:
            case {"type": "thinking", "thinking": list(pieces)}:
                thinking += [str(piece.get("text", "")) for piece in pieces if isinstance(piece, dict)]
            case {"type": "text", "text": str(piece)}:
                text.append(piece)
            case _:
                beside.append(part)
    rest = {name: value for name, value in said.items() if name != "content"}
    return {
        **rest,
        **({"reasoning_content": "".join(thinking)} if thinking else {}),
        **({"content": "".join(text)} if text or not thinking else {}),
        **({"content_parts": beside} if beside else {}),  # references to documents, say
    }


MISTRAL = Preset(
    name="Mistral",
    takes=frozenset(
        {
            *("frequency_penalty", "logprobs", "metadata", "n", "parallel_tool_calls", "prediction"),
            *("presence_penalty", "prompt_cache_key", "reasoning_effort", "service_tier", "top_logprobs"),
        }
    ),
    names={"seed": "random_seed", "dimensions": "output_dimension"},
    values={"service_tier": {"default": "standard_only"}},
    embeddings=frozenset({"dimensions", "encoding_format", "metadata"}),
    apis={"transcription": "audio/transcriptions"},
    messages=_messages,
    continued=_continued,
    answer=_answer,
)
