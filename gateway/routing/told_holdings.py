"""What replicas say that they hold, where they say it, in the place of what was sent there.

What they say comes when a prompt is computed. Until then it is held where it was sent: requests that come together with
the same beginning go to one replica.

What one says is believed as far as its answers bear it out: they tell how many of a prompt's tokens were cached. A
replica that claims what it does not have loses its credit, and with it what its claims are worth; it is asked like one
that holds nothing, and gets its credit back as time goes by. Nobody is shut out by a figure.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from gateway.routing.held import Asked, Holding, Holdings, RoutedHoldings
from gateway.types import Call

CREDIT_HALF_LIFE = 60.0
"""Seconds in which half of what is missing of a replica's credit comes back by itself."""
_STEP = 0.3
"""How much one answer counts against all before it."""
_ENOUGH = 64
"""Tokens that a replica should have had, for its answer to tell anything."""
_AT_ONCE = 32
"""Prompts on their way to a replica that are remembered, the last ones."""
_REMEMBERED = 4096
_COMPUTED = 10.0
"""Seconds after which a prompt is computed, or never will be."""


class Claim(Protocol):
    @property
    def tokens(self) -> int: ...

    @property
    def held(self) -> Mapping[str, int]: ...


class Claims(Protocol):
    """What replicas say that they hold of a prompt."""

    def of(self, call: Call, replicas: Sequence[str], /) -> Claim | None: ...


class Credit:
    """How far each replica's claims are believed: 1 at first, and never 0 for long."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, float]] = {}

    def of(self, replica: str) -> float:
        if (known := self._known.get(replica)) is None:
            return 1.0
        credit, since = known
        missing: float = (1.0 - credit) * 0.5 ** ((self._clock() - since) / CREDIT_HALF_LIFE)
        return 1.0 - missing

    def answered(self, replica: str, claimed: int, cached: int) -> None:
        """``claimed``: tokens of the prompt that it said it holds."""
        if claimed >= _ENOUGH:
            credit = self.of(replica)
            self._known[replica] = credit + _STEP * (min(1.0, cached / claimed) - credit), self._clock()

    def keep(self, replicas: Collection[str]) -> None:
        self._known = {name: one for name, one in self._known.items() if name in replicas}


class OnTheirWay:
    """Prompts that were sent, and of which nothing can be told yet."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sent: dict[str, dict[int, tuple[float, Asked]]] = {}
        """By replica and identity, the oldest first."""

    def sent(self, asked: Asked, replica: str) -> None:
        its = self._sent.setdefault(replica, {})
        its[id(asked)] = self._clock(), asked
        if len(its) > _AT_ONCE:
            del its[next(iter(its))]

    def ended(self, asked: Asked, replica: str) -> None:
        self._sent.get(replica, {}).pop(id(asked), None)

    def held(self, asked: Asked, replica: str) -> int:
        """Tokens of ``asked`` that are being computed there."""
        its, most, blocks = self._sent.get(replica), 0, asked.prefix.blocks
        if not its:
            return 0
        since = self._clock() - _COMPUTED
        for name, (at, other) in list(its.items()):
            if at < since:
                del its[name]
                continue
            theirs = other.prefix.blocks
            # Blocks are hashes of all before them, too: those that agree come first.
            low, high = most, min(len(blocks), len(theirs))
            while low < high:
                middle = (low + high) // 2
                if blocks[middle] == theirs[middle]:
                    low = middle + 1
                else:
                    high = middle
            most = max(most, low)
        return min(asked.tokens, int(most * asked.piece_tokens))

    def keep(self, replicas: Collection[str]) -> None:
        self._sent = {name: one for name, one in self._sent.items() if name in replicas}


class ToldHoldings:
    """``Holdings`` of those that say what they hold; of the others, and of prompts whose tokens are not known in time,
    what was sent there."""

    def __init__(self, claims: Claims, sent: Holdings | None = None, credit: Credit | None = None) -> None:
        self.credit = credit or Credit()
        self._claims = claims
        self._on_their_way = OnTheirWay()
        self._claimed: OrderedDict[int, tuple[Asked, Claim]] = OrderedDict()
        """Of prompts that are routed, by identity."""
        self._sent: Holdings = sent or RoutedHoldings()

    def of(self, asked: Asked, replicas: Sequence[str]) -> Holding:
        guessed = self._sent.of(asked, replicas)
        call = asked.call() if asked.call is not None else None
        claim = self._claims.of(call, replicas) if call is not None else None
        if claim is None:
            return guessed
        self._claimed[id(asked)] = asked, claim
        while len(self._claimed) > _REMEMBERED:
            self._claimed.popitem(last=False)
        scale = claim.tokens / max(1, guessed.tokens)
        held = {name: min(claim.tokens, int(tokens * scale)) for name, tokens in guessed.held.items()}
        for name, tokens in claim.held.items():
            believed = min(claim.tokens, tokens) * self.credit.of(name)
            coming = min(claim.tokens, self._on_their_way.held(asked, name) * scale)
            held[name] = int(max(believed, coming))
        return Holding(claim.tokens, held)

    def sent(self, asked: Asked, replica: str) -> None:
        self._on_their_way.sent(asked, replica)
        self._sent.sent(asked, replica)

    def answered(self, asked: Asked, replica: str, expected: int, cached: int) -> None:
        _, claim = self._claimed.get(id(asked), (asked, None))
        if claim is not None:
            self.credit.answered(replica, claim.held.get(replica, 0), cached)
        self._sent.answered(asked, replica, expected, cached)

    def ended(self, asked: Asked, replica: str) -> None:
        self._on_their_way.ended(asked, replica)
        self._claimed.pop(id(asked), None)
        self._sent.ended(asked, replica)

    def emptied(self, replica: str) -> None:
        self._sent.emptied(replica)

    def resize(self, replica: str, tokens: int) -> None:
        self._sent.resize(replica, tokens)

    def keep(self, replicas: Collection[str]) -> None:
        self.credit.keep(replicas)
        self._on_their_way.keep(replicas)
        self._sent.keep(replicas)
