"""The fields of a message beside its content, gathered from chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.types import Call, Chunk, Json, Usage
from gateway.wire.anthropic import ids, stop_reasons

TEXT, THINKING = "text", "thinking"
"""The kinds of block that hold text."""


@dataclass(slots=True)
class MessageFields:
    """What is known of the answer as a whole."""

    call: Call
    message_id: str = ""
    finish_reason: str | None = None
    refusal: str | None = None
    stop_sequence: str | None = None
    tollgate: Json = None
    usage: Usage | None = None
    model: str = ""
    """Who answers, as the head of the message says."""
    native: dict[str, dict[str, Json]] = field(default_factory=dict)
    """Fields of a provider with this API that the canonical form lacks, by the part of the answer that has them."""

    def observe(self, chunk: Chunk) -> None:
        """Take over what ``chunk`` holds beside text."""
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.stop_sequence = chunk.stop if isinstance(chunk.stop, str) else None
        if chunk.revocation is not None:
            self.tollgate = chunk.revocation
        if not chunk.envelope:
            return
        given = chunk.envelope.get("id")
        if given and not self.message_id:
            self.message_id = ids.message_to_anthropic(str(given))
        if isinstance(chunk.envelope.get("tollgate"), Mapping):
            self.tollgate = chunk.envelope["tollgate"]
        for where, fields in (chunk.envelope.get("native") or {}).items():
            self.native.setdefault(where, {}).update(fields)

    def head(self, content: list[Json], usage: dict[str, Json]) -> dict[str, Json]:
        """The message, without why it ended."""
        self.model = self._answering()
        return {
            "id": self.message_id or f"msg_{self.call.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            **self.native.get("message", {"container": None, "stop_details": None}),
            "usage": usage,
        }

    def stop(self, *, has_tools: bool) -> dict[str, Json]:
        """Why it ended."""
        reason = stop_reasons.to_anthropic(
            self.finish_reason, has_tools=has_tools, stop_sequence=self.stop_sequence
        )
        fields: dict[str, Json] = {"stop_reason": reason, "stop_sequence": self.stop_sequence}
        own = self.native.get("delta", {})
        # A guard's decision about the end overrides the provider's.
        if stop_reasons.OPENAI.get(own.get("stop_reason", ""), "stop") == self.finish_reason:
            fields = {
                **own,
                "stop_reason": own.get("stop_reason") or reason,
                "stop_sequence": self.stop_sequence,
            }
        details = fields.get("stop_details")
        if self.refusal is not None:
            known = details if isinstance(details, dict) else {"type": "refusal", "category": None}
            details = {**known, "explanation": self.refusal}
        return {**fields, "stop_details": details} if details or not own else fields

    def end(self, *, has_tools: bool) -> dict[str, Json]:
        """The last of a stream's events but one."""
        delta = self.stop(has_tools=has_tools)
        usage = self._counted()
        native = self.native.get("delta_usage")
        if native:
            usage = {**native, **{name: usage[name] for name in _COUNTED if name in native and name in usage}}
        else:
            # The end of another server's answer, of one that was cut, or of one that came whole: all there is
            # was in its head, and clients read it here.
            container = self.native.get("message", {}).get("container")
            searches = self.native.get("usage", {}).get("server_tool_use")
            delta = {"container": container, **delta}
            usage = {"server_tool_use": searches, **{name: usage[name] for name in _COUNTED if name in usage}}
        event = {"type": "message_delta", **self.native.get("event", {}), "delta": delta, "usage": usage}
        return event | self.own_fields()

    def tool_use(self, call_id: str, name: str, more: Mapping[str, Json]) -> dict[str, Json]:
        """A call's block as it begins; ``more`` are a provider's further fields."""
        # All calls of other servers are the model's own.
        known = more if self.native else {"caller": {"type": "direct"}, **more}
        return {"type": "tool_use", "id": call_id, "name": name, "input": {}, **known}

    def own_fields(self) -> dict[str, Json]:
        """What Anthropic's API does not have: a guard's revocation, and who took the answer over in the middle."""
        own = dict(self.tollgate or {})
        if self._answering() != self.model:
            own["model"] = self._answering()
        return {"tollgate": own} if own else {}

    def whole(self, content: list[Json], *, has_tools: bool) -> dict[str, Json]:
        """The one message of an answer that is no stream."""
        return (
            self.head(content, self.usage_so_far())
            | self.native.get("event", {})
            | self.stop(has_tools=has_tools)
            | self.own_fields()
        )

    def usage_so_far(self) -> dict[str, Json]:
        """The usage as it is known by now."""
        counted = self._counted()
        if not self.native:
            return {**_USAGE, **counted}
        native = {**self.native.get("usage", {}), **self.native.get("delta_usage", {})}
        if self.usage is None and "output_tokens" in native:
            return native
        return {**native, **{name: counted[name] for name in _COUNTED if name in native and name in counted}}

    def _answering(self) -> str:
        return self.call.candidate.model if self.call.candidate else self.call.model

    def _counted(self) -> dict[str, Json]:
        known = self.usage or Usage(self.call.expected_prompt, 0)
        return write_usage(known)


# Unknown of other servers. The fields of a provider with this API are passed on as they are.
_USAGE: Mapping[str, Json] = {"inference_geo": None, "server_tool_use": None, "service_tier": None}
_COUNTED = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
    "output_tokens_details",
)


def write_usage(usage: Usage) -> dict[str, Json]:
    """Their ``input_tokens`` are those that had nothing to do with the prompt cache; ours are all."""
    return {
        "input_tokens": max(usage.prompt - usage.cached - usage.cache_write, 0),
        "cache_creation": {
            "ephemeral_5m_input_tokens": max(usage.cache_write - usage.cache_write_1h, 0),
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        },
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


def text_pieces(delta: Mapping[str, Json]) -> list[tuple[str, str]]:
    """The texts of a delta, in the order of Anthropic's blocks."""
    thinking = delta.get("reasoning_content") or delta.get("reasoning")
    text = delta.get("content")
    if isinstance(text, list):  # in parts, as some servers send it
        text = "".join(part["text"] for part in text if _is_text(part))
    found = [(THINKING, thinking)] if thinking and isinstance(thinking, str) else []
    return [*found, (TEXT, text)] if text else found


def _is_text(part: Json) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)
