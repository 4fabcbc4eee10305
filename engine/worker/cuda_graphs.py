"""Decode steps, in which every sequence gets a token and perhaps draft tokens, recorded as CUDA graphs and replayed.

Such a step is some hundreds of small kernels, and for few sequences a GPU is done with them sooner than Python can
launch them. A graph (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs) launches all at once, with
the same addresses every time: so a step's input is copied to where the recording read it, padded to the next size that
was recorded. A padding row has an empty sequence and the slot -1: kernels read and write nothing for it.

With LoRA each size is recorded twice, with the adapters' products and without: steps in which nobody has an adapter do
not pay for them. Whose they are is read on the device, row by row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.attention.metadata import CommonAttentionMetadata, DecodeShape
from engine.kv_cache import KVCache
from engine.layers.lora import AdapterBank
from engine.models.registry import Model
from engine.worker.attention_chunks import by_token
from engine.worker.batch import Batch
from engine.worker.state_rows import decode_states
from engine.worker.upload import upload

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Rows of the recordings: few, as each takes time at the start, and close enough that filling up costs little."""

DRAFT_ROWS = 256
"""Of the largest recording for draft tokens: in larger batches few are proposed, as no unit of the device is idle."""

Recorder = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Takes what is to be recorded; returns what replays it, and the tensor that then has the result."""


class DecodeGraphs:
    def __init__(
        self,
        model: Model,
        cache: KVCache,
        most: int,
        length: int,
        record: Recorder,
        *,
        most_new: int = 1,
        adapters: AdapterBank | None = None,
    ) -> None:
        """``most``: sequences of the largest recording; ``length``: tokens of the longest sequence; ``most_new``: of a
        sequence in a step, draft tokens included; ``adapters``: those that steps may select."""
        self._model = model
        self._cache = cache
        self._adapters = adapters if adapters is not None and adapters.recordable else None
        self._device = device = cache.layers[0].keys.device
        blocks = -(-length // cache.block_size)
        sizes = {
            1: _sizes(most),
            most_new: _sizes(most if most_new == 1 else min(most, DRAFT_ROWS // most_new)),
        }
        rows = max(new * max(counts) for new, counts in sizes.items())
        self._tokens, self._positions = (
            torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2)
        )
        self._seq_lens = torch.zeros(most, dtype=torch.int64, device=device)
        self._query_starts = {
            new: torch.arange(0, max(counts) * new + 1, new, device=device) for new, counts in sizes.items()
        }
        # Of each group of layers.
        self._slots = [torch.full((rows,), -1, device=device) for _ in cache.groups]
        self._block_tables = [
            torch.full((most, blocks), cache.padding_block, device=device) for _ in cache.groups
        ]
        self._states = None
        """Slots of the state cache, where layers keep a state."""
        if cache.states is not None:
            self._states = torch.full((most,), cache.states.spare, device=device)
        self._recorded: dict[tuple[int, int, bool], tuple[Callable[[], None], Tensor]] = {}
        # The largest first: the others then find their memory in what it has taken.
        shapes = [(new, size) for new, counts in sizes.items() for size in counts]
        if self._adapters is not None:
            self._adapters.reserve(rows, device)
        kinds = (False,) if self._adapters is None else (True, False)
        for new, size in sorted(shapes, key=lambda shape: (shape[0] * shape[1], shape), reverse=True):
            for adapted in kinds:
                self._recorded[new, size, adapted] = record(self._forward(new, size, adapted))
        self._sizes = sizes

    def forward(self, batch: Batch) -> Tensor | None:
        """Hidden states [tokens, hidden], good until the next call; ``None`` for a step that no recording fits."""
        common, rows, sequences = batch.common[0], len(batch.tokens), len(batch.order)
        adapted = bool(batch.adapters)
        if common.prefill_starts is not None or (adapted and self._adapters is None):
            return None
        most = max(shape.new for shape in common.decodes)
        new = next((new for new in self._sizes if new >= most), None)
        size = next((size for size in self._sizes[new] if size >= sequences), None) if new else None
        if new is None or size is None:
            return None
        states = batch.attention.states
        if states is not None and states.all.begins is not None:
            return None
        places: slice | Tensor = slice(0, rows)
        if new > 1:
            if any(scheduled.end - scheduled.slack < new for scheduled in batch.order):
                # There is nothing that the rows before its first token could stand for.
                return None
            places = self._places(batch, new)
        if self._states is not None and self._cache.states is not None and states is not None:
            self._states[:sequences] = states.all.slots
            self._states[sequences:size] = self._cache.states.spare
        self._tokens[places] = batch.tokens
        self._positions[places] = batch.positions
        self._seq_lens[:sequences] = common.seq_lens
        self._seq_lens[sequences:size] = 0
        for group, slots, tables in zip(batch.common, self._slots, self._block_tables, strict=True):
            slots[: new * size] = -1
            slots[places] = group.slots
            # Tables are padded to a round number of blocks, which may be more than any sequence has.
            width = min(group.block_tables.shape[1], tables.shape[1])
            tables[:sequences, :width] = group.block_tables[:, :width]
        if adapted and new > 1:
            place_adapters(self._adapters, places, rows, new * size)
        replay, hidden = self._recorded[new, size, adapted]
        replay()
        return hidden[places]

    def _places(self, batch: Batch, new: int) -> Tensor:
        """Of the batch's rows in a recording of ``new`` a sequence. Those that lack are its first, as if it had got
        tokens again that are cached already; what they attend to is there, and nothing of theirs is stored or read."""
        places = [
            number * new + place
            for number, scheduled in enumerate(batch.order)
            for place in range(new - len(scheduled.tokens), new)
        ]
        (uploaded,) = upload([np.array(places, dtype=np.int64)], self._device)
        return uploaded

    def _forward(self, new: int, size: int, adapted: bool) -> Callable[[], Tensor]:
        def forward() -> Tensor:
            if self._adapters is not None:
                self._adapters.active = adapted
            # Built anew each time: what metadata computes for a step's layers must be recorded too.
            common = [
                CommonAttentionMetadata(
                    size * new,
                    slots[: size * new],
                    tables[:size],
                    self._query_starts[new][: size + 1],
                    self._seq_lens[:size],
                    self._cache.block_size,
                    [DecodeShape(size, new, 0)],
                )
                for slots, tables in zip(self._slots, self._block_tables, strict=True)
            ]
            metadata = self._cache.backend.metadata
            batch, *others = made = [metadata(group) for group in common]
            batch.others = others
            if self._states is not None:
                batch.states = decode_states(self._states[:size])
            for group, one, sizes in zip(common, made, self._cache.chunks, strict=True):
                one.in_chunks = {chunk: metadata(by_token(group, chunk, new)) for chunk in sizes}
            rows = slice(0, size * new)
            return self._model.forward(self._tokens[rows], self._positions[rows], batch, self._cache)

        return forward


def place_adapters(adapters: AdapterBank | None, places: slice | Tensor, rows: int, recorded: int) -> None:
    """From a batch's ``rows`` to their ``places`` among those of a recording."""
    if adapters is not None and adapters.index is not None:
        index = adapters.index
        own = index[:rows].clone()
        index[:recorded] = -1
        index[places] = own


def _sizes(most: int) -> list[int]:
    return sorted({*(size for size in SIZES if size < most), most})


class Capture:
    """Records on a GPU. All recordings share their memory: only one is replayed at a time."""

    def __init__(self, *, beside_threads: bool = False) -> None:
        """``beside_threads``: other threads may call CUDA meanwhile, as NCCL's do that watch for lost ranks."""
        self._pool = torch.cuda.graph_pool_handle()
        self._mode = "thread_local" if beside_threads else "global"

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # Kernels are compiled and libraries set up before anything is recorded.
            run()
        torch.cuda.current_stream().wait_stream(aside)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode=self._mode):
                hidden = run()
        finally:
            # If it fails, torch leaves its own stream in place.
            torch.cuda.set_stream(stream)
        return graph.replay, hidden
