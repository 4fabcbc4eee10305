"""Decode steps, in which every sequence gets one token, recorded once as CUDA graphs and replayed.

Such a step is some hundreds of small kernels, and for few sequences a GPU is done with them sooner than Python can
launch them. A graph (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs) launches all at once, with
the same addresses every time: so a step's input is copied to where the recording read it, padded to the next size that
was recorded. A padding row has an empty sequence and the slot -1: kernels read and write nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.attention.metadata import CommonAttentionMetadata, DecodeShape
from engine.kv_cache import KVCache
from engine.models.registry import Model
from engine.worker.batch import Batch

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Rows of the recordings: few, as each takes time at the start, and close enough that filling up costs little."""

Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Takes what is to be recorded; returns what replays it, and the tensor that then has the result."""


class DecodeGraphs:
    def __init__(self, model: Model, cache: KVCache, most: int, length: int, record: Recorder) -> None:
        """``most``: sequences of the largest recording; ``length``: tokens of the longest sequence."""
        self._model = model
        self._cache = cache
        device = cache.layers[0].keys.device
        blocks = -(-length // cache.block_size)
        self._tokens, self._positions, self._seq_lens = (
            torch.zeros(most, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._query_starts = torch.arange(most + 1, device=device)
        # Of each group of layers.
        self._slots = [torch.full((most,), -1, device=device) for _ in cache.groups]
        self._block_tables = [
            torch.full((most, blocks), cache.padding_block, device=device) for _ in cache.groups
        ]
        self._recorded: dict[int, tuple[Callable[[], None], Tensor]] = {}
        # The largest first: the others then find their memory in what it has taken.
        for size in sorted({*(size for size in SIZES if size < most), most}, reverse=True):
            self._recorded[size] = record(self._forward(size))
        self._sizes = sorted(self._recorded)

    def forward(self, batch: Batch) -> Tensor | None:
        """Hidden states [tokens, hidden], good until the next call; ``None`` for a step that no recording fits."""
        common = batch.common[0]
        rows = len(batch.tokens)
        if not common.only_single_tokens or batch.adapters:
            return None
        size = next((size for size in self._sizes if size >= rows), None)
        if size is None:
            return None
        for static, given in (
            (self._tokens, batch.tokens),
            (self._positions, batch.positions),
            (self._seq_lens, common.seq_lens),
        ):
            static[:rows].copy_(given)
        for group, slots, tables in zip(batch.common, self._slots, self._block_tables, strict=True):
            slots[:rows].copy_(group.slots)
            slots[rows:size].fill_(-1)
            # Tables are padded to a round number of blocks, which may be more than any sequence has.
            width = min(group.block_tables.shape[1], tables.shape[1])
            tables[:rows, :width].copy_(group.block_tables[:, :width])
        if rows < size:
            self._seq_lens[rows:size].zero_()
        replay, hidden = self._recorded[size]
        replay()
        return hidden[:rows]

    def _forward(self, size: int) -> Callable[[], Tensor]:
        def forward() -> Tensor:
            # Built anew each time: what metadata computes for a step's layers must be recorded too.
            batch, *others = (
                self._cache.backend.metadata(
                    CommonAttentionMetadata(
                        size,
                        slots[:size],
                        tables[:size],
                        self._query_starts[: size + 1],
                        self._seq_lens[:size],
                        self._cache.block_size,
                        [DecodeShape(size, 1, 0)],
                    )
                )
                for slots, tables in zip(self._slots, self._block_tables, strict=True)
            )
            batch.others = others
            return self._model.forward(self._tokens[:size], self._positions[:size], batch, self._cache)

        return forward


class Capture:
    """Records on a GPU. All recordings share their memory: only one is replayed at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # Kernels are compiled and libraries set up before anything is recorded.
            run()
        torch.cuda.current_stream().wait_stream(aside)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                hidden = run()
        finally:
            # If it fails, torch leaves its own stream in place.
            torch.cuda.set_stream(stream)
        return graph.replay, hidden
