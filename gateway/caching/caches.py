"""The caches of one policy generation: what is looked for where, and what is worth keeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, Self

import orjson

from gateway.caching.answers import CLIPPED, CachedAnswer, Recording, unpack
from gateway.caching.exact import AnswerStore, MemoryAnswerStore, open_redis_answers
from gateway.caching.key import Fingerprints, Partition, cache_key, partition
from gateway.caching.semantic import Facts, Semantic
from gateway.caching.single_flight import Flights
from gateway.policy.schema import ExactCache, Policy, Target, Timeouts
from gateway.sidecar.api import Sidecar
from gateway.types import Call, Candidate

DEGRADED = frozenset({"fallback", "downgrade"})
"""Why a candidate other than the requested model's own answered."""

RENDERED_DIVISOR = 8
"""Rendered answers get the bytes of an exact cache in memory divided by this."""


class Closable(Protocol):
    async def aclose(self) -> None: ...


class CacheEntry:
    """Where the answer to a request is cached, or would be."""

    __slots__ = ("key", "partition")

    def __init__(self, key: str, partition: Partition | None) -> None:
        self.key = key
        self.partition = partition


class Caches:
    """``open`` makes the first and, from the one before, each that follows."""

    def __init__(
        self,
        policy: Policy,
        answers: AnswerStore | None,
        semantic: Semantic | None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.exact: ExactCache | None = policy.caches.exact if answers is not None else None
        self.answers = answers
        self.semantic = semantic
        self.is_remote = not isinstance(answers, MemoryAnswerStore | None)
        """Whether a look-up is a network round trip."""
        config = self.exact or (semantic.config if semantic is not None else None)
        self._per = config.per if config is not None else "tenant"
        self.flights = Flights()
        self._policy = policy
        self._fingerprints = Fingerprints(policy)
        self._candidates: dict[tuple[str, str, str], Candidate] = {}
        self._clock = clock

    @classmethod
    def open(
        cls,
        policy: Policy,
        *,
        is_time_sensitive: Callable[[str], bool],
        sidecar: Sidecar | None = None,
        before: Caches | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """``before`` is the current generation: its answers are kept where the store is the same.

        Connects, and starts what runs in the background, at the first need only.
        """
        config = policy.caches
        semantic = None
        if config.semantic is not None and config.semantic.mode != "off" and sidecar is not None:
            semantic = Semantic(
                config.semantic, sidecar, is_time_sensitive, projects=policy.drift is not None
            )
        return cls(policy, _answers(policy, before), semantic, clock=clock)

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def resources(self) -> tuple[Closable, ...]:
        """To be closed once no generation in use refers to them."""
        return tuple(one for one in (self.flights, self.semantic, self.answers) if one is not None)

    @property
    def enabled(self) -> bool:
        return self.answers is not None or self.semantic is not None

    @property
    def store(self) -> str:
        return self._policy.where_caches_are

    def entry(self, call: Call) -> CacheEntry | None:
        """None where no cache could store the answer to ``call``."""
        if call.request.api is not None:
            return None
        fingerprint = self._fingerprints.of(
            call.model, call.principal.tenant, call.principal.key_id, call.route
        )
        try:
            similar = None
            if self.semantic is not None:
                similar = partition(call, fingerprint, self.semantic.config.per)
            if self.exact is None and similar is None:
                return None
            return CacheEntry(cache_key(call, fingerprint, self._per), similar)
        except orjson.JSONEncodeError:
            return None

    async def find(self, entry: CacheEntry, *, max_age: float | None) -> tuple[CachedAnswer, float] | None:
        """The answer to this very request, and its age in seconds."""
        if self.answers is None or self.exact is None:
            return None
        packed = await self.answers.get(entry.key)
        if packed is None or (answer := unpack(packed)) is None:
            return None
        age = self.age(answer.stored)
        return (answer, age) if age is not None and (max_age is None or age <= max_age) else None

    def age(self, stored: float) -> float | None:
        """Seconds since ``stored`` (Unix time); None where that is longer than the time to live."""
        age = max(0.0, self._clock() - stored)
        return age if self.exact is not None and age <= self.exact.ttl else None

    async def find_alike(
        self, partition: Partition, facts: Facts, *, max_age: float | None
    ) -> CachedAnswer | None:
        """The answer to a question with the same meaning. ``facts`` get what was found."""
        if self.semantic is None:
            return None
        look = await self.semantic.look_up(partition, facts, max_age=max_age)
        return unpack(look.hit.payload) if look is not None and look.hit is not None else None

    def answered_by(self, answer: CachedAnswer) -> Candidate:
        """The candidate that gave ``answer``."""
        who = (answer.model, answer.backend, answer.target_model)
        known = self._candidates.get(who)
        if known is None:
            model = self._policy.models.get(answer.model)
            timeouts = model.timeouts if model is not None else Timeouts()
            target = Target(backend=answer.backend, model=answer.target_model)
            known = self._candidates[who] = Candidate(answer.model, target, timeouts, "cache")
        return known

    def keep(self, call: Call, entry: CacheEntry, recording: Recording) -> str:
        """Cache a whole answer, and return ``kept``, or why it is not cached."""
        candidate = call.candidate
        if is_unscanned(call, "guard_output"):
            return "unscanned"
        if not recording.is_whole(call.request):
            return "incomplete"
        if CLIPPED in call.reply_headers and not recording.stopped():
            return "clipped"
        if candidate is None or self._is_degraded(call, candidate):
            return "degraded"
        try:
            packed = recording.pack(candidate, self._clock())
        except orjson.JSONEncodeError:
            return "not_json"
        kept = False
        if self.answers is not None and self.exact is not None and len(packed) <= self.exact.max_entry:
            self.answers.put(entry.key, packed, self.exact.ttl)
            kept = True
        if (
            self.semantic is not None
            and entry.partition is not None
            and recording.stopped()
            and not recording.tools
        ):
            kept = self.semantic.remember(entry.partition, entry.key, packed) or kept
        return "kept" if kept else "not_kept"

    def evict(self, entry: CacheEntry) -> None:
        """An answer to this request was found to be bad: remove whatever is cached."""
        if self.answers is not None:
            self.answers.evict(entry.key)
        if self.semantic is not None and entry.partition is not None:
            self.semantic.forget(entry.partition, entry.key)

    @property
    def rendered_bytes(self) -> int:
        """The part of the exact cache's bytes that is for rendered answers."""
        return self.exact.max_bytes // RENDERED_DIVISOR if self.exact is not None else 0

    @property
    def max_entry(self) -> int:
        """The longest answer that any of them stores."""
        exact = self.exact.max_entry if self.exact is not None else 0
        return max(exact, self.semantic.config.max_entry if self.semantic is not None else 0)

    def _is_degraded(self, call: Call, candidate: Candidate) -> bool:
        """Whether a stand-in answered for the model that the name means."""
        if candidate.why in DEGRADED or candidate.model not in self._fingerprints.own_models(call.model):
            return True
        # A cascade whose last step fails returns an earlier step's answer, good enough or not.
        steps = call.receipt.notes.get("cascade", {}).get("steps") or [{}]
        return bool(steps[-1].get("verdict") == "failed")


def is_unscanned(call: Call, guard: str) -> bool:
    """Whether ``guard_input`` or ``guard_output`` let something pass that it could not scan."""
    return call.receipt.notes.get(guard, {}).get("scanned") is False


def _answers(policy: Policy, before: Caches | None) -> AnswerStore | None:
    config = policy.caches.exact
    if config is None:
        return None
    kept = before.answers if before is not None and before.store == policy.where_caches_are else None
    if policy.where_caches_are != "memory":
        return kept or open_redis_answers(policy.where_caches_are)
    max_bytes = config.max_bytes - config.max_bytes // RENDERED_DIVISOR
    if isinstance(kept, MemoryAnswerStore):
        kept.resize(max_bytes)
        return kept
    return MemoryAnswerStore(max_bytes)
