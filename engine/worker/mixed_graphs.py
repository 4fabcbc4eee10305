"""Steps in which some sequences decode and others have chunks of prompts, recorded as CUDA graphs and replayed.

A recording has room for so many sequences with one new token, and after them for so many tokens of at most
``SEQUENCES`` chunks. How those tokens are divided among chunks, and what is before them, the kernel for prompts reads
on the device (``kernels/flash_prefill.py``), so a step is filled up to the next size of both: idle sequences are empty,
and idle tokens are a sequence of their own, which attends to the padding block and is stored nowhere. With more tokens
than the largest recording has, the device is busy for longer than Python needs to launch it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor

from engine.attention.metadata import CommonAttentionMetadata, DecodeShape
from engine.kv_cache import KVCache
from engine.layers.lora import AdapterBank
from engine.models.registry import Model
from engine.worker.batch import Batch
from engine.worker.cuda_graphs import Recorder, place_adapters

DECODES = (8, 64, 256)
"""Sequences with one new token. Few sizes, as they are multiplied by those of chunks: an idle one is one row more of
the products, and reads nothing."""

CHUNKS = (64, 128, 256, 512)
"""Tokens of all chunks."""

SEQUENCES = 16
"""Chunks of a step, sequences with draft tokens among them."""


class MixedGraphs:
    """For one kind of layers' memory: all tokens, or a window. Not for layers that keep a state or attend in chunks."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        most: int,
        most_tokens: int,
        length: int,
        record: Recorder,
        *,
        adapters: AdapterBank | None = None,
        chunks: Sequence[int] = CHUNKS,
    ) -> None:
        """``most``: sequences of a step, ``most_tokens``: its tokens; ``length``: tokens of the longest sequence."""
        self._model = model
        self._cache = cache
        self._adapters = adapters if adapters is not None and adapters.recordable else None
        device = cache.layers[0].keys.device
        self._decodes, self._chunks = _up_to(DECODES, most), _up_to(chunks, most_tokens)
        rows, sequences = self._decodes[-1] + self._chunks[-1], self._decodes[-1] + SEQUENCES + 1
        self._tokens, self._positions = (
            torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2)
        )
        self._seq_lens = torch.zeros(sequences, dtype=torch.int64, device=device)
        self._query_starts = torch.arange(sequences + 1, device=device)
        self._starts = torch.zeros(SEQUENCES + 2, dtype=torch.int64, device=device)
        """Of the chunks and of the idle tokens after them, counted from their first row."""
        # Of each group of layers.
        self._slots = [torch.full((rows,), -1, device=device) for _ in cache.groups]
        blocks = -(-max(length, self._chunks[-1]) // cache.block_size)
        self._tables = [
            torch.full((sequences, blocks), cache.padding_block, device=device) for _ in cache.groups
        ]
        self._recorded: dict[tuple[int, int, bool], tuple[Callable[[], None], Tensor]] = {}
        if self._adapters is not None:
            self._adapters.reserve(rows, device)
        kinds = (False,) if self._adapters is None else (True, False)
        # The largest first: the others then find their memory in what it has taken.
        for decodes, tokens in sorted(product(self._decodes, self._chunks), key=sum, reverse=True):
            self._seq_lens[:] = 0
            self._seq_lens[decodes] = tokens
            self._starts[1:] = tokens
            for adapted in kinds:
                self._recorded[decodes, tokens, adapted] = record(self._forward(decodes, tokens, adapted))

    def forward(self, batch: Batch) -> Tensor | None:
        """Hidden states [tokens, hidden], good until the next call; ``None`` for a step that no recording fits."""
        common, adapted = batch.common[0], bool(batch.adapters)
        single = sum(shape.sequences for shape in common.decodes if shape.new == 1)
        others, left = len(batch.order) - single, len(batch.tokens) - single
        decodes = next((size for size in self._decodes if size >= single), None)
        tokens = next((size for size in self._chunks if size >= left), None)
        if not others or others > SEQUENCES or decodes is None or tokens is None:
            return None
        if (adapted and self._adapters is None) or common.tree is not None:
            return None
        rows, sequences, end = decodes + tokens, decodes + others, decodes + left
        for target, given in ((self._tokens, batch.tokens), (self._positions, batch.positions)):
            target[:single], target[decodes:end] = given[:single], given[single:]
        self._seq_lens[:single], self._seq_lens[single:decodes] = common.seq_lens[:single], 0
        self._seq_lens[decodes:sequences] = common.seq_lens[single:]
        self._seq_lens[sequences], self._seq_lens[sequences + 1 : decodes + SEQUENCES + 1] = tokens - left, 0
        self._starts[: others + 1] = common.query_starts[single:] - single
        self._starts[others + 1 :] = tokens
        for group, slots, tables in zip(batch.common, self._slots, self._tables, strict=True):
            slots[:rows] = -1
            slots[:single], slots[decodes:end] = group.slots[:single], group.slots[single:]
            # Tables are padded to a round number of blocks, which may be more than any sequence has.
            width = min(group.block_tables.shape[1], tables.shape[1])
            tables[:single, :width] = group.block_tables[:single, :width]
            tables[decodes:sequences, :width] = group.block_tables[single:, :width]
            tables[sequences] = self._cache.padding_block
        places = torch.cat([self._query_starts[:single], self._rows(decodes, left)])
        if adapted:
            place_adapters(self._adapters, places, len(batch.tokens), rows)
        replay, hidden = self._recorded[decodes, tokens, adapted]
        replay()
        return hidden[places]

    def _rows(self, first: int, count: int) -> Tensor:
        return torch.arange(first, first + count, device=self._tokens.device)

    def _forward(self, decodes: int, tokens: int, adapted: bool) -> Callable[[], Tensor]:
        def forward() -> Tensor:
            if self._adapters is not None:
                self._adapters.active = adapted
            rows, sequences = slice(0, decodes + tokens), slice(0, decodes + SEQUENCES + 1)
            query_starts = torch.cat([self._query_starts[:decodes], self._starts + decodes])
            made = [
                self._cache.backend.metadata(
                    CommonAttentionMetadata(
                        decodes + tokens,
                        slots[rows],
                        tables[sequences],
                        query_starts,
                        self._seq_lens[sequences],
                        self._cache.block_size,
                        [DecodeShape(decodes, 1, 0)],
                        self._starts,
                    )
                )
                for slots, tables in zip(self._slots, self._tables, strict=True)
            ]
            batch, *others = made
            batch.others = others
            return self._model.forward(self._tokens[rows], self._positions[rows], batch, self._cache)

        return forward


def _up_to(sizes: Sequence[int], most: int) -> list[int]:
    return sorted({size for size in sizes if size < most} | {min(most, sizes[-1])})
