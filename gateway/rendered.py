"""Answers to requests that repeat a cached one byte for byte, kept as rendered bytes: they pass no stage.

For requests on which nothing but the cache and the caller's limits would have a say: the tenant has no input guards,
and no header asks for anything special. All else goes through the stages, and so does the first repetition, and
whatever is refused. The stages' own recorder records what is answered here.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, replace

from gateway.caching.answers import unpack
from gateway.caching.caches import Caches
from gateway.caching.exact import MemoryAnswerStore
from gateway.errors import GatewayError
from gateway.guards.guards import Guards
from gateway.observe.accounting import RequestAccounting
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.quota.quotas import Quotas
from gateway.server.headers import RequestHeaders
from gateway.stages.cache import CacheRecorder
from gateway.stages.record import Observers, Recorder
from gateway.types import Call, Candidate, ChatRequest, Chunk, Principal, Receipt, Usage
from gateway.wire.dialect import Dialect

MAX_BYTES = 2**16
"""Of a request, and of an answer: longer ones gain little, and a stream of them needs more than one write."""
OVERHEAD = 2_000
"""Bytes that an entry takes beside its contents."""

_PER_REQUEST_BYTE = 4
"""Bytes that a request takes, raw and parsed, for each of its own."""
_SPECIAL_HEADERS = frozenset(
    {b"cache-control", b"x-tollgate-deadline", b"anthropic-beta", b"x-tollgate-tags"}
)

_TRACE = (b"traceparent", b"tracestate")
_Key = tuple[Dialect, str, bytes]
"""A dialect, an API key's id, and a request's body."""


@dataclass(frozen=True, slots=True)
class RenderedAnswer:
    principal: Principal
    model: str
    request: ChatRequest
    limited: bool
    """Whether quotas or budgets apply."""
    candidate: Candidate
    key: str
    packed: bytes
    """The exact cache's entry under ``key``: the rendered answer is valid while that is the same object."""
    stored: float
    """Unix time."""
    parts: tuple[bytes, ...]
    """The body, split where the request id and the time go, which each answer has of its own."""
    headers: list[tuple[bytes, bytes]]
    gaps: int
    """Chunks after the first."""
    usage: Usage | None
    finish_reason: str | None

    @property
    def size(self) -> int:
        """Bytes, without the request's."""
        return len(self.packed) + sum(map(len, self.parts)) + OVERHEAD


class RenderedCache:
    """One policy generation's: the most recently used answers, up to a share of the exact cache's bytes."""

    def __init__(
        self,
        caches: Caches,
        guards: Guards,
        quotas: Quotas,
        *,
        metrics: Metrics,
        receipts: Receipts,
        accounting: RequestAccounting,
        telemetry: Telemetry | None = None,
        is_used: bool = True,
    ) -> None:
        """``is_used``: not where each answer is to pass the stages."""
        self._caches = caches
        self._guards = guards
        self._quotas = quotas
        self._observers = Observers(quotas, accounting, metrics, receipts, telemetry)
        self._recorder = CacheRecorder(metrics)
        self._answers = caches.answers if is_used and isinstance(caches.answers, MemoryAnswerStore) else None
        self.is_used = self._answers is not None
        """No answer is ever kept where it is not."""
        self._rendered: OrderedDict[_Key, RenderedAnswer] = OrderedDict()
        self.bytes = 0

    def answer(
        self,
        dialect: Dialect,
        principal: Principal,
        request_id: str,
        headers: RequestHeaders,
        data: bytes,
        *,
        started: float,
        route: str = "",
    ) -> tuple[bool, bytes, list[tuple[bytes, bytes]]] | None:
        """Whether it is a stream, its body, and headers to go with it. None where the stages are to answer.

        The request is recorded as completed. ``started`` is when it arrived (``time.perf_counter()``).
        """
        key = (dialect, principal.key_id, data)
        rendered = self._rendered.get(key) if len(data) <= MAX_BYTES else None
        if rendered is None or self._answers is None:
            return None
        if not _SPECIAL_HEADERS.isdisjoint(headers):
            return None
        trace_headers = {
            header.decode(): headers[header].decode("latin-1") for header in _TRACE if header in headers
        }
        age = self._caches.age(rendered.stored)
        head = dialect.answer_head(request_id, int(time.time()))
        if age is None or head is None or not self._is_valid(rendered) or rendered.principal != principal:
            self._drop(key)
            return None
        self._rendered.move_to_end(key)
        call = Call(
            request_id,
            rendered.principal,
            rendered.request,
            self._caches.policy,
            Receipt(request_id, time.time()),
            started,
            headers=trace_headers,
            model=rendered.model,
            route=route,
        )
        reservation = None
        if rendered.limited:
            try:
                reservation = self._quotas.reserve_now(call)
            except GatewayError:
                return None
        recorder = Recorder(self._observers, call)
        recorder.admitted(reservation)
        self._recorder.count("exact", "hit")
        looked = round(time.perf_counter() - started, 6)
        facts = {"began": looked, "seconds": 0.0}  # it lay at hand
        self._recorder.served(call, "exact", rendered.candidate, age=round(age, 1), **facts)
        recorder.rendered(rendered.gaps, rendered.usage, rendered.finish_reason)
        recorder.end(None)
        added = [(name.encode(), value.encode()) for name, value in call.reply_headers.items()]
        return rendered.request.stream, head.join(rendered.parts), rendered.headers + added

    def keep(self, dialect: Dialect, call: Call, data: bytes) -> None:
        """After ``call``, which the cache answered: render the answer for the next request with the body ``data``."""
        if (
            self._answers is None
            or call.cached != "exact"
            or len(data) > MAX_BYTES
            or not call.request.generates
            or self._guards.of_call(call).reads_input
            or (head := dialect.answer_head(call.request_id, created := int(time.time()))) is None
            or (entry := self._caches.entry(call)) is None
            or (packed := self._answers.get_now(entry.key)) is None
            or (answer := unpack(packed)) is None
        ):
            return
        request = call.request
        again = replace(call, candidate=self._caches.answered_by(answer))
        chunks = list(answer.chunks(stream=request.stream))
        body = _render(dialect, again, chunks)
        parts = tuple(body.split(head))
        if len(body) > MAX_BYTES or len(parts) < 2 or int(time.time()) != created:
            return
        rendered = RenderedAnswer(
            principal=call.principal,
            model=call.model,
            request=request,
            limited=self._quotas.limited(call.policy, call.principal),
            candidate=self._caches.answered_by(answer),
            key=entry.key,
            packed=packed,
            stored=answer.stored,
            parts=parts,
            headers=[(b"x-tollgate-model", answer.model.encode())],
            gaps=sum(bool(chunk.delta) for chunk in chunks[1:]),
            usage=next((chunk.usage for chunk in reversed(chunks) if chunk.usage is not None), None),
            finish_reason=next(
                (chunk.finish_reason for chunk in chunks if chunk.finish_reason is not None), None
            ),
        )
        key = (dialect, call.principal.key_id, data)
        self._drop(key)
        self._rendered[key] = rendered
        self.bytes += _PER_REQUEST_BYTE * len(data) + rendered.size
        while self.bytes > self._caches.rendered_bytes:
            self._drop(next(iter(self._rendered)))

    def _is_valid(self, rendered: RenderedAnswer) -> bool:
        return self._answers is not None and self._answers.get_now(rendered.key) is rendered.packed

    def _drop(self, key: _Key) -> None:
        rendered = self._rendered.pop(key, None)
        if rendered is not None:
            self.bytes -= _PER_REQUEST_BYTE * len(key[2]) + rendered.size


def _render(dialect: Dialect, call: Call, chunks: list[Chunk]) -> bytes:
    if call.request.stream:
        events = dialect.event_writer(call)
        return b"".join([*map(events.event, chunks), events.end()])
    whole = dialect.body_writer(call)
    for chunk in chunks:
        whole.add(chunk)
    return whole.body()
