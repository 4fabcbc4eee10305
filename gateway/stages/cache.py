"""Serves an answer again where one is cached, shares one in flight, and caches what is complete and good."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from contextlib import aclosing

from gateway.caching.answers import CachedAnswer, Recording
from gateway.caching.cache_control import CacheControl, read_cache_control
from gateway.caching.caches import CacheEntry, Caches, is_unscanned
from gateway.caching.semantic import Facts
from gateway.caching.single_flight import Flight, LeaderFailed
from gateway.errors import NotCached
from gateway.observe.metrics import Metrics
from gateway.types import Call, Candidate, Chunk, Chunks, Handler, Json, Stage, WholeHandler

HEADER = "x-tollgate-cache"


def cache(caches: Caches, metrics: Metrics) -> Stage:
    """One policy generation's ``caches``. Sets ``call.cached``, and ``x-tollgate-cache`` where there are any."""

    def stage(following: Handler) -> Handler:
        if caches.enabled:
            return _Cached(caches, CacheRecorder(metrics), following)
        return lambda call: (
            not_cached() if read_cache_control(call.cache_control).only_if_cached else following(call)
        )

    return stage


def without_caches(following: WholeHandler) -> WholeHandler:
    """Where there are none."""

    def asked(call: Call) -> Awaitable[Sequence[Chunk]]:
        if call.cache_control and read_cache_control(call.cache_control).only_if_cached:
            raise _error()
        return following(call)

    return asked


class CacheRecorder:
    """What the caches did for a request: its header, its receipt, the metrics."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def count(self, cache: str, result: str) -> None:
        self._metrics.cache.labels(cache, result).inc()

    def looked(self, cache: str, began: float) -> None:
        """A look-up began at ``began`` (``time.perf_counter()``)."""
        self._metrics.cache_seconds.labels(cache).observe(time.perf_counter() - began)

    def result(self, call: Call, result: str, **facts: Json) -> None:
        call.reply_headers[HEADER] = result
        call.receipt.note("cache", result=result, **facts)

    def served(self, call: Call, cache: str, candidate: Candidate, **facts: Json) -> None:
        """The answer is one that ``candidate`` gave before."""
        call.cached = cache
        call.candidate = candidate
        self.result(call, cache, **facts)


class _Cached:
    """The stage as a handler."""

    def __init__(self, caches: Caches, recorder: CacheRecorder, following: Handler) -> None:
        self._caches = caches
        self._recorder = recorder
        self._following = following

    def __call__(self, call: Call) -> Chunks:
        wanted = read_cache_control(call.cache_control)
        # A question that no guard could judge is answered for its caller alone.
        private = wanted.no_store or is_unscanned(call, "guard_input")
        entry = None if private else self._caches.entry(call)
        if entry is not None:
            return self._answer(call, entry, wanted)
        self._recorder.result(call, "bypass")
        if wanted.only_if_cached:
            return not_cached()
        self._recorder.count("exact", "bypass")
        return self._following(call)

    async def _answer(self, call: Call, entry: CacheEntry, wanted: CacheControl) -> Chunks:
        began = time.perf_counter()
        found = None if wanted.no_cache else await self._find(call, entry, wanted)
        seconds = time.perf_counter() - began
        call.receipt.note("cache", began=round(began - call.started, 6), seconds=round(seconds, 6))
        if found is not None:
            for chunk in found.chunks(stream=call.request.stream):
                yield chunk
            return
        self._recorder.result(call, "bypass" if wanted.no_cache else "miss")
        if wanted.only_if_cached:
            raise _error()
        if wanted.no_cache:
            self._recorder.count("exact", "bypass")
        elif self._shares(call):
            try:
                async with aclosing(self._flight(call, entry).join(call).read()) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            except LeaderFailed:
                call.cached = None
                self._recorder.result(call, "miss")
        async with aclosing(self._recorded(call, entry, Recording())) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _find(self, call: Call, entry: CacheEntry, wanted: CacheControl) -> CachedAnswer | None:
        caches, recorder = self._caches, self._recorder
        if caches.exact is not None:
            began = time.perf_counter()
            found = await caches.find(entry, max_age=wanted.max_age)
            if caches.is_remote:
                recorder.looked("exact", began)
            recorder.count("exact", "hit" if found is not None else "miss")
            if found is not None:
                answer, age = found
                recorder.served(call, "exact", caches.answered_by(answer), age=round(age, 1))
                return answer
        return await self._find_alike(call, entry, wanted)

    async def _find_alike(self, call: Call, entry: CacheEntry, wanted: CacheControl) -> CachedAnswer | None:
        caches, recorder = self._caches, self._recorder
        if caches.semantic is None or entry.partition is None:
            return None
        began = time.perf_counter()
        facts: Facts = {}
        found = await caches.find_alike(entry.partition, facts, max_age=wanted.max_age)
        recorder.looked("semantic", began)
        call.receipt.note("cache", **facts)
        result = "hit" if found is not None else str(facts.get("semantic"))
        if caches.semantic.config.mode == "shadow":
            recorder.count("semantic", f"shadow_{result}")
            call.receipt.note("cache", would_serve=found is not None)
            return None
        recorder.count("semantic", result)
        if found is not None:
            recorder.served(call, "semantic", caches.answered_by(found))
        return found

    def _shares(self, call: Call) -> bool:
        """Whether ``call`` may share an answer in flight. One with a deadline of its own does not wait for others,
        and nobody waits for a line of a batch."""
        exact = self._caches.exact
        return exact is not None and exact.single_flight and call.deadline is None and call.line is None

    def _flight(self, call: Call, entry: CacheEntry) -> Flight:
        """The same request in flight, or ``call`` as the first."""
        key = (entry.key, call.request.stream, call.principal.tier)
        flight = self._caches.flights.find(key)
        if flight is None:

            def source(call: Call, recording: Recording) -> Chunks:
                return self._recorded(call, entry, recording)

            return self._caches.flights.start(key, call, source, max_entry=self._caches.max_entry)
        call.cached = "exact"
        self._recorder.result(call, "exact", shared=flight.call.request_id)
        self._recorder.count("exact", "shared")
        return flight

    async def _recorded(self, call: Call, entry: CacheEntry, recording: Recording) -> Chunks:
        caches = self._caches
        max_entry = caches.max_entry
        cut = False
        async with aclosing(self._following(call)) as chunks:
            async for chunk in chunks:
                if chunk.comment is None:
                    if recording.size <= max_entry:
                        recording.add(chunk)
                    if chunk.revocation is not None:
                        # At once: the caller may leave before the end.
                        cut = True
                        caches.evict(entry)
                yield chunk
        if cut:
            outcome = "cut"
        elif recording.size > max_entry:
            outcome = "too_long"
        else:
            outcome = caches.keep(call, entry, recording)
        call.receipt.note("cache", outcome=outcome)
        self._recorder.count("exact" if caches.exact is not None else "semantic", outcome)


async def not_cached() -> Chunks:
    raise _error()
    yield


def _error() -> NotCached:
    return NotCached(
        "No answer to this request is cached, and its cache-control says only-if-cached. "
        "Leave that out to ask the model.",
        headers={"x-should-retry": "false"},  # which OpenAI's and Anthropic's clients heed
    )
