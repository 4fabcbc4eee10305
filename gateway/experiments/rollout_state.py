"""How far a roll-out has come, and what its evidence leads to: one document, the same for all who serve the model.

``running`` goes up by steps and ends as ``completed`` (every request goes to the new target), ``returned`` (a guard
found it worse: none does) or ``stopped`` (a person did).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import orjson

from gateway.experiments.assignment import CONTROL, NEW
from gateway.experiments.evidence import BLOCK, Evidence, Seen
from gateway.policy.schema import Rollout

FALSE_RETURNS = 0.05
"""The most of all roll-outs without a difference that may return. The guards of one share it equally."""
Status = Literal["running", "completed", "returned", "stopped"]
What = Literal["began", "step", "completed", "returned", "stopped"]
MOST_DECISIONS = 50
"""That are kept, of all runs."""
Json = dict[str, Any]


def enough(guards: int) -> float:
    """The logarithm of the evidence by which one of so many guards brings a roll-out back."""
    return math.log(max(1, guards) / FALSE_RETURNS)


@dataclass(frozen=True, slots=True)
class Decision:
    number: int
    """From 1, over all runs."""
    at: float
    """Unix time."""
    run: int
    what: What
    share: float
    """Per cent of keys that go to the new target from now on."""
    why: str
    by: Mapping[str, str] | None = None
    """Who decided (``Actor.content``); None is the gateway."""

    def to_json(self) -> Json:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class RolloutState:
    run: int = 0
    """How often it was begun."""
    status: Status = "running"
    share: float = 0.0
    """Per cent of keys that go to the new target."""
    since: float = 0.0
    """When the present step, or the end, began (Unix time)."""
    owner: str = ""
    """Who decides, until ``lease`` (Unix time)."""
    lease: float = 0.0
    evidence: Evidence = field(default_factory=Evidence)
    decisions: list[Decision] = field(default_factory=list)
    told: int = 0
    """The number of the last decision that was told: see ``untold``."""

    @property
    def is_running(self) -> bool:
        return self.run > 0 and self.status == "running"

    @property
    def decided(self) -> int:
        """The number of its last decision."""
        return self.decisions[-1].number if self.decisions else 0

    def copy(self) -> Self:
        return self.decode(self.encode())

    def begin(self, rollout: Rollout, now: float, by: Mapping[str, str] | None = None) -> None:
        """Anew, from the first step and without evidence."""
        self.run += 1
        self.evidence = Evidence()
        self.status = "running"
        self._decide("began", rollout.steps[0], now, f"the first of {len(rollout.steps)} steps", by)

    def stop(self, now: float, by: Mapping[str, str] | None = None) -> None:
        self.status = "stopped"
        self._decide("stopped", 0.0, now, "a person stopped it", by)

    def add(self, run: int, seen: Seen, rollout: Rollout) -> None:
        """What was seen in ``run``; of an earlier one it says nothing any more."""
        if run == self.run and self.status == "running":
            self.evidence.add(seen, rollout.guard.tolerated)

    def decide(self, rollout: Rollout, now: float) -> None:
        """Return where a guard says so, go on where the step has lasted long enough, or wait."""
        if self.status != "running":
            return
        guards = rollout.guard.tolerated
        for guard, tolerated in guards.items():
            if self.evidence.log_evidence(guard, tolerated) >= enough(len(guards)):
                self.status = "returned"
                self._decide("returned", 0.0, now, self._complaint(guard, tolerated), None)
                return
        if now - self.since < rollout.hold or self.evidence.in_step < BLOCK:
            return
        following = next((step for step in rollout.steps if step > self.share), 100.0)
        if following >= 100.0 and self._unscored(rollout):
            return
        why = f"no guard objects after {self.evidence.in_step} requests in this step"
        self.evidence.next_step()
        if following >= 100.0:
            self.status = "completed"
            self._decide("completed", 100.0, now, why, None)
        else:
            self._decide("step", following, now, why, None)

    def waits_for(self, rollout: Rollout, now: float) -> str:
        """For people: what has to happen before the next step."""
        if self.status != "running":
            return ""
        missing = BLOCK - self.evidence.in_step
        left = self.since + rollout.hold - now
        if left > 0:
            return f"{math.ceil(left / 60)} min" if left > 90 else f"{math.ceil(left)} s"
        if missing > 0:
            return f"{missing} more requests to the new target"
        is_last = not any(self.share < step < 100.0 for step in rollout.steps)
        unscored = self._unscored(rollout) if is_last else 0
        return f"{unscored} more scores of the new target" if unscored else "its next look"

    def _unscored(self, rollout: Rollout) -> int:
        """Scores of the new target that are missing before a guard of scores lets everybody go to it."""
        if rollout.guard.score is None:
            return 0
        return max(0, BLOCK - self.evidence.scored(NEW)[0])

    def untold(self) -> Iterator[Decision]:
        """Decisions for which callbacks and the audit log are still due. Whoever tells them may be killed before that
        is noted: then they are told again."""
        return (one for one in self.decisions if one.number > self.told)

    def _complaint(self, guard: str, tolerated: float) -> str:
        new, control = self.evidence.total[NEW], self.evidence.total[CONTROL]
        if guard == "score":
            (count, mean), (others, usual) = self.evidence.scored(NEW), self.evidence.scored(CONTROL)
            often = "more often than" if tolerated == 1 else f"more than {tolerated:g} times as often as"
            seen = f"{mean or 0:.2f} of {count}, control {usual or 0:.2f} of {others}"
            return f"score: {seen}: low ones {often} the control's"
        if guard in ("errors", "refusals"):
            seen = f"{getattr(new, guard)} of {new.requests}, control {getattr(control, guard)} of {control.requests}"
        elif guard == "ttft_p95":
            seen = f"{new.ttft_p95.quantile(0.95) or 0:.3g} s, control {control.ttft_p95.quantile(0.95) or 0:.3g} s"
        else:
            dollars = ((one.cost.quantile(0.5) or 0) / 1e9 for one in (new, control))
            seen = "{:.3g} $, control {:.3g} $".format(*dollars)
        more = f" more than {tolerated:g} times" if tolerated != 1 else " more than"
        return f"{guard}: {seen}:{more} the control's"

    def _decide(self, what: What, share: float, now: float, why: str, by: Mapping[str, str] | None) -> None:
        self.share, self.since = float(share), now
        self.decisions.append(Decision(self.decided + 1, now, self.run, what, self.share, why, by))
        del self.decisions[:-MOST_DECISIONS]

    def encode(self) -> bytes:
        return orjson.dumps(
            {
                **{name: getattr(self, name) for name in _PLAIN},
                "evidence": self.evidence.to_json(),
                "decisions": [one.to_json() for one in self.decisions],
            }
        )

    @classmethod
    def decode(cls, document: bytes) -> Self:
        content = orjson.loads(document)
        return cls(
            **{name: content[name] for name in _PLAIN},
            evidence=Evidence.from_json(content["evidence"]),
            decisions=[Decision(**one) for one in content["decisions"]],
        )


_PLAIN = ("run", "status", "share", "since", "owner", "lease", "told")
