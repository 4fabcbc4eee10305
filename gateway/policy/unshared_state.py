"""What several workers do not share where their state is in their own memory."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.policy.limited import has_limits
from gateway.policy.schema import CacheSettings, Policy


def unshared_state(policy: Policy, workers: int) -> Iterator[str]:
    if workers == 1:
        return
    if policy.store == "memory" and has_limits(policy):
        yield (
            f"store: memory with {workers} workers: each counts quotas and budgets by itself, so that up to "
            f"{workers} times as much is admitted. Write 'store: redis://…' for limits that hold, or serve with "
            "--workers 1"
        )
    if policy.where_caches_are == "memory" and policy.caches != CacheSettings():
        yield (
            f"store: memory with {workers} workers: each keeps its own caches, so that an answer is made up to "
            f"{workers} times before all have it. Write 'store: redis://…' to share them, or serve with --workers 1"
        )
