"""How likely a request gets a slot in time, by what became of others with such a wait before them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque

from gateway.admission.prediction_errors import CHANCE, Kinds

_KNOWN = 200
"""The last ones of each kind of request."""
_KINDS = 512
_NEAR = 40
_ENOUGH = 19
"""Of which none was in time: then one more is with a probability of 5 % at most."""
_TRIED = 4
"""One in so many."""
HOPEFUL = 0.8
"""A part of the longest wait that is not worth a look."""


class _Lately:
    """The last ``_KNOWN`` of one kind: predicted waits, as parts of the longest one, and whether they ended in time."""

    __slots__ = ("_by_part", "_in_order")

    def __init__(self) -> None:
        self._in_order: deque[tuple[float, bool]] = deque()
        self._by_part: list[tuple[float, bool]] = []
        """The same, sorted: a busy backend is asked far more often than it learns."""

    def add(self, one: tuple[float, bool]) -> None:
        self._in_order.append(one)
        insort(self._by_part, one)
        if len(self._in_order) > _KNOWN:
            del self._by_part[bisect_left(self._by_part, self._in_order.popleft())]

    def below(self, part: float) -> list[tuple[float, bool]]:
        """The nearest that were predicted no longer, at most ``_NEAR``."""
        end = bisect_right(self._by_part, (part, True))
        return self._by_part[max(0, end - _NEAR) : end]


class WaitChances:
    """A prediction says little of a queue whose requests leave it once they have waited too long: those behind them
    move up, however long the queue looks. What counts is how many in such a place were served.

    Longer waits are no likelier to end in time than shorter ones, so that what is known of shorter ones is a bound.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[object, _Lately] = OrderedDict()
        """The kind that was learned last is the last."""
        self._hopeless = 0

    def learn(self, kinds: Kinds, part: float, in_time: bool) -> None:
        for kind in kinds:
            known = self._known.get(kind)
            if known is None:
                known = self._known[kind] = _Lately()
            self._known.move_to_end(kind)
            known.add((part, in_time))
        while len(self._known) > _KINDS:
            self._known.popitem(last=False)

    def is_hopeless(self, kinds: Kinds, part: float) -> bool:
        """Whether a request whose predicted wait is such a ``part`` of its longest one has less than ``CHANCE``; not as
        long as too little is known."""
        if part <= HOPEFUL:
            return False
        for kind in kinds:
            known = self._known.get(kind)
            near = known.below(part) if known is not None else ()
            if len(near) >= _ENOUGH:
                return sum(in_time for _, in_time in near) + 1 <= CHANCE * (len(near) + 1)
        return False

    def may_try(self) -> bool:
        """Whether one that is hopeless is let in all the same, to see whether it still is."""
        self._hopeless += 1
        return self._hopeless % _TRIED == 0
