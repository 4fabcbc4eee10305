"""How a step's prompt tokens are divided among the requests that have a prompt to compute.

Who is first by rank computes its prompt first: with equal parts none would finish earlier, and most would later. But a
prompt much shorter than what the first has left overtakes it, the shortest first, unless its priority is lower. For
each token of those that overtake it the first computes five by the time its prompt is done, so that it takes at most
1.2 times as long as if it were alone, whatever comes. As this holds for whoever is first, each prompt is done within
1.2 times the tokens of those that rank before it and its own: nobody starves. What the first has left counts half in
advance, so that a prompt a tenth as long does not wait at all. At least half of each step is the first one's.

Waiting requests overtake others that wait by the same rule, and leave the next one its slot and its blocks. If there
are too few blocks for the next one, it is compensated like the first.

Tenants have equal parts of each step, and all this applies among the requests of one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.core.admission import Admission
from engine.core.block_tables import BlockTables
from engine.core.request import Request
from engine.core.request_queues import RequestQueues
from engine.core.shares import divide
from engine.core.waiting_queue import RANK

_PRICE = 5
"""Tokens that a request computes for each of those that overtake it: it takes 1 + 1 / 5 times as long at most."""


@dataclass(slots=True)
class Parts:
    tokens: Counter[int] = field(default_factory=Counter)
    """By request: so many of its prompt may be computed in the step."""
    newcomers: list[Request] = field(default_factory=list)
    """Those of them that wait, in the order in which they are to be admitted."""


class PrefillBudget:
    def __init__(
        self, queues: RequestQueues, tables: BlockTables, admission: Admission, *, chunked: bool
    ) -> None:
        """``chunked``: prompts may be computed over several steps. Otherwise none overtakes another."""
        self._queues = queues
        self._tables = tables
        self._admission = admission
        self._chunked = chunked

    def divide(self, tokens: int, *, admitting: bool = True) -> Parts:
        """``tokens`` among running requests and, with ``admitting``, those that wait and could run now. What they do
        not need is for those admitted after them."""
        queues, parts = self._queues, Parts()
        prompts = [
            request
            for request in queues.running
            if len(request.tokens) - request.computed - request.in_flight > 1
        ]
        head = None
        if admitting and self._chunked and queues.waiting and queues.free_slots > 0 and tokens > 0:
            head = self._admission.next()
        if head is None and len(prompts) < 2:
            for request in prompts:
                parts.tokens[request.id] = min(request.missing, tokens)
            return parts
        heads, blocked = self._heads(tokens, prompts, head), None
        if heads:
            prompts = sorted([*prompts, *heads], key=RANK)
        else:
            blocked = head
        others = self._overtaking(prompts, heads, blocked) if self._chunked else []
        if len(queues.tenants) < 2:
            self._share(tokens, prompts, others, blocked, parts)
        else:
            wanted: Counter[str] = Counter()
            for request in prompts:
                wanted[request.tenant] += self._remaining(request)
            for request in others:
                # One that waits counts only where its tenant has no prompt to compute yet.
                wanted.setdefault(request.tenant, self._remaining(request))
            for tenant, part in divide(tokens, wanted).items():
                own, beside = ([one for one in some if one.tenant == tenant] for some in (prompts, others))
                self._share(part, own, beside, blocked, parts)
        first = [request for request in heads if parts.tokens[request.id]]
        parts.newcomers = first + [request for request in parts.newcomers if request not in first]
        return parts

    def _heads(self, tokens: int, prompts: Sequence[Request], head: Request | None) -> list[Request]:
        """``head`` if it can be admitted and, with a single tenant, those that wait after it and could be beside it
        as long as there are ``tokens`` for them."""
        if head is None or not self._admission.can_admit(head):
            return []
        heads, waiting = [head], self._queues.waiting
        if len(self._queues.tenants) > 1:
            return heads
        wanted = sum(map(self._remaining, prompts)) + self._remaining(head)
        for request in itertools.islice(waiting, waiting.ahead(head) + 1, None):
            if self._admission.blocked(request):
                continue
            if wanted >= tokens or not self._admission.beside([request], heads):
                break
            heads.append(request)
            wanted += self._remaining(request)
        return heads

    def _overtaking(
        self, prompts: Sequence[Request], heads: Sequence[Request], blocked: Request | None
    ) -> list[Request]:
        """Those that may overtake others, the first to do so first: running, or waiting and with room to run."""
        firsts = [*prompts, blocked] if blocked is not None else prompts
        longest = max(map(self._allowance, firsts), default=0)
        waiting: list[Request] = []
        if longest > 0 and (heads or blocked):
            known = {blocked.id} if blocked else {request.id for request in heads}
            waiting = [
                request
                for request in self._queues.waiting
                if request.id not in known and self._remaining(request) <= longest
            ]
            waiting.sort(key=self._order)
            waiting = self._admission.beside(waiting, heads)
        if not waiting and len(prompts) < 2:
            return []
        return sorted([*prompts, *waiting], key=self._order)

    def _share(
        self,
        tokens: int,
        prompts: Sequence[Request],
        others: Sequence[Request],
        blocked: Request | None,
        parts: Parts,
    ) -> None:
        """``tokens`` among the requests of one tenant: ``prompts`` in their order, ``others`` where they overtake."""
        for first in prompts:
            left = self._remaining(first) - parts.tokens[first.id]
            if others:
                tokens -= self._overtake(tokens - min(left, -(-tokens // 2)), first, others, blocked, parts)
            count = min(left, tokens)
            parts.tokens[first.id] += count
            tokens -= count
        if blocked is not None and others:
            self._overtake(tokens, None, others, blocked, parts)

    def _overtake(
        self,
        tokens: int,
        first: Request | None,
        others: Sequence[Request],
        blocked: Request | None,
        parts: Parts,
    ) -> int:
        """At most ``tokens`` for those of ``others`` that may overtake ``first`` and, if they wait, ``blocked``, which
        waits for blocks. Returns how many they get."""
        before = tokens
        for other in others:
            if tokens <= 0:
                break
            left = self._remaining(other) - parts.tokens[other.id]
            if other is first or left <= 0:
                continue
            overtaken = [] if first is None else [first]
            if blocked is not None and not other.blocks:
                overtaken.append(blocked)
            if any(other.priority < one.priority or left > self._allowance(one) for one in overtaken):
                continue
            if not other.blocks and other not in parts.newcomers:
                parts.newcomers.append(other)
            count = min(left, tokens)
            parts.tokens[other.id] += count
            tokens -= count
            for one in overtaken:
                one.credit -= _PRICE * count
        return before - tokens

    def _allowance(self, request: Request) -> int:
        """Tokens that may be computed before its own, as things are."""
        return (request.credit + self._remaining(request) // 2) // _PRICE

    def _order(self, request: Request) -> tuple[int, int, tuple[float, int]]:
        return -request.priority, self._remaining(request), request.rank

    def _remaining(self, request: Request) -> int:
        """Tokens to compute: of one that waits, by the last look-up in the prefix cache."""
        chain = request.chain
        if request.blocks or chain is None or not chain.alive:
            return request.missing
        return request.missing - chain.depth * self._tables.block_size
