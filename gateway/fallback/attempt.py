"""One attempt: one request to one candidate, and what it used."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import (
    BadRequest,
    DeadlineExceeded,
    GatewayError,
    Overloaded,
    RateLimited,
    Upstream,
    UpstreamTimeout,
)
from gateway.fallback.circuit_breaker import Permit
from gateway.fallback.continuation import AnswerDiverged, AnswerFilter, SentAnswer, whole_usage
from gateway.fallback.hop import PlannedAttempt
from gateway.metering.api_bounds import settled
from gateway.metering.dense_text import dense_prompt
from gateway.metering.estimate import LearnedEstimate, rough_estimate, unseen_tokens
from gateway.metering.price import price_of
from gateway.metering.usage_counter import UsageCounter
from gateway.types import Call, Chunk, Json, Purpose, UpstreamUsage, Usage


class Attempt:
    """One attempt in flight. ``sent`` collects what the caller has of the answer; None where nobody needs it."""

    __slots__ = (
        "admitted",
        "began",
        "call",
        "delivered",
        "facts",
        "filter",
        "permit",
        "planned",
        "prefix_tokens",
        "sent",
        "usage_counter",
    )

    def __init__(
        self,
        planned: PlannedAttempt,
        permit: Permit,
        call: Call,
        filter: AnswerFilter,
        sent: SentAnswer | None,
        *,
        prefix_tokens: int = 0,
    ) -> None:
        self.planned = planned
        self.permit = permit
        self.call = call
        self.filter = filter
        self.sent = sent
        self.prefix_tokens = prefix_tokens
        """Tokens of the answer that are part of its prompt, as it continues them."""
        self.admitted = True
        """Whether the backend's queue let it through."""
        self.delivered = False
        """Whether the caller has been given anything of it."""
        self.usage_counter = UsageCounter()
        self.began = time.perf_counter()
        self.facts: dict[str, Any] = {**planned.hop.facts}
        """For the receipt."""

    def add(self, chunk: Chunk) -> None:
        """Count ``chunk``, which goes to the caller as it is."""
        delta = chunk.delta
        if delta and len(delta) == 1 and chunk.finish_reason is None and chunk.logprobs is None:
            # Nearly all chunks of a stream: a piece of text, and nothing else.
            text = delta.get("content")
            if text.__class__ is str and chunk.usage is None:
                self.usage_counter.add_text(text)
                if self.sent is not None:
                    self.sent.add_text(text)
                return
        self.count(chunk)
        if self.sent is not None:
            self.sent.add(chunk)

    def passed(self, like: Chunk, texts: Sequence[str]) -> None:
        """As ``add``, for those that went to the call's sink. ``like`` was added itself: what they are is known."""
        self.usage_counter.add_texts(texts)
        if self.sent is not None and like.delta is not None and "content" in like.delta:
            self.sent.add_texts(texts)

    def count(self, chunk: Chunk) -> None:
        """Count ``chunk``; its usage becomes the whole answer's."""
        self.usage_counter.add(chunk)
        if chunk.usage is not None and self.prefix_tokens:
            chunk.usage = whole_usage(chunk.usage, self.prefix_tokens)

    def upstream_usage(self, error: BaseException | None) -> UpstreamUsage | None:
        """What it used, ended by ``error`` (None: completed). None where it never reached a model.

        What was sent to a server is never free: where nothing came back, it is counted as what such a request usually
        uses. One that is not streamed is completed at many providers after its caller has left, whatever its length:
        leaving early, or a short deadline, must not make it cheaper than it may have become.
        """
        if self.call.request.api is not None:
            found = self._passed_on(error)
        else:
            reported = self.usage_counter.reported if error is None else None
            found = (reported, False) if reported is not None else self._estimated(error)
        if found is None:
            return None
        candidate = self.planned.hop.candidate
        return UpstreamUsage(candidate.target, *found, self._purpose(error), candidate.model)

    def _passed_on(self, error: BaseException | None) -> tuple[Usage, bool] | None:
        """Of an API that generates no text: once sent, and not refused, it is computed and billed to its end."""
        call, told = self.call, self.usage_counter.usage
        if error is not None and told is None and not self.delivered and (not call.sent or is_free(error)):
            return None
        price = price_of(call.policy, self.planned.candidate.target)
        estimate = call.estimated() or rough_estimate(call.request)
        return settled(call.request, price, told, estimate.prompt)

    def _estimated(self, error: BaseException | None) -> tuple[Usage, bool] | None:
        call, usage_counter = self.call, self.usage_counter
        if isinstance(error, GatewayError):
            for chunk in error.unread:
                usage_counter.add(chunk)
        received = usage_counter.usage is not None or usage_counter.counted > 0
        if not received and (not call.sent or is_free(error)) and error is not None:
            return None
        estimate = call.estimated() or rough_estimate(call.request)
        abandoned = isinstance(error, DeadlineExceeded) or not isinstance(
            error, GatewayError | AnswerDiverged
        )
        unseen = unseen_tokens(call, estimate) if abandoned and not call.request.stream else estimate.expected
        if call.cap is not None:
            unseen = min(unseen, call.cap * call.request.answers)
        thoughts = (
            min(estimate.thoughts, unseen_tokens(call, estimate))
            if isinstance(estimate, LearnedEstimate)
            else 0
        )
        prompt, most, out = estimate.prompt + self.prefix_tokens, None, 0
        if call.allowance is not None and (bounds := call.allowance.bounds(call)) is not None:
            prompt, most = bounds
            params = call.request.params
            out = most if params.get("best_of") else longest_stop(params.get("stop"))
            if asks_for_thoughts(params):
                thoughts = most
        elif usage_counter.usage is None:
            prompt = max(prompt, dense_prompt(call.request))
        return usage_counter.of(
            prompt, unseen, whole=error is None, thoughts=thoughts, most=most, left_out=out
        )

    def _purpose(self, error: BaseException | None) -> Purpose:
        purpose = self.call.purpose
        failed = isinstance(error, GatewayError | AnswerDiverged)
        return "attempt" if failed and purpose in ("answer", "step") else purpose


def asks_for_thoughts(params: Mapping[str, Json]) -> bool:
    """Whether thoughts that nobody shows may be a part of the answer."""
    match params.get("thinking"):
        case None | {"type": "disabled"}:
            return params.get("reasoning_effort") not in (None, "none")
    return True


def longest_stop(stop: Json) -> int:
    """Bytes of the longest text that ends an answer, of which it is no part though a model wrote it."""
    texts = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    return max(
        (len(text.encode("utf-8", "surrogatepass")) for text in texts if isinstance(text, str)), default=0
    )


def is_free(error: BaseException | None) -> bool:
    """Whether ``error`` is a rejection by the server, or by our own queue, before a model ran: that costs nothing."""
    if isinstance(error, Overloaded | BadRequest | RateLimited):
        return True
    rejected = isinstance(error, Upstream) and error.upstream_status is not None
    return rejected and not isinstance(error, UpstreamTimeout)
