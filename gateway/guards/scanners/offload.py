"""A guard's fast check in another process: for long texts, and for patterns that may be slow.

``timeout`` holds there, in the middle of a regular expression too: the process is killed and replaced.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Container, Sequence
from functools import lru_cache

from gateway.children.process_pool import PoolBusy, ProcessDied, ProcessPool
from gateway.guards.scanners.pieces import PIECE
from gateway.guards.scanners.scanner import Origin, Scanner, Unscanned, Verdict
from gateway.policy.schema import Policy
from gateway.policy.schema.any_guard import AnyGuard
from gateway.policy.schema.guards import InjectionGuard, TopicsGuard, ToxicityGuard
from gateway.policy.schema.webhook_guard import WebhookGuard
from gateway.regex.linear import are_linear

MAX_WAIT = 30.0
"""Seconds that a piece may wait for its tenant's turn and a free process."""
MAX_MATCHED_INLINE = 16_000
"""Characters of all texts together that a guard with proven linear patterns scans on the event loop: that takes a
millisecond; a round trip to another process takes 0.1 to 0.2 ms, half of it on the event loop."""
MAX_SCORED_INLINE = 2_000
"""The same for guards that score texts, which takes 0.5 to 3 ms for 1,000 characters."""
_MATCHED_PIECE = 64_000
"""Characters of a piece that patterns scan: it must be worth the round trip."""
_CACHED = 16
"""Guards that a process keeps ready."""

_Piece = tuple[str, Origin]


def build_offloads(policy: Policy, pool: ProcessPool | None, judged: Container[str]) -> dict[str, Offload]:
    """By the guard's name, as ``build_scanners`` has them; none without ``pool``. ``judged`` have a judge."""
    if pool is None:
        return {}
    return {
        name: Offload(guard, pool, is_judged=name in judged)
        for name, guard in policy.guards.items()
        if not isinstance(guard, WebhookGuard)
    }


class Offload:
    """The fast check of one guard. ``pool`` has the processes, one at a time for a tenant."""

    def __init__(self, config: AnyGuard, pool: ProcessPool, *, is_judged: bool = False) -> None:
        """``is_judged``: there is a judge for what the fast check leaves undecided."""
        scores = isinstance(config, InjectionGuard | ToxicityGuard)
        unproven = isinstance(config, TopicsGuard) and not are_linear(config.patterns)
        self._at_once = 0 if unproven else MAX_SCORED_INLINE if scores else MAX_MATCHED_INLINE
        self.piece = PIECE if scores or unproven else _MATCHED_PIECE
        """Characters that are scanned at once."""
        self._pool = pool
        self._timeout = config.timeout
        self._remote = _RemoteScanner(pickle.dumps((config, is_judged), pickle.HIGHEST_PROTOCOL))

    def takes(self, characters: int) -> bool:
        """Whether so many are offloaded; for unproven patterns, all are."""
        return characters > self._at_once

    async def quick(self, owner: str, pieces: Sequence[_Piece]) -> list[Verdict | None]:
        """As ``Scanner.quick``, piece by piece. Raises ``TimeoutError`` for all of them, and ``Unscanned``."""
        try:
            return await self._pool.run(owner, self._timeout, self._remote.scan, pieces)
        except PoolBusy:
            raise Unscanned(f"no process was free within {MAX_WAIT:g} s") from None
        except ProcessDied as error:
            raise Unscanned(str(error)) from None


class _RemoteScanner:
    """A guard's scanner in another process. Building it there does not count for the guard's ``timeout``."""

    def __init__(self, spec: bytes) -> None:
        self._spec = spec

    def __reduce__(self) -> tuple[Callable[[bytes], _RemoteScanner], tuple[bytes]]:
        return _unpickled, (self._spec,)

    def scan(self, pieces: Sequence[_Piece]) -> list[Verdict | None]:
        scanner = _scanner(self._spec)
        return [scanner.quick(text, origin) for text, origin in pieces]


def _unpickled(spec: bytes) -> _RemoteScanner:
    _scanner(spec)
    return _RemoteScanner(spec)


@lru_cache(_CACHED)
def _scanner(spec: bytes) -> Scanner:
    # Imported only in processes that scan.
    from gateway.guards.scanners.factory import build_scanner
    from gateway.sidecar.client import NoSidecar

    config, is_judged = pickle.loads(spec)
    return build_scanner(config, NoSidecar(), _NoJudge() if is_judged else None)


class _NoJudge:
    """In place of the judge, which is called in the gateway itself."""

    async def judge(self, texts: Sequence[str], origin: Origin, asker: object = None) -> list[Verdict]:
        raise Unscanned("the judge is not asked from here")
