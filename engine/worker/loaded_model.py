"""A model on one device: weights, adapters and proposer, and the KV cache that they get."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from engine.config import EngineConfig
from engine.core.block_demand import BlockDemand
from engine.errors import StartupError
from engine.kv_cache import KVCache, KVShape
from engine.kv_groups import group_layers
from engine.layers.lora import start_bank
from engine.models.registry import load_model
from engine.parallel.ranks import Ranks
from engine.state_cache import StateCache
from engine.worker.device import pick_dtype, pick_threads
from engine.worker.draft_model import DraftModelProposer
from engine.worker.eagle import EagleProposer
from engine.worker.kv_cache_size import count_blocks
from engine.worker.medusa import MedusaProposer
from engine.worker.memory import taken, trim
from engine.worker.ngram import NgramProposer
from engine.worker.speculative import Proposer

log = logging.getLogger("engine.worker")


class LoadedModel:
    """Raises ``StartupError`` if it does not load."""

    def __init__(self, config: EngineConfig, device: torch.device, ranks: Ranks) -> None:
        self.config = config
        self.ranks = ranks
        self.device = ranks.local_device(device)
        if self.device.index is not None:
            # Triton launches on the current device, whatever device its arguments are on.
            torch.cuda.set_device(self.device)
        self.dtype = pick_dtype(config.dtype, config.model, self.device)
        threads = config.threads or max(1, pick_threads(config.model) // ranks.size)
        torch.set_num_threads(threads)
        self.adapters = start_bank(config, ranks.part.tp)
        before = taken(self.device)
        self.model = load_model(
            config.model,
            self.device,
            self.dtype,
            part=ranks.part,
            adapters=self.adapters,
            max_model_len=config.max_model_len,
            quantization=config.quantization,
            invariant=config.deterministic,
            weights_cache=config.weights_cache,
            kv_cache_dtype=config.kv_cache_dtype,
        )
        trim()
        self.weight_bytes = taken(self.device) - before
        """As measured."""
        self.max_model_len = config.max_model_len or self.model.max_positions
        if self.max_model_len > self.model.max_positions:
            raise StartupError(
                f"--max-model-len {self.max_model_len} is more than the {self.model.max_positions} positions "
                "that the model supports."
            )
        self.stateful = self.model.state_shape is not None
        """Whether layers keep a state of each request."""
        if self.stateful and config.speculation != "off":
            raise StartupError(
                f"--speculation {config.speculation} is not supported for this model: its layers keep a state of each "
                "request, from which draft tokens that are not accepted could not be taken back. Leave it out."
            )
        if config.state_checkpoints and not (
            self.stateful and config.prefix_caching and config.chunked_prefill
        ):
            raise StartupError(
                "--state-checkpoints keeps states of cached prefixes, so it is for models whose layers keep a state, "
                "with prefix caching and chunked prefill: leave it out."
            )
        self.checkpoints = 0
        """States of cached prefixes."""
        self.state_bytes = 0
        """Of these, of all requests', and of a spare one."""
        if self.model.state_shape is not None:
            if config.prefix_caching and config.chunked_prefill:
                asked = config.state_checkpoints
                self.checkpoints = self._sequences // 2 if asked is None else asked
            slots = self._sequences + self.checkpoints + 1
            self.state_bytes = slots * self.model.state_shape.slot_bytes(self.dtype)
        shape = self.model.kv_shape
        self.groups = group_layers(_windows(shape, config), self.max_model_len)
        """The same on all ranks."""
        # Stages have other steps in flight.
        self.runs_ahead = self.device.type == "cuda" and ranks.stages == 1
        """Whether a step that was submitted is computed while the next one is planned."""
        self.overlapping = self.runs_ahead if config.overlap == "auto" else config.overlap == "on"
        """Whether steps are to be planned while others are in flight."""
        self.block_bytes = shape.block_bytes(
            config.block_size, self.dtype, config.kv_cache_dtype, self.groups
        )
        if config.draft_tree and (shape.latent is not None or any(shape.windows)):
            raise StartupError(
                "--draft-tree is not supported for models with sliding windows or attention over latents: leave it "
                "out; heads then propose chains."
            )
        self.proposer = self._load_proposer()
        if self.proposer:
            self.block_bytes += self.proposer.block_bytes

    @property
    def _sequences(self) -> int:
        return self.config.max_num_seqs or 1

    def count_blocks(self, profile: Callable[[], int] | None) -> int:
        """Of the KV cache, which may shorten the context. ``profile`` measures the bytes that there are for it.

        Raises ``StartupError`` where it would be too small."""
        config = self.config
        step_tokens = (config.max_batched_tokens or 1) * (1 + self.overlapping)
        demand = BlockDemand([group.window for group in self.groups], config.block_size, step_tokens)
        blocks = self.ranks.all_reduce_min(
            count_blocks(
                config,
                demand,
                block_bytes=self.block_bytes,
                max_model_len=self.max_model_len,
                device=self.device,
                ranks=self.ranks.size,
                profile=profile,
                states=self.state_bytes,
            )
        )
        longest = demand.longest(blocks, self.max_model_len)
        if longest < self.max_model_len:
            if config.max_model_len is not None:
                raise StartupError(
                    f"{blocks} KV blocks hold {longest} tokens, fewer than "
                    f"--max-model-len {self.max_model_len}. Raise --kv-cache-blocks or --kv-cache-memory, or lower it."
                )
            log.warning(
                "the KV cache shortens the context from %d to %d tokens: see --kv-cache-memory and --kv-cache-blocks",
                self.max_model_len,
                longest,
            )
            self.max_model_len = longest
        return blocks

    def allocate(self, blocks: int) -> KVCache:
        """The proposer's cache has as many."""
        config, states = self.config, None
        if self.model.state_shape is not None:
            slots = self._sequences + self.checkpoints
            states = StateCache(self.model.state_shape, slots, self.device, self.dtype)
        cache = KVCache(
            self.model.kv_shape,
            blocks,
            config.block_size,
            self.device,
            self.dtype,
            config.kv_cache_dtype,
            self.groups,
            states=states,
        )
        if self.proposer:
            self.proposer.allocate(blocks)
        return cache

    def _load_proposer(self) -> Proposer | None:
        """On rank 0 only: what is accepted, it sends to the others."""
        config = self.config
        if config.speculation == "off" or self.ranks.rank > 0:
            return None
        if config.speculation == "ngram":
            return NgramProposer()
        if config.speculation == "eagle":
            return EagleProposer(config, self.model, self.device, self.dtype)
        if config.speculation == "medusa":
            return MedusaProposer(config, self.model, self.device, self.dtype)
        if config.speculation != "draft":
            raise StartupError(
                f"--speculation must be off, ngram, draft, eagle or medusa, not {config.speculation!r}."
            )
        if config.draft_model is None:
            raise StartupError("--speculation draft needs --draft-model.")
        return DraftModelProposer(
            config, self.model, self.device, pick_dtype(config.dtype, config.draft_model, self.device)
        )


def _windows(shape: KVShape, config: EngineConfig) -> Sequence[int | None]:
    """Each layer's, as blocks are to be kept."""
    windows = shape.windows or (None,) * shape.layers
    if config.speculation in ("draft", "eagle") and None not in windows:
        # The draft's cache has the blocks of the first group, and may need more than these windows.
        return (None,) * shape.layers
    if config.pipeline_parallel > 1:
        # Stages have the same block tables, but not layers of the same kinds.
        return (None,) * shape.layers
    return windows
