"""How many tokens to guess: as many as make the most tokens a second, by what was measured; none where none pay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

_MARGIN = 1.03
"""What guessing must promise over not guessing: less is noise."""
_BASELINES = 3
"""Steps without guesses before the first with."""
_RENEWAL = 64
"""One in so many steps goes without guesses, to learn anew what that takes."""
_RESTS = (64, 1024)
"""Steps from a trial that found guesses not to pay to the next: at first, and after many of them."""
_SHARE = 0.02
"""Of the time between trials, what a trial may have cost."""
_REPAID = 1 / 64
"""Part of the time spent on preparing requests that each step with guesses is charged."""
_CUTS = 16
"""Numbers of guesses that are compared."""


class Lengths:
    """The *base* of a step is its tokens, guesses aside: what a guess costs depends on it above all.

    For steps of about the same base a curve holds the seconds that they took by how many guesses they checked, the
    making of these guesses included. Each request has its own acceptance: the chance that a guess comes true if those
    before it did. The likeliest guesses of all requests are taken together, as many as make

        (base + expected guesses that come true) / seconds

    the largest. Where none do, guessing rests, and is tried again after a while: the longer, the more often it failed
    and the more the trial cost. A large batch leaves no arithmetic idle, so there a curve is steep and guessing ends by
    itself; when the batch is small again, another curve counts.
    """

    def __init__(self, most: int) -> None:
        """``most`` guesses a request and step."""
        self._trial = [length for i in range(most.bit_length()) for length in [min(2**i, most)] * 2]
        if most & (most - 1):
            self._trial += [most] * 2
        self._curves: dict[int, _Curve] = {}
        self._current = _Curve([])
        self._usual = _Acceptance(0.5, slowest=0.004)
        self._own: dict[int, _Acceptance] = {}
        self._debt = 0.0

    def asleep(self, base: int) -> bool:
        """Whether nothing is to be guessed after a step of this base."""
        return self._curve(base).rest > 0

    def choose(self, base: int, rooms: Mapping[int, int]) -> dict[int, int]:
        """``rooms``: how many guesses there could be for each request. How many there are to be, at least 1 each."""
        curve = self._current = self._curve(base)
        if curve.rest or not rooms or curve.baselines < _BASELINES:
            return {}
        if curve.trial:
            return {request_id: min(room, curve.trial[0]) for request_id, room in rooms.items()}
        curve.turn = (curve.turn + 1) % _RENEWAL
        if curve.turn == 0:
            return {}
        lengths = self._best(curve, base, rooms, self._own)
        if lengths:
            curve.interval = _RESTS[0]
        elif not self._best(curve, base, rooms, {}):
            # Not these requests alone, nor one streak of bad luck.
            curve.rest = max(curve.interval, int(curve.lost / (_SHARE * curve.estimate(0))))
            curve.interval = min(2 * curve.interval, _RESTS[1])
            curve.trial, curve.lost = list(self._trial), 0.0
        for request_id in rooms.keys() - lengths.keys():
            # Who is not guessed for becomes as the others, until it is tried again.
            if own := self._own.get(request_id):
                own.fade(self._usual.value)
        return dict(lengths)

    def judge(self, request_id: int, guesses: int, accepted: int) -> None:
        """Of so many guesses for a request so many came true, one after the other."""
        own = self._own.get(request_id)
        if own is None:
            own = self._own[request_id] = _Acceptance(self._usual.value, slowest=0.05)
        for acceptance in (own, self._usual):
            acceptance.add(accepted, accepted < guesses)

    def observe(self, base: int, guesses: int, accepted: int, seconds: float) -> None:
        """A step took ``seconds``, and so did the making of the guesses that it checked."""
        if base < 1:
            return
        curve = self._curve(base)
        curve.rest -= curve.rest > 0
        if guesses:
            repaid = self._debt * _REPAID
            self._debt -= repaid
            seconds += repaid
            if curve.trial and curve.baselines:
                del curve.trial[0]
                curve.lost += max(0.0, seconds - curve.estimate(0) * (base + accepted) / base)
        else:
            curve.baselines += 1
        curve.add(guesses, seconds)

    def prepared(self, seconds: float) -> None:
        """What had to be done once, before the requests chosen last could be guessed for, took ``seconds``."""
        self._debt += seconds
        if self._current.trial:
            self._current.lost += seconds

    def forget(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._own.pop(request_id, None)

    def _curve(self, base: int) -> _Curve:
        """That of all bases with the same first two bits."""
        shift = max(0, base.bit_length() - 2)
        key = base >> shift << shift
        if key not in self._curves:
            self._curves[key] = _Curve(list(self._trial))
        return self._curves[key]

    def _best(
        self, curve: _Curve, base: int, rooms: Mapping[int, int], own: Mapping[int, _Acceptance]
    ) -> Counter[int]:
        chances = []
        for request_id, room in rooms.items():
            acceptance, chance = own.get(request_id, self._usual).value, 1.0
            for _ in range(room):
                chance *= acceptance
                chances.append((chance, request_id))
        chances.sort(reverse=True)
        stride = max(1, len(chances) // _CUTS)
        best, cut, expected = _MARGIN * base / curve.estimate(0), 0, float(base)
        for count, (chance, _) in enumerate(chances, 1):
            expected += chance
            if count % stride == 0 or count == len(chances):
                rate = expected / curve.estimate(count)
                if rate > best:
                    best, cut = rate, count
        return Counter(request_id for _, request_id in chances[:cut])


class _Curve:
    """Seconds by guesses: moving means of both, for each power of two of guesses, and straight lines between."""

    __slots__ = ("_points", "baselines", "interval", "lost", "rest", "trial", "turn")

    def __init__(self, trial: list[int]) -> None:
        self.trial = trial
        """Lengths that are to be tried before any is chosen."""
        self.rest = 0
        """Steps until they are."""
        self.interval = _RESTS[0]
        self.turn = 0
        self.lost = 0.0
        """Seconds that the trial took more than steps without guesses would have for as many tokens."""
        self.baselines = 0
        self._points: dict[int, tuple[int, float, float]] = {}
        """(samples, guesses, seconds)"""

    def add(self, guesses: int, seconds: float) -> None:
        key = guesses.bit_length()
        count, mean_guesses, mean_seconds = self._points.get(key, (0, 0.0, 0.0))
        if count:
            # Whatever held a step up once is not what such steps take.
            seconds = min(seconds, 4 * mean_seconds)
        count += 1
        weight = max(1 / count, 1 / 8)
        self._points[key] = (
            count,
            mean_guesses + weight * (guesses - mean_guesses),
            mean_seconds + weight * (seconds - mean_seconds),
        )

    def estimate(self, guesses: int) -> float:
        """Beyond what was measured, the last line goes on."""
        points = [self._points[key][1:] for key in sorted(self._points)]
        if len(points) == 1:
            return max(points[0][1], 1e-9)
        above = next((i for i, (x, _) in enumerate(points) if i and x >= guesses), len(points) - 1)
        (x0, y0), (x1, y1) = points[above - 1 : above + 1]
        slope = (y1 - y0) / (x1 - x0)
        return max(y0 + slope * (guesses - x0), y1 if guesses > x1 else 0.0, 1e-9)


class _Acceptance:
    """A moving share; each of the first few samples counts as much as those before it together would have it."""

    __slots__ = ("_count", "_slowest", "value")

    def __init__(self, value: float, *, slowest: float) -> None:
        self.value = value
        self._slowest = slowest
        self._count = 4

    def add(self, right: int, wrong: bool) -> None:
        for sample in [1.0] * right + [0.0] * wrong:
            self._count += 1
            self.value += max(self._slowest, 1 / self._count) * (sample - self.value)
        self.value = min(self.value, 0.99)

    def fade(self, target: float) -> None:
        self.value += 0.02 * (target - self.value)
