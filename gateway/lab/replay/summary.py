"""What one policy did with the traffic: who was refused, by what, who waited how long, what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.lab.bench.percentiles import percentile
from gateway.lab.replay import decisions as kinds
from gateway.lab.replay.decisions import KINDS, Decisions
from gateway.metering.price import NANO

SHOWN = (50, 90, 99)
BUCKETS = 60
"""Of the time of a replay."""
CURVE = (*range(0, 90, 5), *range(90, 99), 99, 99.25, 99.5, 99.75, 99.9, 99.95)
"""Percentiles that are drawn."""


@dataclass(slots=True)
class Group:
    """Of a tenant, or a tier."""

    kinds: list[int] = field(default_factory=lambda: [0] * len(KINDS))
    cost: int = 0
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    waits: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    """Seconds to the first token."""

    @property
    def requests(self) -> int:
        return sum(self.kinds)

    def data(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            **dict(zip(KINDS, self.kinds, strict=True)),
            "cost_usd": self.cost / NANO,
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "cached_tokens": self.cached,
            "wait_s": percentiles(self.waits),
            "ttft_s": percentiles(self.firsts),
        }


def percentiles(ordered: Sequence[float]) -> dict[str, float] | None:
    """None of none."""
    return {f"p{one}": round(percentile(ordered, one), 6) for one in SHOWN} if ordered else None


@dataclass(slots=True)
class Summary:
    """Of one policy. ``name`` is how it was given to the command."""

    name: str
    decisions: Decisions
    all: Group = field(default_factory=Group)
    tenants: dict[str, Group] = field(default_factory=dict)
    tiers: dict[str, Group] = field(default_factory=dict)
    backends: dict[str, Group] = field(default_factory=dict)
    """By who answered, as ``backend``."""
    reasons: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Kind, why, and the policy's lines."""
    arrivals: list[list[int]] = field(default_factory=list)
    """By part of the time: how many of each kind."""
    spent: dict[str, list[int]] = field(default_factory=dict)
    """By tenant: nano-dollars in each part of the time."""
    begin: float = 0.0
    length: float = 0.0
    """Seconds, from the first arrival to the last."""

    def data(self) -> dict[str, Any]:
        facts = self.decisions.facts
        beside: Mapping[str, int] = facts.get("beside", {})
        return {
            "policy": self.name,
            "all": self.all.data(),
            "tenants": {name: one.data() for name, one in self.tenants.items()},
            "tiers": {name: one.data() for name, one in self.tiers.items()},
            "backends": {name: one.data() for name, one in self.backends.items()},
            "reasons": [
                {"kind": kind, "why": why, "requests": count, "policy_lines": lines.splitlines()}
                for (kind, why, lines), count in self.reasons.most_common()
            ],
            "shadow_cost_usd": {name: spent / NANO for name, spent in beside.items()},
            "services": facts.get("services", []),
            "assumed": facts.get("assumed", []),
        }


def summarize(name: str, decisions: Decisions) -> Summary:
    found = Summary(name, decisions)
    ats: Sequence[float] = decisions.column("at")
    found.begin = min(ats)
    found.length = max(ats) - found.begin
    found.arrivals = [[0] * len(KINDS) for _ in range(BUCKETS)]
    for one in decisions:
        groups = [
            found.all,
            found.tenants.setdefault(one.tenant, Group()),
            found.tiers.setdefault(one.tier, Group()),
        ]
        if one.backend and one.kind in (kinds.ANSWERED, kinds.DOWNGRADED, kinds.REROUTED, kinds.CUT):
            groups.append(found.backends.setdefault(one.backend, Group()))
        for group in groups:
            group.kinds[one.kind] += 1
            group.cost += one.cost
            group.completion += one.completion
            group.cached += one.cached
            if one.completion:
                group.prompt += one.prompt
            if one.waited == one.waited:
                group.waits.append(one.waited)
            if one.ttft == one.ttft:
                group.firsts.append(one.ttft)
        if one.kind not in (kinds.ANSWERED, kinds.LEFT):
            found.reasons[KINDS[one.kind], one.reason, one.lines] += 1
        place = bucket(one.at, found.begin, found.length)
        found.arrivals[place][one.kind] += 1
        found.spent.setdefault(one.tenant, [0] * BUCKETS)[place] += one.cost
    for group in (found.all, *_groups(found)):
        group.waits.sort()
        group.firsts.sort()
    found.tenants = dict(sorted(found.tenants.items(), key=lambda item: -item[1].requests))
    return found


def _groups(found: Summary) -> Iterable[Group]:
    for groups in (found.tenants, found.tiers, found.backends):
        yield from groups.values()


def bucket(at: float, begin: float, length: float) -> int:
    return min(BUCKETS - 1, int((at - begin) / length * BUCKETS)) if length > 0 else 0
