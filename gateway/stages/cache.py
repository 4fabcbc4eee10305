"""Gives an answer again where one is kept, shares one that is under way, and keeps what is whole and good."""

from __future__ import annotations

import time
from contextlib import aclosing

from gateway.caching.answers import Answer, Recording
from gateway.caching.caches import Caches, Entry, is_unscanned
from gateway.caching.control import Control, control
from gateway.caching.flight import AskYourself, Reader
from gateway.caching.semantic import Facts
from gateway.errors import NotCached
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunks, Handler, Json, Stage

HEADER = "x-tollgate-cache"


def cache(caches: Caches, metrics: Metrics) -> Stage:
    """One policy generation's ``caches``. Sets ``call.cached``, and ``x-tollgate-cache`` where there are any."""

    def count(name: str, result: str) -> None:
        metrics.cache.labels(name, result).inc()

    def stage(following: Handler) -> Handler:
        if not caches.enabled:
            return lambda call: nothing() if control(call.cache_control).only_if_cached else following(call)

        def handle(call: Call) -> Chunks:
            wanted = control(call.cache_control)
            # A question that no guard could judge is answered for its caller alone.
            alone = wanted.no_store or is_unscanned(call, "guard_input")
            entry = None if alone else caches.entry(call)
            if entry is None:
                told(call, "bypass")
                if wanted.only_if_cached:
                    return nothing()
                count("exact", "bypass")
                return following(call)
            return answer(call, entry, wanted)

        async def answer(call: Call, entry: Entry, wanted: Control) -> Chunks:
            if wanted.no_cache:
                told(call, "bypass")
                if wanted.only_if_cached:
                    raise not_cached()
                count("exact", "bypass")
            elif (found := await look(call, entry, wanted)) is not None:
                for chunk in found.chunks(stream=call.request.stream):
                    yield chunk
                return
            elif wanted.only_if_cached:
                told(call, "miss")
                raise not_cached()
            else:
                told(call, "miss")
                if caches.exact is not None and caches.exact.single_flight and call.deadline is None:
                    try:
                        async with aclosing(board(call, entry).read()) as chunks:
                            async for chunk in chunks:
                                yield chunk
                        return
                    except AskYourself:
                        call.cached = None
                        told(call, "miss")
            async with aclosing(recorded(call, entry, Recording())) as chunks:
                async for chunk in chunks:
                    yield chunk

        async def look(call: Call, entry: Entry, wanted: Control) -> Answer | None:
            if caches.exact is not None:
                began = time.perf_counter()
                found = await caches.find(entry, max_age=wanted.max_age)
                if caches.asks_far:
                    metrics.cache_seconds.labels("exact").observe(time.perf_counter() - began)
                count("exact", "hit" if found is not None else "miss")
                if found is not None:
                    serve(call, found[0], "exact", age=round(found[1], 1))
                    return found[0]
            if caches.semantic is None or entry.asked is None:
                return None
            began = time.perf_counter()
            facts: Facts = {}
            alike = await caches.find_alike(entry.asked, facts, max_age=wanted.max_age)
            metrics.cache_seconds.labels("semantic").observe(time.perf_counter() - began)
            call.receipt.note("cache", **facts)
            shadow = caches.semantic.config.mode == "shadow"
            result = "hit" if alike is not None else str(facts.get("semantic"))
            count("semantic", f"shadow_{result}" if shadow else result)
            if alike is None or shadow:
                if shadow:
                    call.receipt.note("cache", would_serve=alike is not None)
                return None
            serve(call, alike, "semantic")
            return alike

        def serve(call: Call, found: Answer, name: str, **facts: Json) -> None:
            call.cached = name
            call.candidate = caches.answered_by(found)
            told(call, name, **facts)

        def board(call: Call, entry: Entry) -> Reader:
            """Read along where the same is under way already, or start it."""
            key = (entry.key, call.request.stream, call.principal.tier)
            flight = caches.flights.find(key)
            if flight is None:

                def source(call: Call, recording: Recording) -> Chunks:
                    return recorded(call, entry, recording)

                flight = caches.flights.start(key, call, source, max_entry=caches.max_entry)
            else:
                call.cached = "exact"
                told(call, "exact")
                call.receipt.note("cache", shared=flight.call.request_id)
                count("exact", "shared")
            return flight.join(call)

        async def recorded(call: Call, entry: Entry, recording: Recording) -> Chunks:
            most = caches.max_entry
            cut = False
            async with aclosing(following(call)) as chunks:
                async for chunk in chunks:
                    if chunk.comment is None:
                        if recording.size <= most:
                            recording.add(chunk)
                        if chunk.revocation is not None:
                            # At once: the caller may leave before the end.
                            cut = True
                            caches.evict(entry)
                    yield chunk
            if cut:
                outcome = "cut"
            elif recording.size > most:
                outcome = "too_long"
            else:
                outcome = caches.keep(call, entry, recording)
            call.receipt.note("cache", outcome=outcome)
            count("exact" if caches.exact is not None else "semantic", outcome)

        return handle

    return stage


def told(call: Call, result: str, **facts: Json) -> None:
    call.reply_headers[HEADER] = result
    call.receipt.note("cache", result=result, **facts)


def not_cached() -> NotCached:
    return NotCached(
        "No answer to this request is cached, and its cache-control says only-if-cached. "
        "Leave that out to ask the model.",
        headers={"x-should-retry": "false"},  # which OpenAI's and Anthropic's clients heed
    )


async def nothing() -> Chunks:
    raise not_cached()
    yield
