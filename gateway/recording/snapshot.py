"""What is kept of a request from its end until it is written, and the record that is made of it then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.caching.key import content_key
from gateway.metering.estimate import measure
from gateway.observe.ended import Ended
from gateway.recording.data_key import DataKey
from gateway.recording.kept_answer import KeptAnswer
from gateway.recording.prompt_hashes import BLOCK_TOKENS, block_hashes, key_hash
from gateway.recording.recorded_request import Outcome, RecordedRequest
from gateway.types import Call, ChatRequest, Json

_CAPS = ("max_completion_tokens", "max_tokens")
_PER_CHARACTER = 4
"""Bytes that a text takes with what is parsed of it."""
_OVERHEAD = 4_000
_DEPTH = 5


@dataclass(eq=False, slots=True)
class Snapshot:
    """It holds no call: what is not here goes when the request does."""

    ended: Ended
    request: ChatRequest
    """As it was sent on: what guards masked is masked."""
    route: str
    priority: int
    deadline: float | None
    """Seconds from its arrival."""
    expected: int | None
    """Tokens of the prompt, as they were estimated."""
    generation: int
    has_content: bool
    """Whether anything may be kept of what was said, hashes included."""
    answer: KeptAnswer | None = None
    text: str | None = None
    """Masked."""

    @classmethod
    def of(
        cls, call: Call, ended: Ended, *, generation: int, has_content: bool, answer: KeptAnswer | None
    ) -> Snapshot:
        return cls(
            ended,
            call.request,
            call.route,
            call.policy.tier(call.principal.tier).priority,
            None if call.deadline is None else call.deadline - call.started,
            None if call.estimate is None else call.estimate.prompt,
            generation,
            has_content,
            answer,
        )

    @property
    def size(self) -> int:
        """Bytes that it holds, approximately."""
        return size_of(self.request, self.answer)

    def recorded(self, key: DataKey) -> RecordedRequest:
        ended, request, principal = self.ended, self.request, self.ended.principal
        candidate, bill, usage = ended.candidate, ended.bill, ended.usage
        used = bill.answer.upstream.usage if bill.answer is not None else usage
        outcome = outcome_of(ended)
        blocks: tuple[int, ...] = ()
        prompt_key = user = ""
        params = request.params
        if self.has_content:
            asked: Json = request.prompt if request.messages is None else list(request.messages)
            if isinstance(asked, str | list):
                blocks = block_hashes(params.get("tools") or params.get("functions"), asked, key.hashing)
            prompt_key = key_hash(content_key(request), key.hashing)
            user = key_hash(ended.end_user, key.hashing) if ended.end_user else ""
        queued, sent = waits_of(ended)
        chosen = ended.noted.get("experiment", {})
        cap = next((cap for name in _CAPS if isinstance(cap := params.get(name), int)), None)
        return RecordedRequest(
            at=ended.created,
            request_id=ended.request_id,
            tenant=principal.tenant,
            key=principal.key_id,
            user=user,
            tier=principal.tier,
            api=api_of(self.route, request),
            model=ended.asked,
            answered=candidate.model if candidate is not None and outcome != "refused" else "",
            backend=candidate.target.backend if candidate is not None else "",
            target=candidate.target.model if candidate is not None else "",
            stream=ended.stream,
            prompt_tokens=used.prompt if used is not None else self._estimated(),
            max_tokens=cap,
            completion_tokens=used.completion if used is not None else 0,
            cached_tokens=used.cached if used is not None else 0,
            reasoning_tokens=used.reasoning if used is not None else 0,
            blocks=blocks,
            block_tokens=BLOCK_TOKENS if blocks else 0,
            prompt_key=prompt_key,
            cache=ended.cached or str(ended.noted.get("cache", {}).get("result", "")),
            outcome=outcome,
            status=ended.status,
            code=ended.error or "",
            findings=tuple(findings_of(ended)),
            ttft=ended.first_token,
            duration=ended.seconds,
            queued=queued,
            sent=sent,
            finish_reason=ended.finish_reason or "",
            cost=bill.nanodollars / 1e9,
            experiment=str(chosen.get("name", "")),
            arm=str(chosen.get("arm", "")),
            generation=self.generation,
            priority=self.priority,
            deadline=self.deadline,
            tools=bool(params.get("tools") or params.get("functions")),
            text=self.text,
        )

    def _estimated(self) -> int:
        if self.expected is not None:
            return self.expected
        text, counted, _ = measure(self.request)
        return int(text) + counted


def size_of(request: ChatRequest, answer: KeptAnswer | None) -> int:
    """Bytes that both hold, approximately."""
    asked: Json = request.prompt if request.messages is None else request.messages
    characters = _characters(asked, _DEPTH) + (0 if answer is None else answer.size)
    return _OVERHEAD + _PER_CHARACTER * characters


def _characters(value: Json, depth: int) -> int:
    """Of the texts in it, those of pictures as well; what is nested deeper is little."""
    if isinstance(value, str):
        return len(value)
    if not depth:
        return 0
    if isinstance(value, Mapping):
        return sum(_characters(one, depth - 1) for one in value.values())
    if isinstance(value, list | tuple):
        return sum(_characters(one, depth - 1) for one in value)
    return 8


def outcome_of(ended: Ended) -> Outcome:
    if ended.error is None:
        cut = ended.noted.get("guard_output", {}).get("cut")
        return "revoked" if cut is not None and cut.get("reason") == "content_filter" else "completed"
    if ended.status == 499:
        return "revoked" if ended.code == "cut" else "cancelled"
    if not ended.attempts and ended.status != 500 and not ended.error.startswith("upstream"):
        return "refused"
    return "failed"


def waits_of(ended: Ended) -> tuple[float | None, float | None]:
    """``queued`` and ``sent`` of its record: as the receipt has the queue that it came to last."""
    queue = ended.noted.get("queue", {})
    began, waited = queue.get("began"), queue.get("waited")
    if ended.cached is not None or began is None or waited is None:
        return None, None
    return float(waited), None if ended.backend is None else round(float(began) + float(waited), 6)


def findings_of(ended: Ended) -> list[tuple[str, str]]:
    """Guards that found something in request or answer, and what each did."""
    return [
        (str(name), str(facts.get("action")))
        for stage in ("guard_input", "guard_output")
        for name, facts in dict(ended.noted.get(stage, {}).get("guards", {})).items()
        if facts.get("labels")
    ]


def api_of(route: str, request: ChatRequest) -> str:
    """``chat`` of ``/v1/chat/completions``, else the last part of the path, or of Google's what follows its colon."""
    if request.api is not None:
        return request.api
    path = route.rstrip("/")
    if path.endswith("/chat/completions"):
        return "chat"
    return path.rpartition("/")[2].rpartition(":")[2] or "chat"
