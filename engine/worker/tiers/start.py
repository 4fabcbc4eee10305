"""Builds the tiers that a configuration asks for, or says why they cannot be."""

from __future__ import annotations

import logging
import os

from engine.config import EngineConfig
from engine.core.tiers.tier import Tier
from engine.core.tiers.tiered_cache import TierSet
from engine.errors import StartupError
from engine.worker.runner import Runner
from engine.worker.tiers.block_copier import BlockCopier
from engine.worker.tiers.block_file import BlockFile
from engine.worker.tiers.block_rows import row_bytes
from engine.worker.tiers.fingerprint import fingerprint
from engine.worker.tiers.unused_files import remove_unused

log = logging.getLogger("engine.worker")

_PATIENCE = 3.0
"""Seconds in which an engine that was killed lets go of its file."""


def open_tiers(config: EngineConfig, runner: Runner) -> TierSet | None:
    """``None`` without --host-kv-memory. Raises ``StartupError``."""
    if config.host_kv_memory is None:
        return None
    flag = "--host-kv-memory" if config.role is None else "--role"
    if runner.stateful:
        raise StartupError(
            f"{flag} is not supported for this model: its layers keep a state of each request, without which "
            "its blocks are of no use. Leave it out."
        )
    if runner.windows != [None]:
        raise StartupError(
            f"{flag} is not supported for this model yet: it has layers with sliding windows, whose blocks "
            "are released one by one. Leave it out."
        )
    tensors, shared = runner.cache.tensors, config.role in ("prefill", "both")
    block_bytes = row_bytes(tensors)
    slots = config.host_kv_memory // block_bytes
    if slots < 1:
        raise StartupError(
            f"--host-kv-memory {config.host_kv_memory} is less than one KV block of {block_bytes} bytes."
        )
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if config.host_kv_memory > there:
        raise StartupError(
            f"--host-kv-memory {config.host_kv_memory / 2**30:.1f} GiB is more than this machine has "
            f"({there / 2**30:.1f} GiB)."
        )
    if config.disk_kv is None:
        log.info("KV cache in host memory: %d blocks of %d bytes", slots, block_bytes)
        return TierSet(Tier(slots), None, BlockCopier(tensors, slots, shared=shared))
    dtype = str(runner.dtype).removeprefix("torch.")
    owner = fingerprint(config, dtype, tensors)
    # Engines of several models may be given the same folder.
    folder = config.disk_kv / str(owner["model"])
    file = BlockFile(folder, owner, block_bytes, config.disk_kv_size, patience=_PATIENCE)
    most = 4 * config.disk_kv_size if config.disk_kv_unused is None else config.disk_kv_unused
    remove_unused(config.disk_kv, most)
    disk = Tier(file.places)
    disk.fill((place, key) for place, key, _ in file.entries())
    log.info(
        "KV cache in host memory: %d blocks of %d bytes; on disk: %d in %s, of which %d are there already",
        slots,
        block_bytes,
        file.places,
        file.path,
        len(disk),
    )
    return TierSet(Tier(slots), disk, BlockCopier(tensors, slots, file, shared=shared))


def handover_fingerprint(config: EngineConfig, runner: Runner) -> dict[str, object]:
    """What blocks depend on that another engine is to go on from; backends of attention lay them out in their own
    ways."""
    found = fingerprint(config, str(runner.dtype).removeprefix("torch."), runner.cache.tensors)
    return {**found, "attention": type(runner.cache.backend).__name__}
