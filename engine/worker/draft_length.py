"""How many draft tokens to propose: the number that yields most tokens a second by measurement, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

MARGIN = 1.03
"""Predicted gain over steps without draft tokens that speculation needs: less is noise."""
_BASELINES = 3
"""Steps without draft tokens before the first with."""
_RENEWAL = 64
"""One in so many steps runs without draft tokens, to measure the baseline again."""
_PAUSES = (64, 1024)
"""Steps from a trial that found speculation not to pay to the next: at first, and after many of them."""
_TRIAL_SHARE = 0.02
"""Share of the time between trials that a trial may have cost."""
_REPAYMENT = 1 / 64
"""Part of the time spent on preparing requests that each step with draft tokens is charged."""
_CUTS = 16
"""Numbers of draft tokens that are compared."""


class DraftLengthPolicy:
    """A cost curve for each batch size, an acceptance rate for each request.

    The *base* of a step is its tokens without draft tokens: what a draft token costs depends on it above all. For
    steps of about the same base a curve holds the seconds that they took by how many draft tokens they verified, the
    time to propose them included. A request's acceptance rate is the probability that a draft token is accepted if
    those before it were. The likeliest draft tokens of all requests are taken together, as many as maximize

        (base + expected accepted draft tokens) / seconds

    A large batch leaves no arithmetic unit idle, so its curve is steep and speculation ends by itself; when the batch
    is small again, another curve counts. Each step moves the curve of its base through these states::

                     3 baselines                trial lengths measured
        ┌──────────┐             ┌───────────┐                        ┌─────────────────┐
        │ baseline │────────────►│   trial   │───────────────────────►│     active      │
        │ choose 0 │             │ choose 1, │                        │ choose the best │──┐ every 64th step:
        └──────────┘             │ 2, 4 … N  │                        │   cut of the    │  │ choose 0, to
                                 └───────────┘                        │ expected tokens │◄─┘ measure the baseline
                                       ▲                              └────────┬────────┘
                                       │ after 64 to 1024 steps:     no length │ pays, neither by the requests' own
                                       │ the longer, the more often            ▼ acceptance nor by the usual one
                                       │ trials failed and the more    ┌─────────────────┐
                                       └───────────────────────────────│     paused      │
                                         the last one cost             │    choose 0     │
                                                                       └─────────────────┘

    and, in every state::

        choose(base, limits) ─► lengths ─► proposer ─► next step verifies ─► record_acceptance(drafted, accepted)
                                                                          └► observe(base, drafted, accepted, seconds)
    """

    def __init__(self, most: int) -> None:
        """``most`` draft tokens a request and step."""
        self._trial = [length for i in range(most.bit_length()) for length in [min(2**i, most)] * 2]
        if most & (most - 1):
            self._trial += [most] * 2
        self._curves: dict[int, CostCurve] = {}
        self._current = CostCurve([])
        self._usual = AcceptanceRate(0.5, slowest=0.004)
        self._own: dict[int, AcceptanceRate] = {}
        self._unpaid = 0.0
        """Seconds of preparation that no step was charged yet."""

    def paused(self, base: int) -> bool:
        """Whether nothing is to be proposed after a step of this base."""
        return self._curve(base).pause > 0

    def choose(self, base: int, limits: Mapping[int, int]) -> dict[int, int]:
        """By request, how many draft tokens to propose: from 1 to ``limits``. Requests that get none are left out."""
        curve = self._current = self._curve(base)
        if curve.pause or not limits or curve.baselines < _BASELINES:
            return {}
        if curve.trial:
            return {request_id: min(limit, curve.trial[0]) for request_id, limit in limits.items()}
        curve.turn = (curve.turn + 1) % _RENEWAL
        if curve.turn == 0:
            return {}
        lengths = self._best(curve, base, limits, self._own)
        if lengths:
            curve.interval = _PAUSES[0]
        elif not self._best(curve, base, limits, {}):
            # Not only for these requests, and not for one streak of bad luck.
            curve.pause = max(curve.interval, int(curve.trial_cost / (_TRIAL_SHARE * curve.estimate(0))))
            curve.interval = min(2 * curve.interval, _PAUSES[1])
            curve.trial, curve.trial_cost = list(self._trial), 0.0
        for request_id in limits.keys() - lengths.keys():
            # Without draft tokens there is no evidence: its rate drifts to the usual one, until it is tried again.
            if own := self._own.get(request_id):
                own.drift(self._usual.value)
        return dict(lengths)

    def record_acceptance(self, request_id: int, drafted: int, accepted: int) -> None:
        """The first ``accepted`` of a request's ``drafted`` draft tokens were accepted."""
        own = self._own.get(request_id)
        if own is None:
            own = self._own[request_id] = AcceptanceRate(self._usual.value, slowest=0.05)
        for rate in (own, self._usual):
            rate.add(accepted, accepted < drafted)

    def observe(self, base: int, drafted: int, accepted: int, seconds: float) -> None:
        """A step took ``seconds``, including the time to propose the draft tokens that it verified."""
        if base < 1:
            return
        curve = self._curve(base)
        curve.pause -= curve.pause > 0
        if drafted:
            payment = self._unpaid * _REPAYMENT
            self._unpaid -= payment
            seconds += payment
            if curve.trial and curve.baselines:
                del curve.trial[0]
                curve.trial_cost += max(0.0, seconds - curve.estimate(0) * (base + accepted) / base)
        else:
            curve.baselines += 1
        curve.add(drafted, seconds)

    def record_preparation(self, seconds: float) -> None:
        """One-off work before the requests chosen last could get draft tokens took ``seconds``."""
        self._unpaid += seconds
        if self._current.trial:
            self._current.trial_cost += seconds

    def forget(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._own.pop(request_id, None)

    def _curve(self, base: int) -> CostCurve:
        """The curve of all bases with the same two leading bits."""
        shift = max(0, base.bit_length() - 2)
        key = base >> shift << shift
        if key not in self._curves:
            self._curves[key] = CostCurve(list(self._trial))
        return self._curves[key]

    def _best(
        self, curve: CostCurve, base: int, limits: Mapping[int, int], own: Mapping[int, AcceptanceRate]
    ) -> Counter[int]:
        chances = []
        for request_id, limit in limits.items():
            rate, chance = own.get(request_id, self._usual).value, 1.0
            for _ in range(limit):
                chance *= rate
                chances.append((chance, request_id))
        chances.sort(reverse=True)
        stride = max(1, len(chances) // _CUTS)
        best, cut, expected = MARGIN * base / curve.estimate(0), 0, float(base)
        for count, (chance, _) in enumerate(chances, 1):
            expected += chance
            if count % stride == 0 or count == len(chances):
                speed = expected / curve.estimate(count)
                if speed > best:
                    best, cut = speed, count
        return Counter(request_id for _, request_id in chances[:cut])


class CostCurve:
    """Seconds by draft tokens: moving means of both, for each power of two of draft tokens, linear in between."""

    __slots__ = ("_points", "baselines", "interval", "pause", "trial", "trial_cost", "turn")

    def __init__(self, trial: list[int]) -> None:
        self.trial = trial
        """Lengths that are to be tried before any is chosen."""
        self.pause = 0
        """Steps until the trial."""
        self.interval = _PAUSES[0]
        self.turn = 0
        self.trial_cost = 0.0
        """Seconds that the trial took more than steps without draft tokens would have for as many tokens."""
        self.baselines = 0
        self._points: dict[int, tuple[int, float, float]] = {}
        """(samples, draft tokens, seconds)"""

    def add(self, drafted: int, seconds: float) -> None:
        key = drafted.bit_length()
        count, mean_drafted, mean_seconds = self._points.get(key, (0, 0.0, 0.0))
        if count:
            # A single stall of the machine is not what such steps take.
            seconds = min(seconds, 4 * mean_seconds)
        count += 1
        weight = max(1 / count, 1 / 8)
        self._points[key] = (
            count,
            mean_drafted + weight * (drafted - mean_drafted),
            mean_seconds + weight * (seconds - mean_seconds),
        )

    def estimate(self, drafted: int) -> float:
        """Seconds of a step with so many draft tokens. Beyond what was measured, the last segment is extended."""
        points = [self._points[key][1:] for key in sorted(self._points)]
        if len(points) == 1:
            return max(points[0][1], 1e-9)
        above = next((i for i, (x, _) in enumerate(points) if i and x >= drafted), len(points) - 1)
        (x0, y0), (x1, y1) = points[above - 1 : above + 1]
        slope = (y1 - y0) / (x1 - x0)
        return max(y0 + slope * (drafted - x0), y1 if drafted > x1 else 0.0, 1e-9)


class AcceptanceRate:
    """A moving average; the starting value weighs as much as four samples."""

    __slots__ = ("_count", "_slowest", "value")

    def __init__(self, value: float, *, slowest: float) -> None:
        self.value = value
        self._slowest = slowest
        self._count = 4

    def add(self, accepted: int, rejected: bool) -> None:
        for sample in [1.0] * accepted + [0.0] * rejected:
            self._count += 1
            self.value += max(self._slowest, 1 / self._count) * (sample - self.value)
        self.value = min(self.value, 0.99)

    def drift(self, target: float) -> None:
        self.value += 0.02 * (target - self.value)
