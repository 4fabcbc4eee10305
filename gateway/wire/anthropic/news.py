"""What an answer of Anthropic's Messages API tells beside its content, gathered from chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.types import Call, Chunk, Json, Usage
from gateway.wire.anthropic import stop_reasons

TEXT, THINKING = "text", "thinking"
"""The kinds of block that hold words."""


@dataclass(slots=True)
class News:
    """What is known of the answer as a whole."""

    call: Call
    message_id: str = ""
    finish_reason: str | None = None
    refusal: str | None = None
    stop_sequence: str | None = None
    tollgate: Json = None
    usage: Usage | None = None
    model: str = ""
    """Who was said to answer."""

    def hear(self, chunk: Chunk) -> None:
        """Note what ``chunk`` tells beside its words."""
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        if chunk.revocation is not None:
            self.tollgate = chunk.revocation
        if not chunk.envelope:
            return
        told = str(chunk.envelope.get("id") or "")
        self.message_id = self.message_id or (told if told.startswith("msg_") else "")
        self.stop_sequence = chunk.envelope.get("stop_sequence") or self.stop_sequence
        self.tollgate = chunk.envelope.get("tollgate") or self.tollgate

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
            "usage": usage,
        }

    def stop(self, *, has_tools: bool) -> dict[str, Json]:
        """Why it ended."""
        reason = stop_reasons.to_anthropic(
            self.finish_reason, has_tools=has_tools, stop_sequence=self.stop_sequence
        )
        told: dict[str, Json] = {"stop_reason": reason, "stop_sequence": self.stop_sequence}
        if self.refusal is not None:
            told["stop_details"] = {"type": "refusal", "category": None, "explanation": self.refusal}
        return told

    def own_fields(self) -> dict[str, Json]:
        """What Anthropic's API does not have: a guard's revocation, and who took the answer over in the middle."""
        told = dict(self.tollgate or {})
        if self._answering() != self.model:
            told["model"] = self._answering()
        return {"tollgate": told} if told else {}

    def _answering(self) -> str:
        return self.call.candidate.model if self.call.candidate else self.call.model

    def expected_usage(self) -> dict[str, Json]:
        """The usage as the first event tells it, before anything is known."""
        return write_usage(Usage(self.call.demand.prompt if self.call.demand else 0, 0))

    def total_usage(self) -> dict[str, Json]:
        return write_usage(self.usage) if self.usage else self.expected_usage()


def write_usage(usage: Usage) -> dict[str, Json]:
    """Their ``input_tokens`` are those that did not come from the prompt cache; ours are all."""
    written: dict[str, Json] = {
        "input_tokens": max(usage.prompt - usage.cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
    if usage.reasoning:
        written["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    return written


def pieces(delta: Mapping[str, Json]) -> list[tuple[str, str]]:
    """What a delta says in words, in the order in which Anthropic's blocks have it."""
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    said = delta.get("content")
    found = [(THINKING, thought)] if thought else []
    return [*found, (TEXT, said)] if said else found
