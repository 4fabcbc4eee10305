"""The block tables of all running requests, on the device: a step writes what has changed since the one before.

At 256 requests of 8,000 tokens they have 130,000 entries, of which a decode step changes some twenty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import ScheduledRequest
from engine.core.table_changes import TableChanges

_ROWS, _COLUMNS = 16, 16
"""At first. Both grow, twofold at least."""


class BlockTable:
    """A request has a row as long as it is known, in a table for each group of layers. What is behind a window, and
    after the step's last token, is padding."""

    def __init__(
        self,
        windows: Sequence[int | None],
        block_size: int,
        padding: int,
        device: torch.device,
        *,
        mirrored: bool | None = None,
    ) -> None:
        """``windows``: of each group of layers. ``mirrored``: whether the device has copies of the tables, rather than
        reading the host's; ``None``: where it is not the CPU."""
        self._windows = windows
        self._block_size = block_size
        self._padding = padding
        self._device = device
        self._mirrored = device.type != "cpu" if mirrored is None else mirrored
        self._known = TableChanges(block_size)
        self._rows: dict[int, int] = {}
        """By request."""
        self._free = list(range(_ROWS))
        self._used = [0] * _ROWS
        """Of each row, the column after its last entry."""
        self._behind = [[0] * _ROWS for _ in windows]
        """By group and row, the padding before its first entry."""
        self._changed: list[list[tuple[int, int, int]]] = [[] for _ in windows]
        """By group, what the mirror lacks: (row, first column, column after the last)."""
        self._host = [np.full((_ROWS, _COLUMNS), padding, dtype=np.int64) for _ in windows]
        self._place()

    def update(self, order: Sequence[ScheduledRequest], width: int, altered: Mapping[int, int]) -> np.ndarray:
        """int64 [len(order)]: the row of each. Tables have ``width`` columns at least. ``altered``: the plan's."""
        if width > self._host[0].shape[1]:
            self._grow(columns=width)
        self._known.alter(altered)
        rows, several = [], len(self._windows) > 1 or self._windows[0] is not None
        for scheduled in order:
            row = self._rows.get(scheduled.request_id)
            if row is None:
                row = self._take(scheduled.request_id)
            rows.append(row)
            first, end = self._known.since(scheduled)
            if several:
                self._write_groups(row, scheduled, first, end)
            elif first < end:
                self._write(0, row, scheduled.blocks, first, end)
            self._used[row] = end
        return np.array(rows, dtype=np.int64)

    def lookup(self, group: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The entries at these places."""
        found: np.ndarray = self._host[group][rows, columns]
        return found

    def changes(self) -> list[np.ndarray]:
        """What the mirror lacks: for each group the places, and what is to be there."""
        arrays: list[np.ndarray] = []
        for host, changed in zip(self._host, self._changed, strict=True):
            if self._mirrored:
                columns = host.shape[1]
                places = [
                    np.arange(row * columns + first, row * columns + end) for row, first, end in changed
                ]
                where = np.concatenate([np.empty(0, dtype=np.int64), *places])
                arrays += [where, host.reshape(-1)[where]]
        return arrays

    def apply(self, changes: Sequence[Tensor]) -> None:
        """``changes``, on the device: from now on it lacks nothing."""
        for group, changed in enumerate(self._changed):
            if self._mirrored:
                where, entries = changes[2 * group : 2 * group + 2]
                self._tables[group].view(-1)[where] = entries
            changed.clear()

    def select(self, group: int, rows: Tensor, width: int) -> Tensor:
        """int64 [len(rows), width], on the device: later steps do not change it."""
        return self._tables[group][:, :width].index_select(0, rows)

    def forget(self, request_ids: Iterable[int]) -> None:
        """They have ended."""
        self._known.forget(request_ids)
        for request_id in request_ids:
            row = self._rows.pop(request_id, None)
            if row is not None:
                self._free.append(row)

    def clear(self) -> None:
        """Nobody is known any more."""
        self._known.clear()
        self._free += self._rows.values()
        self._rows.clear()

    def _place(self) -> None:
        """The host's tables on the device."""
        self._tables = [torch.from_numpy(host) for host in self._host]
        if self._mirrored:
            self._tables = [table.to(self._device, copy=True) for table in self._tables]

    def _grow(self, rows: int = 0, columns: int = 0) -> None:
        """To as many at least."""
        before = self._host[0].shape
        shape = tuple(
            size if size >= wanted else max(wanted, 2 * size)
            for size, wanted in zip(before, (rows, columns), strict=True)
        )
        for group, host in enumerate(self._host):
            self._host[group] = np.full(shape, self._padding, dtype=np.int64)
            self._host[group][: before[0], : before[1]] = host
            self._behind[group] += [0] * (shape[0] - before[0])
            self._changed[group].clear()
        self._used += [0] * (shape[0] - before[0])
        self._free += range(before[0], shape[0])
        self._place()

    def _take(self, request_id: int) -> int:
        if not self._free:
            self._grow(rows=len(self._used) + 1)
        row = self._rows[request_id] = self._free.pop()
        return row

    def _write_groups(self, row: int, scheduled: ScheduledRequest, first: int, end: int) -> None:
        for group, window in enumerate(self._windows):
            table = scheduled.others[group - 1] if group else scheduled.blocks
            start = scheduled.start - scheduled.slack
            begin = 0 if window is None else max(0, start + 1 - window) // self._block_size
            behind, self._behind[group][row] = self._behind[group][row], begin
            if begin > behind:
                self._host[group][row, behind:begin] = self._padding
                self._changed[group].append((row, behind, begin))
            self._write(group, row, table, begin if begin < behind else max(begin, first), end)

    def _write(self, group: int, row: int, table: Sequence[int], first: int, end: int) -> None:
        host, last = self._host[group], self._used[row]
        host[row, first:end] = table[first:end]
        if last > end:
            host[row, end:last] = self._padding
        self._changed[group].append((row, first, max(end, last)))
