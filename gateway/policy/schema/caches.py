"""``caches``: when an answer may be given again."""

from __future__ import annotations

from typing import Literal

from gateway.policy.schema.values import Count, Duration, Frozen, Share, Size, Timeout


class AnyCache(Frozen):
    ttl: Timeout = 3600.0
    max_bytes: Size = 256 * 2**20
    """In memory; a Redis store has bounds of its own."""
    max_entry: Size = 2**20
    """Longer answers are not kept."""
    per: Literal["tenant", "key"] = "tenant"
    """Who shares answers: a tenant's keys, or nobody but the key itself."""


class ExactCache(AnyCache):
    """The same request again gets the same answer."""

    single_flight: bool = True
    """Equal concurrent requests share one call upstream."""


class SemanticCache(AnyCache):
    """A question that means the same gets the same answer."""

    mode: Literal["on", "shadow", "off"] = "on"
    """``shadow`` only reports what it would have served."""
    error_budget: Share = 0.05
    """Share of its answers that may be for another question; the verifier's threshold follows from it."""
    threshold: Share = 0.0
    """Questions less alike than this (cosine) are never considered."""
    max_entries: Count = 100_000
    time_sensitive_ttl: Duration = 0.0
    """For questions whose answer changes with the time; 0 is not at all."""


class CacheSettings(Frozen):
    exact: ExactCache | None = None
    semantic: SemanticCache | None = None
