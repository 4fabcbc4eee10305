"""Decode steps recorded and replayed on a CPU, by kernels/native/recording.py: what cuda_graphs.py does on a GPU.

Each number of sequences is recorded when it first occurs, as an idle row would cost as much as another. A step's input
is copied to where the recording read it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.attention.metadata import CommonAttentionMetadata, DecodeShape
from engine.attention.native_backend import NativeBackend
from engine.kv_cache import KVCache
from engine.models.registry import Model
from engine.worker.attention_chunks import by_token
from engine.worker.batch import Batch
from engine.worker.state_rows import decode_states
from kernels.native.recording import Memory, NotRecordable, Recording, available

MOST = 16
"""Sequences of the largest recording. With more of them Python takes a small part of a step."""


def records(cache: KVCache) -> bool:
    """Whether decode steps over it can be recorded."""
    return isinstance(cache.backend, NativeBackend) and available()


class CpuRecordings:
    """Raises ``NotRecordable`` for models whose layers read numbers in Python, as mixtures do, at once or later."""

    def __init__(self, model: Model, cache: KVCache, most: int, length: int) -> None:
        """``most``: sequences of a step; ``length``: tokens of the longest sequence. The cache's first slot is free."""
        self._model = model
        self._cache = cache
        self._most = min(most, MOST)
        blocks = -(-length // cache.block_size)
        self._tokens, self._positions = (torch.zeros(self._most, dtype=torch.int64) for _ in range(2))
        self._seq_lens = torch.ones(self._most, dtype=torch.int64)
        self._query_starts = torch.arange(self._most + 1)
        # Of each group of layers.
        self._slots = [torch.zeros(self._most, dtype=torch.int64) for _ in cache.groups]
        self._block_tables = [torch.full((self._most, blocks), cache.padding_block) for _ in cache.groups]
        self._states = None if cache.states is None else torch.zeros(self._most, dtype=torch.int64)
        """Slots of the state cache, where layers keep a state."""
        self._memory = Memory()
        self._recorded = {1: Recording(self._forward(1), self._memory)}

    def forward(self, batch: Batch) -> Tensor | None:
        """Hidden states [tokens, hidden], good until the next call; ``None`` for a step that is not recorded."""
        rows, common = len(batch.tokens), batch.common[0]
        if rows != len(common.seq_lens) or rows > self._most or batch.adapters:
            return None
        if self._states is not None and (states := batch.attention.states) is not None:
            if states.all.begins is not None:
                return None
            self._states[:rows] = states.all.slots
        self._tokens[:rows] = batch.tokens
        self._positions[:rows] = batch.positions
        self._seq_lens[:rows] = common.seq_lens
        for group, slots, tables in zip(batch.common, self._slots, self._block_tables, strict=True):
            slots[:rows] = group.slots
            # Tables are padded to a round number of blocks, which may be more than any sequence has.
            width = min(group.block_tables.shape[1], tables.shape[1])
            tables[:rows, :width] = group.block_tables[:, :width]
        if rows in self._recorded:
            self._recorded[rows]()
        elif self._states is None or self._cache.states is None:
            self._recorded[rows] = Recording(self._forward(rows), self._memory)
        else:
            # What cannot be recorded is computed again, by the layers themselves.
            with self._cache.states.undone_by(NotRecordable, self._states[:rows]):
                self._recorded[rows] = Recording(self._forward(rows), self._memory)
        return self._recorded[rows].result

    def _forward(self, rows: int) -> Callable[[], Tensor]:
        def forward() -> Tensor:
            common = [
                CommonAttentionMetadata(
                    rows,
                    slots[:rows],
                    tables[:rows],
                    self._query_starts[: rows + 1],
                    self._seq_lens[:rows],
                    self._cache.block_size,
                    [DecodeShape(rows, 1, 0)],
                )
                for slots, tables in zip(self._slots, self._block_tables, strict=True)
            ]
            metadata = self._cache.backend.metadata
            batch, *others = made = [metadata(group) for group in common]
            batch.others = others
            if self._states is not None:
                batch.states = decode_states(self._states[:rows])
            for group, one, sizes in zip(common, made, self._cache.chunks, strict=True):
                one.in_chunks = {chunk: metadata(by_token(group, chunk)) for chunk in sizes}
            return self._model.forward(self._tokens[:rows], self._positions[:rows], batch, self._cache)

        return forward
