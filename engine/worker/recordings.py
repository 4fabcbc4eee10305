"""Which steps of a model are replayed from recordings: on a GPU by ``cuda_graphs.py``, on a CPU by
``cpu_recordings.py``; on all ranks or on none."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.config import HEADS
from engine.kv_cache import KVCache
from engine.models.hidden_states import HiddenStates
from engine.parallel.ranks import Ranks
from engine.worker.batch import SHORT, Batch
from engine.worker.cpu_recordings import CpuRecordings, records
from engine.worker.cuda_graphs import Capture, DecodeGraphs, Recorder
from engine.worker.loaded_model import LoadedModel
from engine.worker.mixed_graphs import CHUNKS, MixedGraphs
from engine.worker.speculative import HeadProposer
from kernels.native.recording import NotRecordable

log = logging.getLogger("engine.worker")


class Recordings:
    """None at first: ``forward`` then has nothing to say."""

    def __init__(self, loaded: LoadedModel, cache: KVCache, ranks: Ranks) -> None:
        self.graphs: DecodeGraphs | CpuRecordings | None = None
        self.mixed: MixedGraphs | None = None
        self.cache = cache
        self.loaded = loaded
        self._ranks = ranks
        self._device = loaded.device
        config = loaded.config
        self._most = config.max_num_seqs
        self.replays = config.speculation not in HEADS
        """Whether decode steps may be replayed on a GPU, on any rank: heads read hidden states that graphs do not keep.
        They are rank 0's alone, and the others would replay, with rows that fill up, what it computes without."""
        # Attention over latents gathers what it reads: recorded, that would be the longest context for each sequence.
        # Stages and whole experts wait for what others have.
        plain = loaded.model.kv_shape.latent is None
        whole = ranks.stages == 1 and config.expert_parallel == 1
        self.on_gpu = config.cuda_graphs and self._device.type == "cuda" and whole and plain and self.replays
        """Whether CUDA graphs are to be recorded."""

    def forward(self, batch: Batch, states: HiddenStates | None = None) -> Tensor | None:
        """Hidden states by a recording, if there is one. ``states``: those between layers that are kept, too."""
        try:
            if isinstance(self.graphs, CpuRecordings):
                return self.graphs.forward(batch, states)
            if self.graphs is None or states is not None:
                return None
            hidden = self.graphs.forward(batch)
            return self.mixed.forward(batch) if hidden is None and self.mixed else hidden
        except NotRecordable as error:
            self._stop(error)
            return None

    @torch.inference_mode()
    def record_on_cpu(self) -> None:
        """On a CPU: from now on decode steps are replayed, where they can be."""
        loaded = self.loaded
        # Where a state's result must not depend on the batch, Python goes from request to request.
        by_hand = loaded.stateful and loaded.config.deterministic
        plain = self._device.type == "cpu" and self._ranks.size == 1 and not by_hand
        head = loaded.proposer if isinstance(loaded.proposer, HeadProposer) else None
        if plain and records(self.cache):
            try:
                self.graphs = CpuRecordings(
                    loaded.model,
                    self.cache,
                    self._most,
                    loaded.max_model_len,
                    kept=head.states().layers if head else None,
                    trees=loaded.config.draft_tree > 0,
                )
            except NotRecordable as error:
                self._stop(error)

    def record_on_gpu(self) -> None:
        """On a GPU: from now on decode steps replay graphs, where they can be recorded. On all ranks at once."""
        if not self.on_gpu:
            return
        try:
            self.record(Capture(beside_threads=self._ranks.size > 1))
        except RuntimeError as error:
            log.warning("decode steps are slower, as CUDA graphs cannot be recorded: %s", error)
        if not self._on_all_ranks(self.graphs is not None):
            self.graphs = self.mixed = None

    @torch.inference_mode()
    def record(self, recorder: Recorder, chunks: Sequence[int] = CHUNKS) -> None:
        """From now on decode steps replay graphs, and those with some tokens of prompts beside: up to ``chunks``."""
        most_new, loaded = 1, self.loaded
        config = loaded.config
        mixed, most_tokens = None, config.max_batched_tokens
        if most_tokens is not None and self.cache.states is None and not any(self.cache.chunks):
            # The largest recordings first: the others find their memory in what these have taken.
            mixed = MixedGraphs(
                loaded.model,
                self.cache,
                self._most,
                most_tokens,
                loaded.max_model_len,
                recorder,
                adapters=loaded.adapters,
                chunks=chunks,
            )
        if config.speculation != "off" and self.replays:
            most_new = min(1 + config.max_drafts, SHORT)
        self.graphs = DecodeGraphs(
            loaded.model,
            self.cache,
            self._most,
            loaded.max_model_len,
            recorder,
            most_new=most_new,
            adapters=loaded.adapters,
        )
        self.mixed = mixed

    def _stop(self, error: NotRecordable) -> None:
        self.graphs = None
        log.info("decode steps are not recorded, as layers of this model use %s", error)

    def _on_all_ranks(self, mine: bool) -> bool:
        """Where some replayed a step and others did not, they would wait for each other's sums."""
        if self._ranks.size == 1:
            return mine
        count = torch.tensor([int(mine)], device=self._device)
        return int(self._ranks.part.tp.all_reduce(count)) == self._ranks.size
