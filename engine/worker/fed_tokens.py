"""Where a batch takes tokens from the step before, and how far its sequences are: the device alone knows both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from engine.core.plan import PENDING, ScheduledRequest
from engine.worker.feed import Feed


class FedTokens:
    """The ``PENDING`` tokens of a batch. A request with ``slack`` has no others, and they lie as many positions earlier
    as draft tokens were rejected."""

    def __init__(self, order: Sequence[ScheduledRequest], ends: Sequence[int], feed: Feed) -> None:
        """``ends``: of each, the row after its last."""
        if feed.tokens is None:
            raise ValueError("nothing is fed")
        self._tokens = feed.tokens.view(-1)
        places, cells = list[int](), list[int]()
        moved, owners, rejected = list[int](), list[int](), list[int]()
        late, counts = list[int](), list[int]()
        for number, (scheduled, end) in enumerate(zip(order, ends, strict=True)):
            if scheduled.tokens[-1] != PENDING:
                continue
            count = scheduled.tokens.count(PENDING)
            row = feed.rows[scheduled.request_id] * feed.width
            first = row + (feed.width > 1)
            places += range(end - count, end)
            cells += range(first, first + count)
            if scheduled.slack:
                moved += range(end - count, end)
                owners += [number] * count
                rejected += [row] * count
                late.append(number)
                counts.append(row)
        columns = (places, cells, moved, owners, rejected, late, counts)[: 7 if moved else 2 if places else 0]
        self.arrays = [np.array(column, dtype=np.int64) for column in columns]
        """To be on the device for ``fill`` and ``place``."""
        self.moves = len(moved) > 0
        """Whether any sequence is perhaps not as far as planned."""

    def fill(self, arrays: Sequence[Tensor], tokens: Tensor, positions: Tensor, seq_lens: Tensor) -> None:
        """In place. ``arrays``: those of this, on the device."""
        if not arrays:
            return
        places, cells, *more = arrays
        tokens[places] = self._tokens[cells]
        if more:
            moved, _, rejected, late, counts = more
            positions[moved] -= self._tokens[rejected]
            seq_lens[late] -= self._tokens[counts]

    def place(
        self,
        arrays: Sequence[Tensor],
        positions: Tensor,
        tables: Tensor,
        slots: Tensor,
        blocks: Tensor,
        offsets: Tensor,
        block_size: int,
    ) -> None:
        """Where what has moved is stored, in place: ``slots`` of a group of layers, ``blocks`` and ``offsets`` within
        these. ``tables``: int64 [sequences, width]."""
        if not self.moves:
            return
        moved, owners = arrays[2:4]
        at = positions[moved]
        blocks[moved] = tables[owners, at // block_size]
        offsets[moved] = at % block_size
        slots[moved] = blocks[moved] * block_size + offsets[moved]
