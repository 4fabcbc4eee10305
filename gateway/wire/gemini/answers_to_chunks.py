"""``GenerateContentResponse``, whole or as one event of a stream, as chunks in OpenAI's delta shape.

What goes wrong in it raises ``KeyError``, ``TypeError`` or ``AttributeError``, for the caller to skip or to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import uuid4

import orjson

from gateway.errors import ContentPolicy, UpstreamFailed
from gateway.types import Chunk, Json, Usage
from gateway.wire.levels import check_levels
from gateway.wire.token_counts import count, is_count
from gateway.wire.verdict import is_verdict

_FILTERED = frozenset(
    {
        *("BLOCKLIST", "IMAGE_PROHIBITED_CONTENT", "IMAGE_SAFETY", "MODEL_ARMOR", "PROHIBITED_CONTENT"),
        *("IMAGE_RECITATION", "LANGUAGE", "RECITATION", "SAFETY", "SPII"),
    }
)
"""Reasons to end an answer that are about its content."""
_GARBLED = frozenset(
    {
        *(
            "MALFORMED_FUNCTION_CALL",
            "MALFORMED_RESPONSE",
            "MISSING_THOUGHT_SIGNATURE",
            "TOO_MANY_TOOL_CALLS",
        ),
        "UNEXPECTED_TOOL_CALL",
    }
)
"""Reasons that mean that the model failed; another attempt may not."""
_VERDICTS = ("safetyRatings", "citationMetadata", "groundingMetadata", "urlContextMetadata", "finishMessage")
"""Of a candidate: what is passed on as ``extra_content.google`` of the choice."""

_CANDIDATE = frozenset({"content", "index", "logprobsResult"})
_ANSWER = frozenset({"candidates", "modelVersion", "responseId", "usageMetadata"})
"""What the canonical form has of a candidate, and of an answer."""
PART = "part"
"""The type of what is kept of a part."""


class GeminiChunkReader:
    """Reads one answer. ``backend`` is its name in errors; ``native`` is for a caller who speaks this dialect himself:
    what OpenAI's shape lacks is kept for him alone, as ``{"native": …}`` in deltas and envelopes."""

    def __init__(self, backend: str, *, native: bool = False) -> None:
        self._native = native
        self._backend = backend
        self._begun: set[int] = set()
        self._calls: dict[int, int] = {}
        """How many tool calls each candidate has made."""
        self.finished: set[int] = set()
        """The candidates that have come to their end."""
        self.parts = 0
        """How many parts have come that are no text."""

    def read_answer(self, raw: Mapping[str, Json]) -> Iterator[Chunk]:
        yield from self.read_event(raw)
        if not self._begun:
            raise TypeError("no candidate")

    def read_event(self, raw: Mapping[str, Json]) -> Iterator[Chunk]:
        """Raises ``ContentPolicy`` for a prompt that was blocked."""
        candidates = raw.get("candidates") or ()
        feedback = raw.get("promptFeedback") or {}
        if not candidates and feedback.get("blockReason"):
            raise _blocked(feedback)
        envelope: dict[str, Json] = {"id": f"chatcmpl-{raw['responseId']}"} if raw.get("responseId") else {}
        if isinstance(model := raw.get("modelVersion"), str):
            envelope["model"] = model
        if self._native:
            envelope |= {"native": _own(raw)}
        usage = read_usage(raw.get("usageMetadata"))
        chunks: list[Chunk] = []
        for candidate in candidates:
            chunks += self._candidate(candidate, envelope)
        if chunks:
            chunks[-1].usage = usage
        elif usage is not None:
            chunks = [Chunk(usage=usage, envelope=envelope)]
        yield from chunks

    def _candidate(self, candidate: Mapping[str, Json], envelope: Mapping[str, Json]) -> Iterator[Chunk]:
        index = candidate.get("index", 0)
        if type(index) is not int:
            raise TypeError("not an index")
        parts = (candidate.get("content") or {}).get("parts") or ()
        deltas = [delta for part in parts for delta in self._deltas(index, part)]
        reason = candidate.get("finishReason")
        if reason in _GARBLED and not deltas and index not in self._begun:
            raise UpstreamFailed(
                f"Backend '{self._backend}' gave up its answer ({reason}). Try again.",
                code="upstream_malformed",
            )
        if reason is not None and index in self.finished:
            reason = None
        if not deltas and reason is None:
            return
        deltas = deltas or [{}]
        if index not in self._begun:
            self._begun.add(index)
            deltas[0] = {"role": "assistant", **deltas[0]}
        chunks = [Chunk(index, delta, envelope=envelope) for delta in deltas]
        last = chunks[-1]
        last.logprobs = _logprobs(candidate.get("logprobsResult"), native=self._native)
        if reason is not None:
            self.finished.add(index)
            last.finish_reason = finish_of(reason, has_tools=bool(self._calls.get(index)))
        verdicts = {name: candidate[name] for name in _VERDICTS if candidate.get(name)}
        if self._native:
            verdicts = {name: value for name, value in candidate.items() if name not in _CANDIDATE}
            if reason is None:
                verdicts.pop("finishReason", None)
        if verdicts:
            last.choice = {"extra_content": {"google": verdicts}}
        yield from chunks

    def _deltas(self, index: int, part: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
        signature = part.get("thoughtSignature")
        signed = {"extra_content": {"google": {"thought_signature": signature}}} if signature else {}
        if (call := part.get("functionCall")) is not None:
            self.parts += 1
            number = self._calls.get(index, 0)
            self._calls[index] = number + 1
            arguments = orjson.dumps(_object(call.get("args"))).decode()
            yield {
                "tool_calls": [
                    {
                        "index": number,
                        "id": _text(call["id"]) if call.get("id") else f"call_{uuid4().hex}",
                        "type": "function",
                        "function": {"name": _text(call["name"]), "arguments": arguments},
                        **signed,
                    }
                ],
                **self._beside(part, "functionCall"),
            }
        elif "text" in part:
            text = _text(part["text"])
            beside = self._beside(part, "text", "thought")
            if part.get("thought"):
                if text or beside:
                    yield {"reasoning_content": text, **beside}
            elif text or signed or beside:
                yield {"content": text, **signed, **beside}
        elif self._native:
            # Other parts, such as code that the provider ran itself, have no equivalent.
            self.parts += 1
            check_levels(part)
            yield {"native": {"type": PART, "index": index, "content_block": dict(part)}}
        elif signed:
            yield signed

    def _beside(self, part: Mapping[str, Json], *known: str) -> dict[str, Json]:
        """What else a part has, for a caller who knows it."""
        more = {name: value for name, value in part.items() if name not in known} if self._native else {}
        if not more:
            return {}
        check_levels(more)
        return {"native": {"type": PART, "index": 0, "delta": more}}


def _own(raw: Mapping[str, Json]) -> dict[str, Json]:
    """The answer's own fields, without its candidates."""
    usage = raw.get("usageMetadata")
    own = {name: value for name, value in raw.items() if name not in _ANSWER}
    return {"response": own, "usage": usage if isinstance(usage, dict) else {}}


def read_usage(raw: Json) -> Usage | None:
    """None where there is none, or none that can be believed: the gateway then counts by itself."""
    if not isinstance(raw, dict) or not raw or not is_count(raw, "promptTokenCount"):
        return None
    thoughts = count(raw, "thoughtsTokenCount")
    usage = Usage(
        prompt=count(raw, "promptTokenCount") + count(raw, "toolUsePromptTokenCount"),
        completion=count(raw, "candidatesTokenCount") + thoughts,
        cached=count(raw, "cachedContentTokenCount"),
        reasoning=thoughts,
        more=_by_kind(raw),
    )
    return usage.possible


def _by_kind(raw: Mapping[str, Json]) -> dict[str, Json] | None:
    """Tokens of pictures and sound, which have prices of their own."""
    found: dict[str, Json] = {}
    for theirs, ours in (
        ("promptTokensDetails", "prompt_tokens_details"),
        ("candidatesTokensDetails", "completion_tokens_details"),
    ):
        details = raw.get(theirs)
        kinds = {
            f"{one['modality'].lower()}_tokens": count(one, "tokenCount")
            for one in (details if isinstance(details, list) else ())
            if isinstance(one, dict) and isinstance(one.get("modality"), str) and one["modality"] != "TEXT"
        }
        if kinds:
            found[ours] = kinds
    return found or None


def finish_of(reason: Json, *, has_tools: bool) -> str:
    """The canonical reason for one of Google's."""
    reason = _text(reason)
    if reason in _FILTERED:
        return "content_filter"
    if reason == "MAX_TOKENS":
        return "length"
    return "tool_calls" if has_tools else "stop"


def _blocked(feedback: Mapping[str, Json]) -> ContentPolicy:
    reason = _text(feedback["blockReason"])
    said = feedback.get("blockReasonMessage")
    error = ContentPolicy(
        said if isinstance(said, str) and said else f"The provider blocked the prompt ({reason}). Change it.",
        status=400,
        type=None,
        param="messages",
        code="content_filter",
    )
    ratings = [
        {"category": one["category"], "probability": one["probability"], "blocked": bool(one.get("blocked"))}
        for one in feedback.get("safetyRatings") or ()
        if is_verdict(one["category"]) and is_verdict(one["probability"])
    ]
    # Only verdicts: texts of the server's own are scrubbed in the message, and nowhere else.
    code = {"code": reason} if is_verdict(reason) else {}
    error.details = {"innererror": {**code, "safety_ratings": ratings}}
    return error


def _logprobs(raw: Json, *, native: bool) -> Json:
    if not isinstance(raw, dict) or not raw.get("chosenCandidates"):
        return None
    tops = raw.get("topCandidates") or ()
    content = []
    for i, chosen in enumerate(raw["chosenCandidates"]):
        top = (tops[i].get("candidates") or ()) if i < len(tops) else ()
        said = _logprob(chosen, native=native)
        content.append({**said, "top_logprobs": [_logprob(one, native=native) for one in top]})
    return {"content": content}


def _logprob(raw: Mapping[str, Json], *, native: bool) -> dict[str, Json]:
    token = _text(raw.get("token") or "")
    more = {"token_id": raw["tokenId"]} if native and "tokenId" in raw else {}
    return {"token": token, "logprob": raw["logProbability"], "bytes": [*token.encode()], **more}


def _object(value: Json) -> dict[str, Json]:
    if value is not None and not isinstance(value, dict):
        raise TypeError("not an object")
    return value or {}


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
