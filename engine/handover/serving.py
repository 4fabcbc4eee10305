"""The giving side in the engine's loop: prompts of other engines as requests, and their blocks as they are computed.

A prompt is a request of one token like any other: it waits its turn, is chunked, and finds what is cached. Blocks are
copied to host memory as soon as they are full, as tiers of memory do anyway, and go from there while others follow.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.tiers.loans import Loans
from engine.core.tiers.remote import HandoverState
from engine.core.tiers.tiered_cache import TieredCache
from engine.errors import ContextLengthExceeded, DeadlineUnreachable, QueueFull
from engine.handover.arena import Arena
from engine.handover.server import Peer, Piece, Server

log = logging.getLogger("engine.handover")

_PATIENCE = 20.0
"""Seconds that the other side may keep what it has been lent."""
_REASSURE = 1.0
"""Seconds after which it is told that its prompt still waits: by the loop, so that one that hangs says nothing."""


@dataclass(slots=True)
class _Job:
    request: Request
    first: int
    """The first block that is wanted,"""
    keys: list[bytes]
    """and those of all from there on."""
    given: int = 0
    cached: int = 0
    """Tokens of the prompt that were there before."""
    told: float = 0.0
    """When the other side last heard of it."""


@dataclass(slots=True)
class _Account:
    """Of one connection."""

    peer: Peer
    job: _Job | None = None
    lent: Counter[int] = field(default_factory=Counter)
    since: float = 0.0
    """When it last gave something back, or was lent the first."""


class Serving:
    def __init__(
        self,
        server: Server,
        scheduler: Scheduler,
        tiers: TieredCache,
        arena: Arena,
        state: HandoverState,
        *,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._scheduler, self._tiers, self._arena = server, scheduler, tiers, arena
        self._loans: Loans = tiers.loans
        self._state = state
        self._vocab_size = vocab_size
        self._clock = clock
        self._ids = itertools.count(-1, -1)
        """Apart from those of the HTTP process, which are positive."""
        self._accounts: dict[int, _Account] = {}
        """By connection."""

    @property
    def busy(self) -> bool:
        """Whether somebody waits for blocks, or has some."""
        return any(account.job is not None or account.lent for account in self._accounts.values())

    def tick(self) -> None:
        """Called when the server has rung, and after each step."""
        now = self._clock()
        for peer in self._server.peers:
            account = self._accounts.get(id(peer))
            if account is None:
                account = self._accounts[id(peer)] = _Account(peer)
            self._take_back(account, now)
            if account.job is not None and not peer.gone:
                self._advance(account, account.job, now)
            while peer.orders and not peer.gone:
                self._take_order(account, peer.orders.popleft(), now)
            if peer.gone:
                self._leave(account)

    def _take_back(self, account: _Account, now: float) -> None:
        while account.peer.returned:
            slot = account.peer.returned.popleft()
            account.since = now
            account.lent[slot] -= 1
            if not account.lent[slot]:
                del account.lent[slot]
            self._loans.take_back(slot, 1.0)
        if account.lent and now - account.since > _PATIENCE:
            log.warning("an engine has kept KV blocks for %.0f s: its connection is closed", _PATIENCE)
            account.since = now
            account.peer.close()

    def _take_order(self, account: _Account, order: Mapping[str, object], now: float) -> None:
        try:
            if account.job is not None:
                raise ValueError("one prompt at a time")
            account.job = self._read(order, now)
        except (KeyError, TypeError, ValueError) as error:
            log.warning("an engine asked for KV blocks in a way that cannot be read: %r", error)
            account.peer.close()
            return
        job = account.job
        if self._lacks(job):
            self._tiers.offer(job.request)
        there = itertools.takewhile(self._loans.host.__contains__, job.keys)
        job.cached = (job.first + sum(1 for _ in there)) * self._scheduler.block_size
        if self._lacks(job):
            try:
                self._scheduler.submit(job.request)
            except (QueueFull, ContextLengthExceeded, DeadlineUnreachable) as error:
                account.job = None
                account.peer.end(refusal=error.message)
                return
        self._advance(account, job, now)

    def _read(self, order: Mapping[str, object], now: float) -> _Job:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        tokens, seconds = order["tokens"], order.get("deadline")
        first, count = int(str(order["first"])), int(str(order["count"]))
        if not isinstance(tokens, list) or not tokens or first < 0 or count < 0:
            raise ValueError("a prompt is a list of tokens, and its blocks begin somewhere")
        if any(type(token) is not int or not 0 <= token < self._vocab_size for token in tokens):
            raise ValueError("a token is none of the model's")
        request = Request(
            next(self._ids),
            tokens,
            SamplingParams(max_tokens=1, temperature=0),
            priority=int(str(order.get("priority", 0))),
            submitted=now,
            deadline=None if seconds is None else now + float(str(seconds)),
            weight=float(str(order.get("weight", 1.0))),
            tenant=str(order.get("tenant", "")),
            salt=bytes.fromhex(str(order.get("salt", ""))),
            shared=int(str(order.get("shared", 0))),
        )
        if self._scheduler.prefixes is None:
            raise ValueError("there is no prefix cache")
        keys = self._tiers.keys(request, self._scheduler.prefixes.root(None))
        return _Job(request, first, keys[first : first + count], told=now)

    def _advance(self, account: _Account, job: _Job, now: float) -> None:
        """Gives what there is by now."""
        ended = job.request.id not in self._scheduler.queues.by_id
        self._tiers.save()
        if ended and self._lacks(job):
            self._tiers.offer(job.request)
        settle, pieces = self._arena.settled(), []
        while job.given < len(job.keys) and (slot := self._loans.lend(job.keys[job.given])) is not None:
            pieces.append(Piece(job.first + job.given, slot, settle))
            if not account.lent:
                account.since = now
            account.lent[slot] += 1
            job.given += 1
        if pieces:
            job.told = now
            account.peer.give(pieces)
            self._state.given_blocks += len(pieces)
        if ended or job.given == len(job.keys):
            # Where all were cached the request was never submitted; one that is to sample its token goes on.
            account.job = None
            account.peer.end(job.cached)
            self._state.given_prompts += bool(job.given)
        elif now - job.told >= _REASSURE:
            job.told = now
            account.peer.reassure()

    def _lacks(self, job: _Job) -> bool:
        """Whether blocks that were not given yet are not in host memory."""
        return not all(map(self._loans.host.__contains__, job.keys[job.given :]))

    def _leave(self, account: _Account) -> None:
        if account.job is not None:
            self._scheduler.abort(account.job.request.id)
        self._state.abandoned += (account.job is not None) + len(account.peer.orders)
        for slot, count in account.lent.items():
            for _ in range(count):
                self._loans.take_back(slot, 1.0)
        del self._accounts[id(account.peer)]
        self._server.forget(account.peer)

    def close(self) -> None:
        self._server.close()
