"""How far predictions are off: what requests took as a multiple of what was predicted for them."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable

CHANCE = 0.05
"""Of being in time: a request with less is refused."""
_ERRORS = 200
"""The last ones of each kind of request."""
_KINDS = 512
_PACE = 0.01
"""Of the correction: some hundred requests."""

Kinds = tuple[Hashable, ...]
"""What a request is counted as, the narrowest first: the first of which enough is known decides."""


class PredictionErrors:
    """How long an answer will be is not known, so a prediction alone says little: answers of a tenth of the mean length
    are common. But how the truth is distributed around predictions is known from the requests before, and holds for the
    next one, whatever the distribution is (split conformal prediction, https://arxiv.org/abs/2107.07511). Where it
    changes, more may be sooner than they were said to be, and what is said is corrected until it is right again
    (https://arxiv.org/abs/2106.00170).
    """

    def __init__(self) -> None:
        self._level = CHANCE
        self._errors: OrderedDict[Hashable, deque[float]] = OrderedDict()
        """The kind that was learned last is the last."""

    def learn(self, kinds: Kinds, predicted: float, seconds: float, *, soonest: float = 0.0) -> None:
        """One that was ``predicted`` to take so long, and hardly less than ``soonest``, took ``seconds``."""
        if predicted <= 0:
            return
        if soonest > 0 or not self._level:
            early = seconds < soonest
            self._level = min(CHANCE, max(0.0, self._level + _PACE * (CHANCE - early)))
        for kind in kinds:
            errors = self._errors.setdefault(kind, deque(maxlen=_ERRORS))
            self._errors.move_to_end(kind)
            errors.append(seconds / predicted)
        while len(self._errors) > _KINDS:
            self._errors.popitem(last=False)

    def soonest(self, kinds: Kinds, predicted: float, chance: float | None = None) -> float:
        """Seconds that it takes at least, except with a probability of ``chance``; by default of ``CHANCE``, corrected.
        0 where too little is known."""
        level = self._level if chance is None else chance
        for kind in kinds:
            errors = self._errors.get(kind, ())
            place = int(level * (len(errors) + 1))
            if place:
                return predicted * sorted(errors)[place - 1]
        return 0.0

    def doubt(self, kinds: Kinds) -> None:
        """A request was refused, of which nobody learns what it would have taken: the oldest of what is known counts no
        longer, so that refusals for what is past come to an end."""
        for kind in kinds:
            if errors := self._errors.get(kind):
                errors.popleft()
