"""How much of a prompt each replica holds in its KV cache, as far as anybody knows.

``Holdings`` is the question that ``select: score`` asks of each request. ``RoutedHoldings`` answers it by what was sent
where: it needs nothing of a server but the size of its KV cache, and forgets what a server of that size must have
evicted. Who knows better, by a server's own events, takes its place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.routing.affinity import Prefix
from gateway.types import Call

PIECE = 512
"""Bytes of a prompt that are remembered together; about 128 tokens of English."""
LONGEST = 512 * 1024
"""Bytes of a prompt that are looked at; what follows counts as held by nobody."""
MAX_PIECES = 2**18
"""Of all replicas together, in about 40 MB."""
UNTOLD = 2**13
"""Pieces that a replica is taken to hold that does not tell its size: a million tokens."""
SHRINK, GROW, LEAST = 0.95, 1.02, 1 / 64
"""Of the share of a replica's cache that prompts from here have."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as those see it who choose a replica for it."""

    prefix: Prefix
    """Its prompt in pieces, which are equal where all before them is equal, too."""
    tokens: int
    """Of the whole prompt, as estimated; at least 1."""
    answer: int = 0
    """Tokens of the expected answer."""
    piece_tokens: float = PIECE / 4
    """Of one piece."""
    call: Callable[[], Call | None] | None = None
    """The request itself, where it is one of the gateway's own, while it is there: what is remembered of many requests
    does not keep their texts."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Of one prompt: how many tokens it has, and how many of these, from its beginning, each replica holds. Who is not
    named holds none."""

    tokens: int
    held: Mapping[str, int]


class Holdings(Protocol):
    """All calls are plain and quick, on the event loop: what takes long (a prompt's tokens) was done before."""

    def of(self, asked: Asked, replicas: Sequence[str], /) -> Holding: ...

    def sent(self, asked: Asked, replica: str, /) -> None:
        """``replica`` computes this prompt now, and holds it from then on."""
        ...

    def answered(self, asked: Asked, replica: str, expected: int, cached: int, /) -> None:
        """It had ``cached`` tokens of the prompt, where it was thought to hold ``expected``."""
        ...

    def ended(self, asked: Asked, replica: str, /) -> None:
        """It has answered, or will not: nothing more comes of what was ``sent``."""
        ...

    def emptied(self, replica: str, /) -> None:
        """It was started again, or is gone."""
        ...

    def resize(self, replica: str, tokens: int, /) -> None:
        """It told for how many tokens its KV cache has room."""
        ...

    def keep(self, replicas: Collection[str], /) -> None:
        """Forget all others."""
        ...


class RoutedHoldings:
    """By what was sent where; bounded, and forgotten as each replica must have forgotten it: what was used longest ago.

    A prompt's last pieces are entered first, so of each piece that a replica holds it holds all before it, too.
    """

    def __init__(self, *, most: int = MAX_PIECES) -> None:
        self._most = most
        """Pieces of all replicas together."""
        self._pieces: dict[str, OrderedDict[int, None]] = {}
        """Of each replica, the longest unused first."""
        self._room: dict[str, int] = {}
        """Tokens, as told."""
        self._share: dict[str, float] = {}
        """Of that room, what prompts that are sent from here have."""

    def of(self, asked: Asked, replicas: Sequence[str]) -> Holding:
        held: dict[str, int] = {}
        blocks = asked.prefix.blocks
        for name in replicas:
            pieces = self._pieces.get(name)
            if pieces is None or blocks[0] not in pieces:
                continue
            # The first of those that are missing.
            low, high = 1, len(blocks)
            while low < high:
                middle = (low + high) // 2
                if blocks[middle] in pieces:
                    low = middle + 1
                else:
                    high = middle
            held[name] = min(asked.tokens, int(low * asked.piece_tokens))
        return Holding(asked.tokens, held)

    def sent(self, asked: Asked, replica: str) -> None:
        pieces = self._pieces.setdefault(replica, OrderedDict())
        for block in reversed(asked.prefix.blocks):
            pieces[block] = None
            pieces.move_to_end(block)
        self._evict(replica, pieces, asked.piece_tokens)

    def answered(self, asked: Asked, replica: str, expected: int, cached: int) -> None:
        """Others send it prompts, too, of which nothing is known here: then it forgets sooner than its size says."""
        if expected > asked.piece_tokens:
            share = self._share.get(replica, 1.0)
            grown = share * (SHRINK if cached < expected / 2 else GROW)
            self._share[replica] = min(1.0, max(LEAST, grown))

    def ended(self, asked: Asked, replica: str) -> None:
        """It is held all the same: a prompt that was computed in part is rare."""

    def emptied(self, replica: str) -> None:
        self._pieces.pop(replica, None)

    def resize(self, replica: str, tokens: int) -> None:
        if tokens > 0:
            self._room[replica] = tokens

    def keep(self, replicas: Collection[str]) -> None:
        self._pieces = {name: one for name, one in self._pieces.items() if name in replicas}
        self._room = {name: one for name, one in self._room.items() if name in replicas}
        self._share = {name: one for name, one in self._share.items() if name in replicas}

    def _evict(self, replica: str, pieces: OrderedDict[int, None], piece_tokens: float) -> None:
        room = self._room.get(replica)
        told = UNTOLD if room is None else room / max(piece_tokens, 1.0)
        most = max(1, int(told * self._share.get(replica, 1.0)))
        while len(pieces) > most:
            pieces.popitem(last=False)
        excess = sum(map(len, self._pieces.values())) - self._most
        if excess > 0:
            fullest = max(
                self._pieces.values(), key=len
            )  # it has more than its part, and so at least as many
            for _ in range(excess):
                fullest.popitem(last=False)
