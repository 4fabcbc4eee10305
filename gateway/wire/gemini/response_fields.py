"""The fields of a ``GenerateContentResponse`` beside its candidates' parts, gathered from chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.errors import GatewayError
from gateway.types import Call, Chunk, Json, Usage
from gateway.wire.gemini.answers_to_chunks import finish_of
from gateway.wire.token_counts import count, counted

_FINISHES: Mapping[str, str] = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "function_call": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
}
_COMPLETION = "chatcmpl-"
_SETTLED = frozenset({"cachedContentTokenCount", "thoughtsTokenCount"})
"""Figures that the caller is told as they were settled, and not as a server wrote them."""
_BESIDE = "toolUsePromptTokenCount"


@dataclass(slots=True)
class CandidateFields:
    """Of one candidate."""

    finish_reason: str | None = None
    logprobs: list[Json] = field(default_factory=list)
    google: dict[str, Json] = field(default_factory=dict)
    """Further fields, as Google sent them."""

    def observe(self, chunk: Chunk) -> None:
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if isinstance(chunk.logprobs, Mapping):
            self.logprobs += chunk.logprobs.get("content") or ()
        if chunk.choice:
            google = (chunk.choice.get("extra_content") or {}).get("google")
            if isinstance(google, Mapping):
                self.google.update(google)

    def end(self, *, has_calls: bool) -> dict[str, Json]:
        """Why it ended, and what else is known of it."""
        reason = _FINISHES.get(self.finish_reason or "stop", "STOP")
        google = dict(self.google)
        own = google.pop("finishReason", None)
        # A guard's decision about the end overrides the provider's.
        if isinstance(own, str) and finish_of(own, has_tools=has_calls) == self.finish_reason:
            reason = own
        fields: dict[str, Json] = {"finishReason": reason, **google}
        if self.logprobs:
            fields["logprobsResult"] = {
                "chosenCandidates": [_logprob(one) for one in self.logprobs],
                "topCandidates": [
                    {"candidates": [_logprob(top) for top in one.get("top_logprobs") or ()]}
                    for one in self.logprobs
                ],
            }
        return fields


@dataclass(slots=True)
class ResponseFields:
    """What is known of the answer as a whole."""

    call: Call
    usage: Usage | None = None
    tollgate: Json = None
    response_id: str = ""
    native: dict[str, dict[str, Json]] = field(default_factory=dict)
    """Fields of Google's that the canonical form lacks."""
    candidates: dict[int, CandidateFields] = field(default_factory=dict)

    def observe(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.revocation is not None:
            self.tollgate = chunk.revocation
        if chunk.delta is not None and (chunk.finish_reason or chunk.logprobs or chunk.choice):
            self.candidate(chunk.index).observe(chunk)
        if not chunk.envelope:
            return
        given = chunk.envelope.get("id")
        if given and not self.response_id:
            self.response_id = str(given).removeprefix(_COMPLETION)
        if isinstance(chunk.envelope.get("tollgate"), Mapping):
            self.tollgate = chunk.envelope["tollgate"]
        for where, fields in (chunk.envelope.get("native") or {}).items():
            self.native.setdefault(where, {}).update(fields)

    def candidate(self, index: int) -> CandidateFields:
        known = self.candidates.get(index)
        if known is None:
            known = self.candidates[index] = CandidateFields()
        return known

    def head(self) -> dict[str, Json]:
        """The fields that every event has."""
        model = self.call.candidate.model if self.call.candidate else self.call.model
        return {"modelVersion": model, "responseId": self.response_id or self.call.request_id}

    def end(self) -> dict[str, Json]:
        """The fields of the last event, and of a whole answer."""
        own = {"tollgate": self.tollgate} if self.tollgate else {}
        return {**self.native.get("response", {}), "usageMetadata": self._usage(), **self.head(), **own}

    def blocked(self, error: GatewayError) -> dict[str, Json]:
        """The answer to a prompt that a guard, or the model's provider, would not let through."""
        code = (error.details.get("innererror") or {}).get("code")
        feedback: dict[str, Json] = {
            "blockReason": code if isinstance(code, str) and code in BLOCK_REASONS else "SAFETY",
            "blockReasonMessage": error.message,
        }
        tollgate = {"reason": error.code, "request_id": self.call.request_id}
        return {
            "promptFeedback": feedback,
            "usageMetadata": {"promptTokenCount": 0, "totalTokenCount": 0},
            **self.head(),
            "tollgate": tollgate,
        }

    def _usage(self) -> dict[str, Json]:
        known = self.usage or Usage(self.call.expected_prompt, 0)
        native = {
            name: value
            for name, value in self.native.get("usage", {}).items()
            if (counted(value) == 0 if name in _SETTLED else name != _BESIDE or counted(value) is not None)
        }
        beside = min(count(native, _BESIDE), known.prompt)
        counts: dict[str, Json] = {
            "promptTokenCount": known.prompt - beside,
            "candidatesTokenCount": max(known.completion - known.reasoning, 0),
            "totalTokenCount": known.prompt + known.completion,
        }
        if known.cached:
            counts["cachedContentTokenCount"] = known.cached
        if known.reasoning:
            counts["thoughtsTokenCount"] = known.reasoning
        return {**native, **counts}


BLOCK_REASONS = frozenset(
    {"SAFETY", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "IMAGE_SAFETY", "MODEL_ARMOR", "JAILBREAK"}
)


def _logprob(one: Mapping[str, Json]) -> dict[str, Json]:
    found = {"token": one.get("token"), "logProbability": one.get("logprob")}
    return {**found, "tokenId": one["token_id"]} if "token_id" in one else found
