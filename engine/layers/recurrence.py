"""A recurrence over a step's batch: each request's matrices, from the slot they are in, through its rows, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.state_batch import StateBatch

Update = Callable[..., Tensor]
"""Takes inputs [n, …] and states, which it changes; returns what was read [n, …]."""


def at_once(
    batch: StateBatch, states: Tensor, inputs: Sequence[Tensor], read: Tensor, *, step: Update, scan: Update
) -> Tensor:
    """``read`` [tokens, …], filled: ``step`` takes a token of each of several requests, ``scan`` tokens of one."""
    if batch.single is not None:
        rows, slots, own = batch.single.rows, batch.single.slots, batch.single.read(states)
        read[rows] = step(*(part[rows] for part in inputs), own)
        states[slots] = own
    for longer in batch.longer:
        own = longer.read(states)
        part = slice(longer.start, longer.stop)
        read[part] = scan(*(one[part] for one in inputs), own)
        states[longer.slot] = own
    return read


def one_by_one(batch: StateBatch, states: Tensor, inputs: Sequence[Tensor], step: Update) -> Tensor:
    """As ``at_once``, token by token: whatever the batch, ``step`` computes the same."""
    found = []
    for request in batch.each:
        own = request.read(states)[None]
        # Copies, as alignment in memory may matter.
        found += [
            step(*(part[row : row + 1].clone() for part in inputs), own)
            for row in range(request.start, request.stop)
        ]
        states[request.slot] = own[0]
    return torch.cat(found)
