"""Two policies on the same traffic: for whom it is worse, and why, with requests by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.lab.replay import decisions as kinds
from gateway.lab.replay.decisions import KINDS, Decision, Decisions
from gateway.metering.price import NANO

LATER = 0.25
"""Seconds by which a first token comes later, or sooner, before anybody says so: beyond it,"""
FACTOR = 1.25
"""and so many times as late."""
RANKS = {
    kinds.ANSWERED: 0,
    kinds.CACHED: 0,
    kinds.LEFT: 0,
    kinds.REROUTED: 1,
    kinds.DOWNGRADED: 1,
    kinds.CUT: 2,
    kinds.BLOCKED: 3,
    kinds.REFUSED: 3,
    kinds.FAILED: 3,
}
"""How bad it is: the model that was asked for answers; another does; a part of an answer; none."""
WORSE, BETTER, SAME = "worse", "better", "same"


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a request, in words that many share."""

    verdict: str
    before: str
    after: str
    lines: str
    """Of the policy that made it so: the second's, or, where that only lets through, the first's."""


@dataclass(slots=True)
class Changed:
    """Requests that changed alike."""

    change: Change
    count: int = 0
    tenants: dict[str, int] = field(default_factory=dict)
    tiers: dict[str, int] = field(default_factory=dict)
    later: float = 0.0
    """Seconds to their first tokens, added up: the second's beyond the first's."""
    cost: int = 0
    """The same of what they cost."""
    examples: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Group:
    worse: int = 0
    better: int = 0
    same: int = 0
    cost: int = 0
    """Nano-dollars beyond the first's."""


@dataclass(slots=True)
class Difference:
    first: Decisions
    second: Decisions
    changes: list[Changed] = field(default_factory=list)
    """The most frequent first."""
    tenants: dict[str, Group] = field(default_factory=dict)
    tiers: dict[str, Group] = field(default_factory=dict)
    all: Group = field(default_factory=Group)

    def data(self) -> dict[str, Any]:
        return {
            "all": _data(self.all),
            "tenants": {name: _data(one) for name, one in self.tenants.items()},
            "tiers": {name: _data(one) for name, one in self.tiers.items()},
            "changes": [
                {
                    "verdict": one.change.verdict,
                    "before": one.change.before,
                    "after": one.change.after,
                    "policy_lines": one.change.lines.splitlines(),
                    "requests": one.count,
                    "tenants": one.tenants,
                    "mean_later_s": round(one.later / one.count, 6),
                    "cost_usd": one.cost / NANO,
                    "examples": [self.example(number) for number in one.examples],
                }
                for one in self.changes
            ],
        }

    def example(self, number: int) -> dict[str, Any]:
        return {
            "request": self.first.called(number),
            "at": self.first.column("at")[number],
            "tenant": self.first.text("tenant", number),
            "before": told(self.first[number]),
            "after": told(self.second[number]),
        }


def spread(numbers: Sequence[int], count: int) -> list[int]:
    """So many of them, evenly."""
    most = min(count, len(numbers))
    return [numbers[place * len(numbers) // most] for place in range(most)]


def _data(group: Group) -> dict[str, Any]:
    counts = {"worse": group.worse, "better": group.better, "same": group.same}
    return counts | {"cost_usd": group.cost / NANO}


def compare(first: Decisions, second: Decisions, examples: int) -> Difference:
    """``examples`` of each change, from all of its time."""
    found = Difference(first, second)
    changes: dict[Change, Changed] = {}
    for number, (before, after) in enumerate(zip(first, second, strict=True)):
        verdict = judged(before, after)
        cost = after.cost - before.cost
        groups = (
            found.all,
            found.tenants.setdefault(before.tenant, Group()),
            found.tiers.setdefault(before.tier, Group()),
        )
        for group in groups:
            setattr(group, verdict, getattr(group, verdict) + 1)
            group.cost += cost
        if verdict == SAME:
            continue
        change = _change(verdict, before, after, first, second)
        one = changes.get(change)
        if one is None:
            one = changes[change] = Changed(change)
        one.count += 1
        one.cost += cost
        one.tenants[before.tenant] = one.tenants.get(before.tenant, 0) + 1
        one.tiers[before.tier] = one.tiers.get(before.tier, 0) + 1
        if before.ttft == before.ttft and after.ttft == after.ttft:
            one.later += after.ttft - before.ttft
        _keep(one, number, examples)
    found.changes = sorted(changes.values(), key=lambda one: (one.change.verdict != WORSE, -one.count))
    found.tenants = dict(sorted(found.tenants.items(), key=lambda item: -item[1].worse))
    found.tiers = dict(sorted(found.tiers.items(), key=lambda item: -item[1].worse))
    return found


def _keep(one: Changed, number: int, examples: int) -> None:
    """The first, and then later ones in their place, evenly: the n-th for n at the powers of two."""
    if len(one.examples) < examples:
        one.examples.append(number)
    elif examples and one.count & (one.count - 1) == 0:
        one.examples[one.count.bit_length() % examples] = number
        one.examples.sort()


def judged(before: Decision, after: Decision) -> str:
    rank = RANKS[after.kind] - RANKS[before.kind]
    if rank:
        return WORSE if rank > 0 else BETTER
    old, new = before.ttft, after.ttft
    if new - old > LATER and new > FACTOR * old:
        return WORSE
    if old - new > LATER and old > FACTOR * new:
        return BETTER
    return SAME


def _change(verdict: str, before: Decision, after: Decision, first: Decisions, second: Decisions) -> Change:
    if RANKS[before.kind] != RANKS[after.kind]:
        deciding = after if RANKS[after.kind] > RANKS[before.kind] else before
        return Change(verdict, _outcome(before), _outcome(after), deciding.lines)
    if verdict == WORSE:
        why, _, lines = _why_slower(after, before, second)
        return Change(verdict, _outcome(before), f"{_outcome(after)}, later: {why}", lines)
    _, why, lines = _why_slower(before, after, first)
    return Change(verdict, _outcome(before), f"{_outcome(after)}, sooner: {why}", lines)


def _why_slower(slow: Decision, quick: Decision, of: Decisions) -> tuple[str, str, str]:
    """Why a first token comes later, why the other one sooner, and the lines of the slow one's policy, ``of``, or of
    the cache that the other one has."""
    if quick.kind == kinds.CACHED != slow.kind:
        return "it is not cached", "it is cached", quick.lines
    if slow.waited == slow.waited and slow.waited > LATER:
        queues: Mapping[str, str] = of.facts.get("queues", {})
        lines = queues.get(f"{slow.tier} {slow.backend}", slow.lines)
        return "it waits for a place", "it waits less for a place", lines
    selects: Mapping[str, str] = of.facts.get("selects", {})
    lines = selects.get(slow.model) or slow.lines
    if slow.cached < quick.cached:
        return "less of its prompt is cached", "more of its prompt is cached", lines
    if slow.backend == quick.backend:
        return "its backend is busier", "its backend is less busy", slow.lines
    return "by another backend", "by another backend", lines


def _outcome(one: Decision) -> str:
    """In words, without what differs from request to request."""
    name = KINDS[one.kind]
    if one.kind in (kinds.REROUTED, kinds.DOWNGRADED):
        return f"{name} to {one.model} ({one.reason})"
    return f"{name} ({one.reason})" if one.reason else name


def told(one: Decision) -> str:
    """One request's, with its figures."""
    said = _outcome(one)
    if one.backend and RANKS[one.kind] < 3:
        said += f", by {one.backend}"
    if one.ttft == one.ttft:
        said += f", first token after {one.ttft:.2f} s"
    if one.waited == one.waited and one.waited > 0.005:
        waited = f"{one.waited:.2f} s in the queue"
        said += f", of which {waited}" if one.ttft == one.ttft else f" after {waited}"
    if one.cached:
        said += f", {one.cached:,} tokens of its prompt cached"
    if one.cost:
        said += f", ${one.cost / NANO:.6f}"
    return said
