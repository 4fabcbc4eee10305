"""Who gives way so that a model fits: arithmetic on bytes, without a process.

What is loaded counts with all that it may come to take, its whole KV cache included; what sleeps with what it was
measured to take then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Action(Enum):
    SLEEP = "sleep"
    UNLOAD = "unload"


class Change(NamedTuple):
    name: str
    action: Action


@dataclass(frozen=True, slots=True)
class Holding:
    """What a model other than the one that is to fit takes of the budget."""

    name: str
    held: int
    """Bytes that it counts with now."""
    asleep: int | None = None
    """Bytes that it would take asleep; ``None``: it sleeps already, never does, or may not now."""


def make_room(needed: int, free: int, leaving: Sequence[Holding]) -> list[Change] | None:
    """What has to happen so that ``needed`` bytes fit, ``free`` being left now; ``None``: nothing is enough.

    ``leaving`` are those that may give way, the first of them first. Sleep goes before unloading where it is enough,
    and nobody gives way for nothing.
    """
    missing = needed - free
    if missing <= 0:
        return []
    if missing > sum(one.held for one in leaving):
        return None
    found: list[tuple[Holding, Action, int]] = []
    for one in leaving:
        if missing <= 0:
            break
        by_sleep = 0 if one.asleep is None else one.held - one.asleep
        action, gained = (Action.SLEEP, by_sleep) if by_sleep >= missing else (Action.UNLOAD, one.held)
        found.append((one, action, gained))
        missing -= gained
    # Those that came first may have become superfluous by a larger one behind them; the last to go stay first.
    for step in reversed(found[:-1]):
        if missing + step[2] <= 0:
            found.remove(step)
            missing += step[2]
    return [Change(one.name, action) for one, action, _ in found]


def never_fits(need: int, budget: int, pinned: int) -> bool:
    """Whether a model of ``need`` bytes has no place even where only what is ``pinned`` remains."""
    return need + pinned > budget
