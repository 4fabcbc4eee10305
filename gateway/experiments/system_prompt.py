"""A request with another system prompt, in whichever dialect its caller wrote.

It goes before all that the caller says to the model, or in its place: in the canonical messages, and in a native body,
from which these follow. What a client's program says of itself for its maker's servers stays first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.client_metadata import is_metadata
from gateway.policy.schema import PromptPlace
from gateway.types import ChatRequest, Json, Native

_ROLES = ("system", "developer")
_BETWEEN = "\n\n"


def with_prompt(request: ChatRequest, text: str, place: PromptPlace) -> ChatRequest:
    """``request``, a conversation, with ``text`` as, or before, its system prompt."""
    if request.native is not None:
        return _native(request, request.native, text, place)
    messages = request.messages or ()
    if place == "instead":
        begins = next((i for i, one in enumerate(messages) if one.get("role") not in _ROLES), len(messages))
        return replace(request, messages=({"role": "system", "content": text}, *messages[begins:]))
    first = messages[0] if messages else None
    if first is None or first.get("role") not in _ROLES:
        return replace(request, messages=({"role": "system", "content": text}, *messages))
    # In one message: templates of open models take a system prompt nowhere but first, and one only.
    content = _before(first.get("content"), text, {"type": "text"})
    return replace(request, messages=({**first, "content": content}, *messages[1:]))


def _before(own: Json, text: str, block: Mapping[str, Json]) -> Json:
    """What the caller wrote, as text or as a list of parts, after ``text``."""
    if isinstance(own, str):
        return f"{text}{_BETWEEN}{own}" if own else text
    if not isinstance(own, Sequence) or isinstance(own, str | bytes):
        return text
    said = next((i for i, one in enumerate(own) if not _is_metadata(one)), len(own))
    parted = f"{text}{_BETWEEN}" if said < len(own) else text
    return [*own[:said], {**block, "text": parted}, *own[said:]]


def _is_metadata(block: Json) -> bool:
    text = block.get("text") if isinstance(block, Mapping) else None
    return isinstance(text, str) and is_metadata(text)


def _native(request: ChatRequest, own: Native, text: str, place: PromptPlace) -> ChatRequest:
    body: dict[str, Any] = dict(own.body)
    if own.dialect == "gemini":
        content = body.get("systemInstruction")
        parts = content.get("parts") if isinstance(content, Mapping) and place == "before" else None
        body["systemInstruction"] = {
            **(content if isinstance(content, Mapping) else {}),
            "parts": _before(parts, text, {}) if parts else [{"text": text}],
        }
    else:
        content = body.get("system")
        if place == "instead":
            kept = [one for one in content if _is_metadata(one)] if isinstance(content, list) else []
            body["system"] = [*kept, {"type": "text", "text": text}] if kept else text
        else:
            body["system"] = _before(content, text, {"type": "text"}) if content else text
    fresh = own.read(body)
    return replace(request, messages=fresh.messages, native=fresh.native)
