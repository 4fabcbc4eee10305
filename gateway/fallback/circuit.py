"""One circuit of a breaker: what became of the requests of its members, and whether more of them are let through."""

from __future__ import annotations

from collections.abc import Callable

from gateway.policy import schema

SOON = 1.0
"""Seconds after which to ask again while the probe is under way: how long it takes nobody knows."""
MOST_MEMBERS = 1000
"""Counted each by itself; those beyond are counted as one."""
FEWEST = 2
"""Failures that the others must have met: one is chance."""


class Circuit:
    """Closed, it lets everything through; open, nothing; half-open, once the cooldown is over, a single probe.

    A request from before it opened says nothing about the target as it is now: only the probe does.
    """

    def __init__(
        self, clock: Callable[[], float], on_change: Callable[[int, float], None], *, alone: bool
    ) -> None:
        """``alone``: its only member is enough to open it. ``on_change`` is told of failures and the cooldown when it
        opens, of none when it has closed."""
        self.cooldown = 0.0
        """Seconds for which it stays open."""
        self._clock = clock
        self._on_change = on_change
        self._alone = alone
        self._window = _Window()
        self._opened: float | None = None
        self._seen = clock()
        self._probe: object | None = None
        self._unlucky: str | None = None
        """Whose probe failed last. The cooldown is its alone: by failing each time it could keep it open for all."""

    @property
    def closed(self) -> bool:
        return self._opened is None

    def wait(self, member: str | None) -> float:
        """Seconds until a request of ``member`` may pass; 0 if one may now. None is anybody."""
        if self._opened is None:
            return 0.0
        left = self._opened + self.cooldown - self._clock()
        if left > 0 and (self._unlucky is None or member is None or member == self._unlucky):
            return left
        return SOON if self._probe is not None else 0.0

    def lets(self, trial: object) -> None:
        """``trial`` passes; the one that passes while it is not closed is the probe."""
        if self._opened is not None:
            self._probe = trial

    def succeeded(self, trial: object, member: str | None) -> None:
        self._seen = self._clock()
        if trial is self._probe:
            self.close()
        elif self._opened is None:
            self._window.add(member, self._seen, failed=False)

    def failed(self, trial: object, member: str | None, limits: schema.Breaker) -> None:
        self._seen = self._clock()
        self.cooldown = limits.cooldown
        if trial is self._probe:
            self._probe = None
            self._opened = self._seen
            again = self._alone or self._unlucky not in (None, member)
            self._unlucky = None if again else member
        elif self._opened is None:
            self._window.span = limits.window
            self._window.add(member, self._seen, failed=True)
            if failures := self._window.sick(limits, alone=self._alone):
                self._opened = self._seen
                self._on_change(failures, limits.cooldown)

    def let_go(self, trial: object) -> None:
        if trial is self._probe:
            self._probe = None

    def proven(self) -> None:
        """The target serves again."""
        if self._opened is not None:
            self._opened = float("-inf")

    def close(self) -> None:
        """Whatever was counted is forgotten."""
        was_open = self._opened is not None
        self._probe = self._opened = self._unlucky = None
        self._window.clear()
        if was_open:
            self._on_change(0, 0.0)

    def is_over(self, now: float) -> bool:
        """Whether nothing has happened on it for so long that it has nothing to say."""
        return self._probe is None and now - self._seen > self._window.span + self.cooldown


class _Window:
    """How many requests of each member ended in the last ``span`` seconds or so, and how many of them had failed."""

    def __init__(self) -> None:
        self.span = 0.0
        self._now: dict[str | None, list[int]] = {}
        self._before: dict[str | None, list[int]] = {}
        """Two halves of the window. The older one counts in full until it is dropped."""
        self._turns = float("-inf")

    def add(self, member: str | None, at: float, *, failed: bool) -> None:
        if at >= self._turns:
            recent = at < self._turns + self.span / 2
            self._before, self._now = (self._now if recent else {}), {}
            self._turns = at + self.span / 2
        if member not in self._now and len(self._now) >= MOST_MEMBERS:
            member = None
        counts = self._now.setdefault(member, [0, 0])
        counts[0] += 1
        counts[1] += failed

    def sick(self, limits: schema.Breaker, *, alone: bool) -> int:
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
        others = failed - most >= min(FEWEST, limits.failures) and failed - limits.share * asked >= excess
        return failed if alone or others else 0

    def clear(self) -> None:
        self._now, self._before = {}, {}
