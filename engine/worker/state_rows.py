"""Where a plan's states are, as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import ScheduledRequest
from engine.state_batch import StateBatch, StateRows, StateSet
from engine.worker.upload import upload


def state_batch(order: Sequence[ScheduledRequest], device: torch.device) -> StateBatch:
    """Of requests whose rows follow one another in this ``order``."""
    counts = np.array([len(scheduled.tokens) for scheduled in order])
    stops = np.cumsum(counts)
    firsts = (stops - counts).tolist()
    each = [
        StateRows(first, first + len(scheduled.tokens), scheduled.state, scheduled.start == 0)
        for first, scheduled in zip(firsts, order, strict=True)
    ]
    single = [rows for rows in each if rows.stop - rows.start == 1]
    arrays = [np.repeat(np.arange(len(order)), counts), stops]
    for some in (each, single):
        arrays += [
            np.array([rows.slot for rows in some], dtype=np.int64),
            np.array([rows.begins for rows in some], dtype=np.int64),
            np.array([rows.start for rows in some], dtype=np.int64),
        ]
    owners, ends, *rest = upload(arrays, device)
    return StateBatch(
        int(stops[-1]),
        each,
        _set(each, rest[:3]),
        _set(single, rest[3:]) if single else None,
        [rows for rows in each if rows.stop - rows.start > 1],
        owners,
        ends,
    )


def decode_states(slots: Tensor) -> StateBatch:
    """Of requests with a token each, none their first. ``slots`` [requests] are read when layers run: for
    recordings."""
    rows = torch.arange(len(slots), device=slots.device)
    every = StateSet(slots, None, rows)
    return StateBatch(len(slots), [], every, every, [], rows, rows + 1)


def _set(some: Sequence[StateRows], tensors: Sequence[Tensor]) -> StateSet:
    slots, begins, rows = tensors
    return StateSet(slots, begins.bool() if any(one.begins for one in some) else None, rows)
