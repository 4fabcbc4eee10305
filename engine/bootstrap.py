"""Loads the model and builds what an ``EngineCore`` needs: runner, scheduler, prefill chunks, and what it is like."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.adapter_memory import HostAdapters, open_adapters
from engine.config import EngineConfig
from engine.core.block_demand import BlockDemand
from engine.core.block_pool import BlockPool
from engine.core.prefill_chunk import PrefillChunkController
from engine.core.scheduler import Scheduler
from engine.errors import StartupError
from engine.handover.role import Handover, open_handover
from engine.messages import Ready
from engine.startup import Stopwatch, describe
from engine.weights.digest import check_digests

if TYPE_CHECKING:
    from engine.worker.runner import Runner

log = logging.getLogger("engine.process")


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    runner: Runner
    scheduler: Scheduler
    prefill_chunks: PrefillChunkController
    ready: Ready
    ahead: bool
    """Whether steps are launched before the results of those before them are known."""
    adapters: HostAdapters | None = None
    """Where there are slots for them."""
    handover: Handover | None = None
    """With --role."""


def load_engine(
    config: EngineConfig,
    ring: Callable[[], None] | None = None,
    ring_for_adapters: Callable[[], None] = lambda: None,
) -> LoadedEngine:
    """``ring`` ends the loop's wait, for an engine with a role; ``ring_for_adapters``, when one was read.

    Raises ``StartupError`` if the model does not load or does not fit."""
    watch = Stopwatch()
    if config.kernels is not None:
        # Inherited by the other ranks.
        os.environ["TOLLGATE_KERNELS"] = config.kernels
    with ThreadPoolExecutor(1) as threads:
        # While torch is imported: hashing takes half a second a gigabyte.
        checking = threads.submit(check_digests, config.model, config.digests)
        _import_torch()
        checking.result()
    # Imported here: nothing else in this module needs torch, and it takes a second.
    from engine.worker.device import gpu_uuids, pick_device, pick_dtype
    from engine.worker.memory import check_room, predict_weights, taken
    from engine.worker.pipelined_runner import start_runner
    from engine.worker.tiers.block_copier import BlockCopier
    from engine.worker.tiers.start import handover_fingerprint, open_tiers

    device = pick_device(config.device)
    config = config.on(device.type)
    dtype = pick_dtype(config.dtype, config.model, device)
    watch.lap("imports")
    predicted = predict_weights(config.model, dtype, config.quantization, device)
    # Ranks on a CPU share its memory; on GPUs each has its own.
    mine = predicted // config.ranks if device.type == "cuda" else predicted
    check_room(mine, device, config.quantization)
    runner = start_runner(config)
    watch.lap("model")
    blocks = runner.cache.blocks
    max_num_seqs, max_batched_tokens = _limits(config, runner, blocks)
    prefix_caching = config.prefix_caching and runner.finds_prefixes
    if runner.stateful:
        log.info(
            "layers keep a state of each of %d sequences and %d prefixes, %s bytes: no speculation",
            config.max_num_seqs,
            runner.checkpoints,
            f"{runner.state_bytes:,}",
        )
    tiers = open_tiers(config, runner)
    adapters = open_adapters(config, runner, ring_for_adapters)
    scheduler = Scheduler(
        BlockPool(blocks),
        block_size=config.block_size,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        max_model_len=runner.max_model_len,
        max_waiting=config.max_waiting,
        priority_ageing=config.priority_ageing,
        prefix_caching=prefix_caching,
        max_drafts=config.step_drafts if runner.drafting else 0,
        reserve_drafts=runner.speculation is not None,
        feed_drafts=runner.feeds_drafts,
        context_caps=config.context_caps,
        chunked_prefill=config.chunked_prefill,
        preemption=config.preemption,
        windows=runner.windows,
        overlapping=runner.overlapping,
        stateful=runner.stateful,
        checkpoints=runner.checkpoints,
        tiers=tiers,
        pinned_share=config.pinned_share,
        stages=runner.ranks.stages,
        adapters=adapters[1] if adapters is not None else None,
    )
    runner.warm_up()
    watch.lap("warm-up")
    handover = None
    if ring is not None and tiers is not None and isinstance(tiers.copier, BlockCopier):
        handover = open_handover(
            config,
            scheduler,
            tiers.copier,
            handover_fingerprint(config, runner),
            ring,
            vocab_size=runner.model.vocab_size,
        )
    log.info("started in %s", watch)
    memory = {
        "weights_predicted": predicted,
        "weights": runner.weight_bytes,
        "kv_cache": blocks * runner.block_bytes,
        "states": runner.state_bytes,
        "host_kv": config.host_kv_memory or 0,
        "process": taken(device),
    }
    log.info("memory on %s: %s", runner.device, describe(memory))
    ready = Ready(
        max_model_len=runner.max_model_len,
        vocab_size=runner.model.vocab_size,
        block_size=config.block_size,
        blocks=blocks,
        max_num_seqs=max_num_seqs,
        max_waiting=config.max_waiting,
        device=str(runner.device),
        dtype=str(runner.dtype).removeprefix("torch."),
        context_caps=tuple(sorted(config.context_caps)),
        kv_cache_dtype=config.kv_cache_dtype,
        prefix_caching=prefix_caching,
        host_blocks=tiers.host.pool.total if tiers is not None else 0,
        disk_blocks=tiers.disk.pool.total if tiers is not None and tiers.disk is not None else 0,
        max_adapters=config.slots,
        max_cpu_adapters=config.host_adapters,
        adapters=runner.adapter_digests,
        role=config.role or "",
        handover_address=handover.address if handover is not None else "",
        gpus=gpu_uuids(runner.device, config.ranks),
        startup=watch.laps,
        memory=memory,
    )
    return LoadedEngine(
        runner,
        scheduler,
        PrefillChunkController(config.max_itl_ratio, max_batched_tokens),
        ready,
        ahead=runner.overlapping,
        adapters=adapters[0] if adapters is not None else None,
        handover=handover,
    )


def collect() -> None:
    """Frees what is garbage, and returns it to the system. What is left stays for long: the collector is spared it."""
    from engine.worker.memory import trim

    gc.unfreeze()
    trim()
    gc.freeze()


def _import_torch() -> None:
    import torch  # noqa: F401


def _limits(config: EngineConfig, runner: Runner, blocks: int) -> tuple[int, int]:
    """Sequences and tokens of a step, from a configuration for its device."""
    seqs, tokens = config.max_num_seqs, config.max_batched_tokens
    if seqs is None or tokens is None:
        raise ValueError("the configuration is for no device yet")
    max_model_len = runner.max_model_len
    if not config.preemption:
        demand = BlockDemand(runner.windows, config.block_size, tokens * (1 + runner.overlapping))
        seqs = max(1, min(seqs, blocks // demand.of(max_model_len)))
        if seqs < config.max_num_seqs:
            log.warning("without preemption %d KV blocks are enough for %d sequences", blocks, seqs)
    if not config.chunked_prefill and tokens < max_model_len + seqs:
        raise StartupError(
            f"--no-chunked-prefill needs steps that hold the longest prompt beside a token of every other request: "
            f"give --max-batched-tokens {max_model_len + seqs} or more, or a --max-model-len below {max_model_len}."
        )
    return seqs, tokens
