"""One circuit of a breaker: the outcomes of its members' requests, and whether more of them may pass."""

from __future__ import annotations

from collections.abc import Callable

from gateway.policy import schema

PROBE_RETRY_AFTER = 1.0
"""Seconds after which to try again while the probe is in flight, which may take any time."""
MAX_MEMBERS = 1000
"""Counted each on its own; those beyond are counted as one."""
MIN_OTHERS_FAILED = 2
"""Failures of members other than the worst: one is chance."""


class Circuit:
    """Closed, everything passes; open, nothing; half-open, once the cooldown is over, a single probe.

    The outcome of a request from before it opened is ignored: only the probe's counts.
    """

    def __init__(
        self, clock: Callable[[], float], on_change: Callable[[int, float], None], *, alone: bool
    ) -> None:
        """``alone``: its only member is enough to open it. ``on_change`` takes the failures and the cooldown when it
        opens, 0 failures when it closes."""
        self.cooldown = 0.0
        """Seconds for which it stays open."""
        self._clock = clock
        self._on_change = on_change
        self._alone = alone
        self._window = _Window()
        self._opened: float | None = None
        self._seen = clock()
        self._probe: object | None = None
        self._failed_prober: str | None = None
        """The member whose probe failed last. Its cooldown is its own: it could keep the circuit open for all."""

    @property
    def is_closed(self) -> bool:
        return self._opened is None

    def wait(self, member: str | None) -> float:
        """Seconds until a request of ``member`` may pass; 0 if one may now. None is anybody."""
        if self._opened is None:
            return 0.0
        left = self._opened + self.cooldown - self._clock()
        if left > 0 and (self._failed_prober is None or member is None or member == self._failed_prober):
            return left
        return PROBE_RETRY_AFTER if self._probe is not None else 0.0

    def admitted(self, permit: object) -> None:
        """``permit`` passes; the one that passes while it is not closed is the probe."""
        if self._opened is not None:
            self._probe = permit

    def succeeded(self, permit: object, member: str | None) -> None:
        self._seen = self._clock()
        if permit is self._probe:
            self.close()
        elif self._opened is None:
            self._window.add(member, self._seen, failed=False)

    def failed(self, permit: object, member: str | None, limits: schema.BreakerSettings) -> None:
        self._seen = self._clock()
        self.cooldown = limits.cooldown
        if permit is self._probe:
            self._probe = None
            self._opened = self._seen
            again = self._alone or self._failed_prober not in (None, member)
            self._failed_prober = None if again else member
        elif self._opened is None:
            self._window.span = limits.window
            self._window.add(member, self._seen, failed=True)
            if failures := self._window.trips(limits, alone=self._alone):
                self._opened = self._seen
                self._on_change(failures, limits.cooldown)

    def release(self, permit: object) -> None:
        if permit is self._probe:
            self._probe = None

    def recovered(self) -> None:
        """The target serves again."""
        if self._opened is not None:
            self._opened = float("-inf")

    def close(self) -> None:
        """Reset all counts."""
        was_open = self._opened is not None
        self._probe = self._opened = self._failed_prober = None
        self._window.clear()
        if was_open:
            self._on_change(0, 0.0)

    def is_idle(self, now: float) -> bool:
        """Whether its window and cooldown have passed without a request."""
        return self._probe is None and now - self._seen > self._window.span + self.cooldown


class _Window:
    """How many requests of each member ended in the last ``span`` seconds or so, and how many of them had failed."""

    def __init__(self) -> None:
        self.span = 0.0
        self._now: dict[str | None, list[int]] = {}
        self._before: dict[str | None, list[int]] = {}
        """The window's two halves. The older one counts in full until it is dropped."""
        self._rotates_at = float("-inf")

    def add(self, member: str | None, at: float, *, failed: bool) -> None:
        if at >= self._rotates_at:
            recent = at < self._rotates_at + self.span / 2
            self._before, self._now = (self._now if recent else {}), {}
            self._rotates_at = at + self.span / 2
        if member not in self._now and len(self._now) >= MAX_MEMBERS:
            member = None
        counts = self._now.setdefault(member, [0, 0])
        counts[0] += 1
        counts[1] += failed

    def trips(self, limits: schema.BreakerSettings, *, alone: bool) -> int:
        """The failures, if they are too many: in number, in share, and that without any one of the members."""
        asked = failed = most = 0
        excess = 0.0
        for member in self._now.keys() | self._before.keys():
            of_one = [self._now.get(member, (0, 0)), self._before.get(member, (0, 0))]
            its, lost = sum(one[0] for one in of_one), sum(one[1] for one in of_one)
            asked, failed, most = asked + its, failed + lost, max(most, lost)
            excess = max(excess, lost - limits.share * its)
        if failed < limits.failures or failed < limits.share * asked:
            return 0
        others = (
            failed - most >= min(MIN_OTHERS_FAILED, limits.failures)
            and failed - limits.share * asked >= excess
        )
        return failed if alone or others else 0

    def clear(self) -> None:
        self._now, self._before = {}, {}
