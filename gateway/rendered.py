"""A lane for what was asked before, word for word: its answer stands ready in bytes, and passes no stage.

It is for requests on which, but for ``cache`` and ``quota``, no stage would do more than take notes: no guard looks at
the tenant's questions, and no header has a special wish. All else goes through the stages, and so does the first
repetition, and whatever is refused. What they would note, count and enter is noted, counted and entered here.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gateway.caching.answers import unpack
from gateway.caching.caches import Caches
from gateway.caching.exact import MemoryAnswers
from gateway.errors import GatewayError
from gateway.guards.actions.guards import Guards
from gateway.metering.bill import Bill
from gateway.observe.accounting import Accounting
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.observe.tracing import close, place_of
from gateway.quota.allowance import Reservation
from gateway.quota.quotas import Quotas, tokens_of
from gateway.types import Call, Candidate, ChatRequest, Chunk, Json, Principal, Receipt
from gateway.wire.front import Front

LONGEST = 2**16
"""Bytes of a question, and of an answer: of longer ones little is spared, and a stream needs more than one write."""
OVERHEAD = 2_000
"""Bytes that an entry takes beside what it holds."""

_ASKED = 4
"""Bytes that a question takes as it came and as it was read, for each of its own."""
_WISHES = frozenset({b"cache-control", b"x-tollgate-deadline", b"anthropic-beta"})
_NOTHING_USED: dict[str, Json] = {"used_tokens": 0, "cost_usd": 0.0, "source": "cache"}

_Headers = Iterable[tuple[bytes, bytes]]
_Name = tuple[Front, str, bytes]
"""A dialect, a key's id, and a question's body."""


@dataclass(frozen=True, slots=True)
class Ready:
    """An answer, cut at the words that are its own each time that it is given."""

    principal: Principal
    model: str
    request: ChatRequest
    limited: bool
    """Whether quotas and budgets have a say."""
    candidate: Candidate
    key: str
    packed: bytes
    """What was kept under ``key``: what is ready is good for as long as just this is found there."""
    stored: float
    """Unix time."""
    parts: tuple[bytes, ...]
    headers: list[tuple[bytes, bytes]]
    told: Mapping[str, Json]
    """What the receipt says under ``meter``, times aside."""

    @property
    def size(self) -> int:
        """Without the question's."""
        return len(self.packed) + sum(map(len, self.parts)) + OVERHEAD


class Repeats:
    """Those of one policy generation: the most recently used, up to a share of the exact cache's bytes."""

    def __init__(
        self,
        caches: Caches,
        guards: Guards,
        quotas: Quotas,
        *,
        metrics: Metrics,
        receipts: Receipts,
        accounting: Accounting,
    ) -> None:
        self._caches = caches
        self._answers = caches.answers if isinstance(caches.answers, MemoryAnswers) else None
        self._guards = guards
        self._quotas = quotas
        self._metrics = metrics
        self._receipts = receipts
        self._accounting = accounting
        self._known: OrderedDict[_Name, Ready] = OrderedDict()
        self.bytes = 0

    def answer(
        self,
        front: Front,
        principal: Principal,
        request_id: str,
        headers: _Headers,
        data: bytes,
        *,
        started: float,
    ) -> tuple[bool, bytes, list[tuple[bytes, bytes]]] | None:
        """Whether it is a stream, all of it, and headers to go with it. None where the stages are to see to it.

        Everything about the request is entered then, as if it had ended.
        ``started`` is when the request arrived (``time.perf_counter()``).
        """
        name = (front, principal.key_id, data)
        ready = self._known.get(name) if len(data) <= LONGEST else None
        if ready is None or self._answers is None:
            return None
        parent = ""
        for header, value in headers:
            if header == b"traceparent":
                parent = value.decode("latin-1")
            elif header in _WISHES:
                return None
        age = self._caches.age(ready.stored)
        own = front.own(request_id, int(time.time()))
        if age is None or own is None or not self._holds(ready) or ready.principal != principal:
            self._forget(name)
            return None
        self._known.move_to_end(name)
        call = Call(
            request_id,
            ready.principal,
            ready.request,
            self._caches.policy,
            Receipt(request_id, time.time()),
            started,
            model=ready.model,
            cached="exact",
            candidate=ready.candidate,
        )
        try:
            reservation = self._quotas.reserve_now(call) if ready.limited else None
        except GatewayError:
            return None
        self._enter(call, ready, reservation, age, parent)
        headers = ready.headers
        if call.reply_headers:
            headers = [*headers, *((one.encode(), text.encode()) for one, text in call.reply_headers.items())]
        return ready.request.stream, own.join(ready.parts), headers

    def keep(self, front: Front, call: Call, data: bytes) -> None:
        """After ``call``, which the cache answered: have the answer ready for the next who sends ``data``."""
        if (
            self._answers is None
            or call.cached != "exact"
            or len(data) > LONGEST
            or call.request.embeds
            or self._guards.of(call.principal.tenant).reads_input
            or (own := front.own(call.request_id, created := int(time.time()))) is None
            or (entry := self._caches.entry(call)) is None
            or (packed := self._answers.look(entry.key)) is None
            or (answer := unpack(packed)) is None
        ):
            return
        request = call.request
        again = replace(call, candidate=self._caches.answered_by(answer))
        chunks = list(answer.chunks(stream=request.stream))
        body = _written(front, again, chunks)
        parts = tuple(body.split(own))
        if len(body) > LONGEST or len(parts) < 2 or int(time.time()) != created:
            return
        ready = Ready(
            principal=call.principal,
            model=call.model,
            request=request,
            limited=self._quotas.limited(call.policy, call.principal),
            candidate=self._caches.answered_by(answer),
            key=entry.key,
            packed=packed,
            stored=answer.stored,
            parts=parts,
            headers=[(b"x-tollgate-model", answer.model.encode()), (b"x-tollgate-cache", b"exact")],
            told=_told(chunks),
        )
        name = (front, call.principal.key_id, data)
        self._forget(name)
        self._known[name] = ready
        self.bytes += _ASKED * len(data) + ready.size
        while self.bytes > self._caches.ready_bytes:
            self._forget(next(iter(self._known)))

    def _holds(self, ready: Ready) -> bool:
        return self._answers is not None and self._answers.look(ready.key) is ready.packed

    def _forget(self, name: _Name) -> None:
        ready = self._known.pop(name, None)
        if ready is not None:
            self.bytes -= _ASKED * len(name[2]) + ready.size

    def _enter(
        self, call: Call, ready: Ready, reservation: Reservation | None, age: float, parent: str
    ) -> None:
        """All that the stages would tell of a request like this one."""
        metrics = self._metrics
        seconds = time.perf_counter() - call.started
        reserved = 0
        if reservation is not None:
            reserved = tokens_of(call.estimate) if call.estimate is not None else 0
            self._quotas.settle(reservation, tokens=0, nanodollars=0)
        call.receipt.notes.update(
            cache={"result": "exact", "age": round(age, 1)},
            quota={"reserved_tokens": reserved, **_NOTHING_USED},
            meter={"first_token": round(seconds, 6), **ready.told},
        )
        metrics.cache.labels("exact", "hit").inc()
        metrics.requests.labels(ready.model, "", "200").inc()
        metrics.seconds.labels(ready.model).observe(seconds)
        self._accounting.record(call, Bill(), 200)
        close(self._receipts, call, place_of(parent)[0], 200)


def _written(front: Front, call: Call, chunks: list[Chunk]) -> bytes:
    if call.request.stream:
        events = front.events(call)
        return b"".join([*map(events.event, chunks), events.end()])
    whole = front.whole(call)
    for chunk in chunks:
        whole.add(chunk)
    return whole.body()


def _told(chunks: list[Chunk]) -> dict[str, Json]:
    """As ``meter`` has it."""
    told: dict[str, Json] = {"chunks_after_first": sum(bool(chunk.delta) for chunk in chunks[1:])}
    usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage is not None), None)
    if usage is not None:
        told["prompt_tokens"] = usage.prompt
        told["completion_tokens"] = usage.completion
        told["cached_tokens"] = usage.cached
        if usage.cache_write:
            told["cache_write_tokens"] = usage.cache_write
        told["reasoning_tokens"] = usage.reasoning
    return told
