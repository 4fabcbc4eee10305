"""Decode steps recorded and replayed on a CPU, by kernels/native/recording.py: what cuda_graphs.py does on a GPU.

Each number of sequences, and of draft tokens that all of them have, is recorded when it first occurs, as an idle row
would cost as much as another. A step's input is copied to where the recording read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.attention.metadata import CommonAttentionMetadata, DecodeShape
from engine.attention.native_backend import NativeBackend
from engine.kv_cache import KVCache
from engine.models.hidden_states import HiddenStates
from engine.models.registry import Model
from engine.worker.attention_chunks import by_token
from engine.worker.batch import Batch
from engine.worker.state_rows import decode_states
from kernels.native.recording import Memory, NotRecordable, Recording, available
from kernels.tree_mask import ALL, TreeMask

MOST = 16
"""Rows of the largest recording. With more of them Python takes a small part of a step."""


def records(cache: KVCache) -> bool:
    """Whether decode steps over it can be recorded."""
    return isinstance(cache.backend, NativeBackend) and available()


class CpuRecordings:
    """Raises ``NotRecordable`` for models whose layers read numbers in Python, as mixtures do, at once or later."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        most: int,
        length: int,
        *,
        kept: Sequence[int] | None = None,
        trees: bool = False,
        loose: bool = False,
    ) -> None:
        """``most``: sequences of a step; ``length``: tokens of the longest sequence. The cache's first slot is free.
        ``kept``: the layers whose hidden states each step keeps; ``trees``: whether draft tokens may form trees.
        ``loose``: whether steps with a few tokens are recorded that are no draft tokens, too."""
        self._model = model
        self._cache = cache
        self._most = min(most, MOST)
        blocks = -(-length // cache.block_size)
        self._kept = kept
        self._tokens, self._positions = (torch.zeros(MOST, dtype=torch.int64) for _ in range(2))
        self._seq_lens = torch.ones(self._most, dtype=torch.int64)
        self._branches, self._roots = torch.full((MOST,), ALL), torch.zeros(self._most, dtype=torch.int64)
        self._trees = trees
        self._loose = loose
        # Of each group of layers.
        self._slots = [torch.zeros(MOST, dtype=torch.int64) for _ in cache.groups]
        self._block_tables = [torch.full((self._most, blocks), cache.padding_block) for _ in cache.groups]
        self._states = None if cache.states is None else torch.zeros(self._most, dtype=torch.int64)
        """Slots of the state cache, where layers keep a state."""
        self._memory = Memory()
        self._query_starts: dict[tuple[int, int], Tensor] = {}
        self._states_of: dict[tuple[int, int], HiddenStates] = {}
        self._recorded: dict[tuple[int, int], Recording] = {}
        self._record(1, 1)

    def forward(self, batch: Batch, states: HiddenStates | None = None) -> Tensor | None:
        """Hidden states [tokens, hidden], good until the next call, as those that ``states`` gets; ``None`` for a step
        that is not recorded."""
        rows, common = len(batch.tokens), batch.common[0]
        sequences = len(common.seq_lens)
        new = rows // sequences
        # The draft model's first step also has the last token that was accepted.
        least = 2 if self._loose else 1
        if (
            rows > MOST
            or sequences > self._most
            or batch.adapters
            or (states is None) != (self._kept is None)
        ):
            return None
        if any(len(one.tokens) != new or one.num_draft_tokens < new - least for one in batch.order):
            return None
        if new > 1 and (self._states is not None or any(self._cache.chunks)):
            return None
        if self._states is not None and (of_layers := batch.attention.states) is not None:
            if of_layers.all.begins is not None:
                return None
            self._states[:rows] = of_layers.all.slots
        self._tokens[:rows] = batch.tokens
        self._positions[:rows] = batch.positions
        self._seq_lens[:sequences] = common.seq_lens
        if self._trees and new > 1:
            tree = common.tree
            self._branches[:rows] = ALL if tree is None else tree.branches
            self._roots[:sequences] = common.seq_lens if tree is None else tree.roots
        for group, slots, tables in zip(batch.common, self._slots, self._block_tables, strict=True):
            slots[:rows] = group.slots
            # Tables are padded to a round number of blocks, which may be more than any sequence has.
            width = min(group.block_tables.shape[1], tables.shape[1])
            tables[:sequences, :width] = group.block_tables[:, :width]
        if (sequences, new) in self._recorded:
            self._recorded[sequences, new]()
        elif self._states is None or self._cache.states is None:
            self._record(sequences, new)
        else:
            # What cannot be recorded is computed again, by the layers themselves.
            with self._cache.states.undone_by(NotRecordable, self._states[:rows]):
                self._record(sequences, new)
        if states is not None:
            states.adopt(self._states_of[sequences, new])
        return self._recorded[sequences, new].result

    def _record(self, sequences: int, new: int) -> None:
        self._recorded[sequences, new] = Recording(self._forward(sequences, new), self._memory)

    def _forward(self, sequences: int, new: int) -> Callable[[], Tensor]:
        rows = sequences * new
        # Recordings have its address, and do not keep it.
        query_starts = self._query_starts[sequences, new] = torch.arange(sequences + 1) * new
        states = None if self._kept is None else HiddenStates(self._kept)
        if states is not None:
            self._states_of[sequences, new] = states
        tree = TreeMask(self._branches[:rows], self._roots[:sequences]) if self._trees and new > 1 else None

        def forward() -> Tensor:
            common = [
                CommonAttentionMetadata(
                    rows,
                    slots[:rows],
                    tables[:sequences],
                    query_starts,
                    self._seq_lens[:sequences],
                    self._cache.block_size,
                    [DecodeShape(sequences, new, 0)],
                    tree=tree,
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
            inputs = self._tokens[:rows], self._positions[:rows], batch, self._cache
            return self._model.forward(*inputs) if states is None else self._model.forward(*inputs, states)

        return forward
