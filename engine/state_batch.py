"""A step's batch as layers with a state need it: whose rows are whose, and whose state is in which slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class StateRows:
    """Rows ``start`` … ``stop`` of the batch: one request's."""

    start: int
    stop: int
    slot: int
    begins: bool
    """Whether they are its first tokens: its state is zeros, whatever the slot holds."""

    def read(self, states: Tensor) -> Tensor:
        """Its own of ``states`` [slots, …], as a copy."""
        return torch.zeros_like(states[self.slot]) if self.begins else states[self.slot].clone()


@dataclass(frozen=True, slots=True)
class StateSet:
    """Several requests, to be computed at once."""

    slots: Tensor
    """int64 [requests]"""
    begins: Tensor | None
    """bool [requests]: see ``StateRows``; ``None``: none of them."""
    rows: Tensor
    """int64 [requests]: the first row of each."""

    def read(self, states: Tensor) -> Tensor:
        """[requests, …], as a copy."""
        own = states[self.slots]
        if self.begins is not None:
            own[self.begins] = 0
        return own


@dataclass(slots=True)
class StateBatch:
    tokens: int
    each: Sequence[StateRows]
    """In the order of their rows."""
    all: StateSet
    single: StateSet | None
    """Those with one row, if any."""
    longer: Sequence[StateRows]
    """The others."""
    owners: Tensor
    """int64 [tokens]: whose a row is, by place in ``all``."""
    stops: Tensor
    """int64 [requests]: the row after each one's last."""
    _taps: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def taps(self, kept: int) -> tuple[Tensor, Tensor]:
        """Where a row finds itself and the ``kept`` rows before it, int64 [kept + 1, tokens], the oldest first; and
        each request the last ``kept`` of what it has seen, int64 [requests, kept]. Both count from the beginning of a
        table that has ``kept`` rows of state for each request, and then the batch.

        Computed once a step, not once a layer.
        """
        if kept not in self._taps:
            device = self.owners.device
            before = torch.arange(-kept, 1, device=device)
            rows = torch.arange(self.tokens, device=device)
            taps = self._place(rows + before[:, None], self.owners, kept)
            owners = torch.arange(len(self.stops), device=device)[:, None]
            last = self._place(self.stops[:, None] + before[:-1], owners, kept)
            self._taps[kept] = taps, last
        return self._taps[kept]

    def _place(self, rows: Tensor, owners: Tensor, kept: int) -> Tensor:
        """Of ``rows`` of the batch, which may lie before the beginning of ``owners``: those are state."""
        offsets = rows - self.all.rows[owners]
        return torch.where(offsets < 0, (owners + 1) * kept + offsets, len(self.stops) * kept + rows)
