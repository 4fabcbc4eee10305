"""Among the replicas of a backend: those that come into service get less, those that do badly nothing, and those of
the gateway's own zone are asked first, unless they are full. A policy without replicas has no use for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Protocol

from gateway.policy.members import Members
from gateway.routing.affinity import Affinity, Prefix
from gateway.routing.scored import Scored
from gateway.routing.selector import Loads, ModelTargets, Selector
from gateway.types import Call, Candidate

FULL = 0.9
"""The saturation of the least busy replica of a zone, from which on the others are asked, too."""

MANY = 64
"""Replicas of which the least loaded is looked for among all. Of more ``SOME`` are drawn and looked at: with a thousand
that is a tenth of a request's time instead of nine tenths, and first tokens come as soon (docs/scale.md), as a worker
knows of its own requests alone, which are few to each."""
SOME = 32


class Rotation(Protocol):
    """How much of its share each replica gets now."""

    @property
    def zone(self) -> str | None:
        """The gateway's own."""
        ...

    def share(self, name: str, /) -> float:
        """1: all of it; less while it comes into service; 0: it is ejected."""
        ...


class ReplicaSelector(Selector):
    def __init__(
        self,
        loads: Loads,
        affinity: Affinity,
        random: Random,
        members: Members,
        rotation: Rotation,
        scored: Scored | None = None,
    ) -> None:
        super().__init__(loads, affinity, random, scored)
        self._rotation = rotation
        self._here = frozenset(
            member.name
            for its in members.values()
            for member in its
            if rotation.zone is not None and member.zone == rotation.zone
        )

    def _among(
        self, targets: ModelTargets, group: Sequence[Candidate], prefix: Prefix | None, call: Call | None
    ) -> list[Candidate]:
        if targets.select != "least_loaded" or len(group) <= MANY:
            return self._ranked(targets, group, prefix, call)
        some = self._drawn(group)
        taken = set(map(id, some))
        # Whoever fails so often is content with any of the others.
        others = [one for one in group if id(one) not in taken]
        return [*self._ranked(targets, some, prefix, call), *others]

    def _drawn(self, group: Sequence[Candidate]) -> list[Candidate]:
        """``SOME`` of ``group``, and of its replicas in this zone as many, where there are some."""
        if not (here := [one for one in group if one.target.backend in self._here] if self._here else []):
            return self._random.sample(group, SOME)
        elsewhere = [one for one in group if one.target.backend not in self._here]
        return [
            *self._random.sample(here, min(SOME, len(here))),
            *self._random.sample(elsewhere, min(SOME, len(elsewhere))),
        ]

    def _ranked(
        self, targets: ModelTargets, group: Sequence[Candidate], prefix: Prefix | None, call: Call | None
    ) -> list[Candidate]:
        shares = {id(one): self._rotation.share(one.target.backend) for one in group}
        # The ejected are asked last, and not never: that may be a mistake, and is better than no answer.
        ejected = [one for one in group if not shares[id(one)]]
        if len(ejected) == len(group):
            shares, ejected = dict.fromkeys(shares, 1.0), []
        group = [one for one in group if shares[id(one)]]
        first: list[Candidate] = []
        here = [one for one in group if one.target.backend in self._here]
        if here and len(here) < len(group) and self._has_room(here):
            first = self._by_share(targets, here, shares, prefix, call)
            group = [one for one in group if one.target.backend not in self._here]
        return [*first, *self._by_share(targets, group, shares, prefix, call), *ejected]

    def _has_room(self, here: Sequence[Candidate]) -> bool:
        return min(self._loads.saturation(candidate.target.backend) for candidate in here) < FULL

    def _by_share(
        self,
        targets: ModelTargets,
        group: Sequence[Candidate],
        shares: Mapping[int, float],
        prefix: Prefix | None,
        call: Call | None,
    ) -> list[Candidate]:
        if all(shares[id(one)] == 1.0 for one in group):
            return super()._among(targets, group, prefix, call)
        # Who is known of a candidate is known by its identity (``Hops``): those that are drawn only stand for them.
        drawn = [_weighing(candidate, shares[id(candidate)]) for candidate in group]
        meant = {id(one): candidate for one, candidate in zip(drawn, group, strict=True)}
        return [meant[id(one)] for one in super()._among(targets, drawn, prefix, call)]


def _weighing(candidate: Candidate, share: float) -> Candidate:
    target = candidate.target
    return replace(candidate, target=target.model_copy(update={"weight": target.weight * share}))
