"""Among the targets of one model: which is asked first, and which follow if it fails."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from gateway.policy.schema import Select, SplitBy
from gateway.routing.affinity import Affinity, Prefix, rendezvous
from gateway.routing.scored import Scored
from gateway.routing.split_key import split_key
from gateway.types import Call, Candidate

Caller = tuple[str, str, float]
"""Tier, tenant, and the tier's weight."""


class Loads(Protocol):
    """How full the backends are."""

    @property
    def cold(self) -> Collection[tuple[str, str]]:
        """Backends and models of theirs that would have to be loaded first."""
        ...

    def saturation(self, backend: str, caller: Caller | None = None, /) -> float:
        """0 is idle, 1 is full; ``caller`` has a share of its own where the limit is a learnt one."""
        ...

    def load(self, backend: str, /) -> int:
        """Requests in flight and waiting."""
        ...

    def has_capacity(self, backend: str, tokens: int, caller: Caller | None = None, /) -> bool:
        """Whether a request of so many tokens, prompt and expected answer, would start at once."""
        ...


@dataclass(frozen=True, slots=True)
class ModelTargets:
    """A model's usable targets, in groups by region, the preferred first."""

    model: str
    select: Select
    groups: tuple[tuple[Candidate, ...], ...]
    split_by: SplitBy = "request"
    """What keeps the target that was drawn for it."""

    @property
    def candidates(self) -> list[Candidate]:
        return [candidate for group in self.groups for candidate in group]

    @property
    def varies(self) -> bool:
        """There is more than one."""
        return len(self.groups) > 1 or len(self.groups[0]) > 1

    @property
    def affine(self) -> bool:
        return self.select == "prefix_affinity" and self.varies

    @property
    def splits(self) -> bool:
        if self.select == "score":
            return self.varies
        return self.split_by != "request" and any(len(group) > 1 for group in self.groups)


class Selector:
    """Puts the candidates of each group in the order of the model's ``select``."""

    def __init__(
        self, loads: Loads, affinity: Affinity, random: Random, scored: Scored | None = None
    ) -> None:
        """``scored`` is needed where some model has ``select: score``."""
        self._loads = loads
        self._affinity = affinity
        self._random = random
        self._scored = scored

    def order(
        self, targets: ModelTargets, prefix: Prefix | None, call: Call | None = None
    ) -> list[Candidate]:
        """All candidates of ``targets``, best first. ``prefix`` is needed where ``targets.affine``, ``call`` where
        ``targets.splits``: what a request keeps its target by, or is scored by."""
        if len(targets.groups) == 1:
            return self._group(targets, targets.groups[0], prefix, call)
        return [
            candidate for group in targets.groups for candidate in self._group(targets, group, prefix, call)
        ]

    def _group(
        self, targets: ModelTargets, group: Sequence[Candidate], prefix: Prefix | None, call: Call | None
    ) -> list[Candidate]:
        if len(group) == 1:
            return list(group)
        if (cold := self._loads.cold) and targets.split_by == "request":
            # A model that is loaded answers while another is being loaded.
            warm = [one for one in group if (one.target.backend, one.target.model) not in cold]
            if warm and len(warm) < len(group):
                late = [one for one in group if one not in warm]
                return [*self._among(targets, warm, prefix, call), *self._among(targets, late, prefix, call)]
        return self._among(targets, group, prefix, call)

    def _among(
        self, targets: ModelTargets, group: Sequence[Candidate], prefix: Prefix | None, call: Call | None
    ) -> list[Candidate]:
        if targets.select == "least_loaded":
            return least_loaded(group, self._loads, self._random)
        if targets.select == "prefix_affinity" and prefix is not None:
            return self._affinity.order(targets.model, prefix, group, self._loads)
        if call is not None and targets.split_by != "request":
            return rendezvous(targets.model.encode() + split_key(call, targets.split_by), group)
        if call is not None and targets.select == "score" and self._scored is not None:
            return self._scored.order(call, group, self._random)
        return weighted(group, self._random)


def weighted(candidates: Sequence[Candidate], random: Random) -> list[Candidate]:
    """A weighted sample without replacement (Efraimidis and Spirakis 2006): by exponential variates at the rate of each
    weight.
    """
    draw, log = random.random, math.log
    return sorted(candidates, key=lambda candidate: -log(1.0 - draw()) / candidate.target.weight)


def least_loaded(candidates: Sequence[Candidate], loads: Loads, random: Random) -> list[Candidate]:
    """The least load for its weight first; equals in random order."""
    load, draw = loads.load, random.random
    return sorted(
        candidates,
        key=lambda candidate: (load(candidate.target.backend) / candidate.target.weight, draw()),
    )
