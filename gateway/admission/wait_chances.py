"""How likely a request gets a slot in time, by what became of others with such a wait before them."""

from __future__ import annotations

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


class WaitChances:
    """A prediction says little of a queue whose requests leave it once they have waited too long: those behind them
    move up, however long the queue looks. What counts is how many in such a place were served.

    Longer waits are no likelier to end in time than shorter ones, so that what is known of shorter ones is a bound.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[object, deque[tuple[float, bool]]] = OrderedDict()
        """Predicted waits, as parts of the longest one, and whether they ended in time; the kind that was learned last
        is the last."""
        self._hopeless = 0

    def learn(self, kinds: Kinds, part: float, in_time: bool) -> None:
        for kind in kinds:
            known = self._known.setdefault(kind, deque(maxlen=_KNOWN))
            self._known.move_to_end(kind)
            known.append((part, in_time))
        while len(self._known) > _KINDS:
            self._known.popitem(last=False)

    def is_hopeless(self, kinds: Kinds, part: float) -> bool:
        """Whether a request whose predicted wait is such a ``part`` of its longest one has less than ``CHANCE``; not as
        long as too little is known."""
        if part <= HOPEFUL:
            return False
        for kind in kinds:
            near = sorted(one for one in self._known.get(kind, ()) if one[0] <= part)[-_NEAR:]
            if len(near) >= _ENOUGH:
                return sum(in_time for _, in_time in near) + 1 <= CHANCE * (len(near) + 1)
        return False

    def may_try(self) -> bool:
        """Whether one that is hopeless is let in all the same, to see whether it still is."""
        self._hopeless += 1
        return self._hopeless % _TRIED == 0
