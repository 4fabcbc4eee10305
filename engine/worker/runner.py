"""Executes plans: the model, its cache and the sampler on one device."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.core.plan import Plan, SamplerOutput, ScheduledRequest
from engine.core.sampling_params import SamplingParams
from engine.errors import InvalidRequest, OutOfMemory, StartupError
from engine.grammar.masks import PATIENCE, Grammars
from engine.kv_cache import KVCache, KVShape
from engine.layers.lora import start_bank
from engine.messages import LoadAdapter, UnloadAdapter
from engine.models.registry import load_model, read_config
from engine.parallel import TPGroup
from engine.worker.batch import BatchBuilder
from engine.worker.cuda_graphs import Capture, DecodeGraphs, Recorder
from engine.worker.draft_model import DraftModelProposer
from engine.worker.kv_cache_size import GpuMeter, Meter, kv_cache_bytes
from engine.worker.ngram import NgramProposer
from engine.worker.ranks import start_ranks
from engine.worker.rejection_sampler import accepted, accepted_tokens
from engine.worker.sampler import Sampler, sampled_logprobs
from engine.worker.scoring import score
from engine.worker.speculative import FixedDraftLength, Proposer, Speculation
from engine.worker.warm_up import Bounds, draw_masked, plans
from kernels.compilations import Compilations
from kernels.launch import on_triton, path

log = logging.getLogger("engine.worker")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SMALL = 100 * 2**20
"""Bytes of weights up to which a CPU computes in float32 and on one thread, when it is left the choice."""


class Runner:
    """Raises ``StartupError`` if the model does not load or does not fit."""

    def __init__(
        self, config: EngineConfig, tp: TPGroup | None = None, *, meter: Meter | None = None
    ) -> None:
        """``ranks``: this process's part in those that share the model; ``None`` starts the others, if any.
        ``meter``: of the memory that the KV cache is fitted into, on a GPU its own."""
        device = pick_device(config.device)
        config = config.on(device.type)
        check_kernels(device)
        if config.deterministic and device.type != "cpu":
            raise StartupError(
                f"--deterministic is kept on a CPU alone, and this is {device.type}, whose products may depend on "
                "how many rows they have: leave it out, or take --device cpu."
            )
        self.tp = tp or start_ranks(config, device)
        self._meter = meter
        try:
            self._load(config, device)
        except torch.OutOfMemoryError as error:
            self.tp.close()
            raise StartupError(
                f"{device} has too little memory: {error}. Make the weights or the cache smaller (--quantization, "
                "--kv-cache-dtype, --kv-cache-memory) or the steps (--max-batched-tokens, --max-num-seqs)."
            ) from error
        except BaseException:
            # What does not come to be leaves no other processes, and no group of them, behind.
            self.tp.close()
            raise

    def _load(self, config: EngineConfig, device: torch.device) -> None:
        self.device = self.tp.local_device(device)
        if self.device.index is not None:
            # Triton launches on the current device, wherever its arguments are.
            torch.cuda.set_device(self.device)
        self.dtype = pick_dtype(config.dtype, config.model, self.device)
        threads = config.threads or max(1, pick_threads(config.model) // self.tp.size)
        torch.set_num_threads(threads)
        self.adapters = start_bank(config, self.tp)
        self.model = load_model(
            config.model,
            self.device,
            self.dtype,
            tp=self.tp,
            adapters=self.adapters,
            max_model_len=config.max_model_len,
            quantization=config.quantization,
            invariant=config.deterministic,
        )
        self.max_model_len = config.max_model_len or self.model.max_positions
        if self.max_model_len > self.model.max_positions:
            raise StartupError(
                f"--max-model-len {self.max_model_len} is more than the {self.model.max_positions} positions "
                "that the model was made for."
            )
        self.block_size = config.block_size
        self._max_num_seqs = config.max_num_seqs
        self._max_tokens = config.max_batched_tokens
        # All-reduces of several ranks have not been seen to be recorded, so they are not.
        self._recording = config.cuda_graphs and self.device.type == "cuda" and self.tp.size == 1
        self._graphs: DecodeGraphs | None = None
        self.grammars: Grammars | None = None
        if self.tp.rank == 0 and (config.model / "tokenizer.json").is_file():
            # Only the first rank's draws count.
            self.grammars = Grammars(config.model, self.model.vocab_size)
        self._sampler = Sampler()
        self.compilations = Compilations()
        shape = self.model.kv_shape
        self.block_bytes = shape.block_bytes(config.block_size, self.dtype, config.kv_cache_dtype)
        proposer = self._load_proposer(config)
        if proposer:
            self.block_bytes += proposer.block_bytes
        self.speculation: Speculation | None = None
        if self._meter is None and self.device.type == "cuda":
            self._meter = GpuMeter(self.device)
        blocks = self.tp.all_reduce_min(self._count_blocks(config, shape, proposer))
        if blocks * config.block_size < self.max_model_len:
            if config.max_model_len is not None:
                raise StartupError(
                    f"{blocks} KV blocks hold {blocks * config.block_size} tokens, fewer than "
                    f"--max-model-len {self.max_model_len}. Raise --kv-cache-blocks or --kv-cache-memory, or lower it."
                )
            log.warning(
                "the KV cache shortens the context from %d to %d tokens: see --kv-cache-memory and --kv-cache-blocks",
                self.max_model_len,
                blocks * config.block_size,
            )
            self.max_model_len = blocks * config.block_size
        self._allocate(config, shape, proposer, blocks)
        for key, folder in config.adapters:
            try:
                self.load_adapter(key, folder)
            except InvalidRequest as error:
                raise StartupError(f"The adapter {key} cannot be loaded. {error.message}") from error

    def _allocate(self, config: EngineConfig, shape: KVShape, proposer: Proposer | None, blocks: int) -> None:
        self.cache = KVCache(shape, blocks, config.block_size, self.device, self.dtype, config.kv_cache_dtype)
        if proposer:
            proposer.allocate(blocks)
            self.speculation = Speculation(proposer, config.max_drafts)
        # In float32 a CPU keeps a request's bits without being asked, but where Triton's kernels are tried on it.
        plain = self.device.type == "cpu" and path() != "triton"
        invariant = config.deterministic or (plain and self.dtype == torch.float32)
        self._batches = BatchBuilder(self.cache, self.device, invariant=invariant)

    def load_adapter(self, key: str, folder: Path) -> None:
        """On all ranks. Raises ``InvalidRequest`` if it cannot be read, does not fit the model, or finds no room."""
        if self.adapters is None:
            raise InvalidRequest("The engine was started without room for adapters: give it --max-adapters.")
        self.adapters.load(key, folder)
        self.tp.send(LoadAdapter(key, folder))

    def unload_adapter(self, key: str) -> None:
        """On all ranks. Raises ``KeyError`` if there is no such adapter."""
        if self.adapters is None:
            raise KeyError(key)
        self.adapters.unload(key)
        self.tp.send(UnloadAdapter(key))

    def execute(self, plan: Plan) -> SamplerOutput:
        """Raises ``OutOfMemory`` where the step needs more than there is: nothing has come of it then, and it can be
        planned anew."""
        try:
            self.tp.send(plan)
            return self._compute(plan)
        except torch.OutOfMemoryError as error:
            if self.tp.size > 1:
                # The others are in the middle of it, and wait for this one.
                raise
            reason = str(error)
        # Out here: the error held on to the step's frames, and they to what had been computed.
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.grammars:
            self.grammars.settle()
        raise OutOfMemory(reason)

    @torch.inference_mode()
    def _compute(self, plan: Plan) -> SamplerOutput:
        if self.speculation:
            self.speculation.begin(plan)
        if self.grammars and plan.ended:
            self.grammars.forget(plan.ended)
        self.cache.copy(plan.copies)
        if not plan.requests:
            return SamplerOutput()
        batch = self._batches.build(plan)
        masks = self.grammars.begin(batch.sampling_rows) if self.grammars else None
        if self.adapters:
            self.adapters.select(batch.adapters, self.device)
        hidden = self._graphs.forward(batch) if self._graphs else None
        if hidden is None:
            hidden = self.model.forward(batch.tokens, batch.positions, batch.attention, self.cache)
        sampled = SamplerOutput()
        if batch.scored:
            sampled.prompt_logprobs = score(self.model.logits, hidden, batch.scored)
        if batch.sampling_rows:
            logits = self.model.logits(hidden[batch.logits_indices])
            # Guesses follow from what is drawn: where there are any, all is waited for.
            allowed = masks.wait(None if self.speculation else PATIENCE) if masks else None
            if allowed is not None and not allowed[0]:
                allowed = None  # all of them are late
            tokens = self._sampler.sample(logits, batch.sampling_rows, allowed)
            valid = accepted(batch.sampling_rows, tokens)
            sampled.tokens = accepted_tokens(batch.sampling_rows, tokens, valid)
            sampled.logprobs = sampled_logprobs(logits, batch.sampling_rows, tokens, valid)
            if masks:
                sampled.failed = self.grammars.take_failed()
                sampled.deferred = masks.late
                for request_id in masks.late:
                    # Without its mask it could be anything.
                    del sampled.tokens[request_id]
                    sampled.logprobs.pop(request_id, None)
        if self.speculation:
            sampled.draft_tokens = self.speculation.propose(plan, sampled.tokens)
        return sampled

    def warm_up(self) -> None:
        """Run a chunk and a few single tokens, so that the first request does not pay for lazy set-up."""
        speculation, limit = self.speculation, 0
        space = min(self.max_model_len, self.cache.blocks * self.block_size)
        length = min(2 * self.block_size + 1, space)
        if speculation:
            limit = min(speculation.max_drafts, space - length)
            self.speculation = Speculation(speculation.proposer, limit, policy=FixedDraftLength(limit))
        params = SamplingParams(max_tokens=limit + 2, temperature=0)
        blocks = list(range(self.cache.blocks))
        history = [0] * length
        sampled = self.execute(
            Plan([ScheduledRequest(0, history, 0, blocks, params, False, history, length, lookahead=limit)])
        )
        # On a GPU the last one has what kernels for drawing and editing are compiled for.
        drawing = replace(params, temperature=1.0, top_p=0.9, presence_penalty=1.0)
        for wish in (params, params, drawing if self.device.type == "cuda" else params):
            self.execute(Plan([ScheduledRequest(0, [0], length - 1, blocks, wish, True, history, length)]))
        if drafts := sampled.draft_tokens.get(0):
            tokens = [0, *drafts]
            plan = Plan(
                [ScheduledRequest(0, tokens, length - 1, blocks, params, True, history, length, len(drafts))]
            )
            self.execute(plan)
        if speculation:
            speculation.forget([0])
            self.speculation = speculation
        self._cover(self.execute)
        self._record_graphs()
        self.compilations.start()

    def _cover(self, execute: Callable[[Plan], SamplerOutput]) -> None:
        """Meets every shape that kernels are compiled for; where none are, this is left out."""
        if not on_triton(torch.empty(0, device=self.device)):
            return
        bounds = self._bounds()
        speculation, self.speculation = self.speculation, None
        for plan in plans(bounds):
            execute(plan)
        if self.grammars:
            logits = torch.zeros(1, self.model.vocab_size, dtype=self.dtype, device=self.device)
            draw_masked(self._sampler, logits, self.grammars.words)
        self.speculation = speculation
        if speculation and isinstance(speculation.proposer, DraftModelProposer):
            draft = speculation.proposer
            length = min(bounds.length, draft.model.max_positions)
            draft.warm_up(plans(replace(bounds, length=length, adapters=False, prompt_logprobs=False)))

    def _bounds(self) -> Bounds:
        space = self.max_model_len
        blocks = [block % self.cache.blocks for block in range(-(-space // self.block_size))]
        return Bounds(
            min(self._max_num_seqs, self._max_tokens),
            self._max_tokens,
            space,
            blocks,
            self.adapters is not None,
        )

    def _record_graphs(self) -> None:
        if self._recording:
            try:
                self.record(Capture())
            except RuntimeError as error:
                log.warning("decode steps are not recorded as CUDA graphs, and slower for it: %s", error)

    @torch.inference_mode()
    def record(self, recorder: Recorder) -> None:
        """From here on decode steps are replayed."""
        self._graphs = DecodeGraphs(self.model, self.cache, self._max_num_seqs, self.max_model_len, recorder)

    def _load_proposer(self, config: EngineConfig) -> Proposer | None:
        """Only the first rank guesses: it is the one that is asked."""
        if config.speculation == "off" or self.tp.rank > 0:
            return None
        if config.speculation == "ngram":
            return NgramProposer()
        if config.speculation != "draft":
            raise StartupError(f"--speculation must be off, ngram or draft, not {config.speculation!r}.")
        if config.draft_model is None:
            raise StartupError("--speculation draft needs --draft-model.")
        return DraftModelProposer(
            config, self.model, self.device, pick_dtype(config.dtype, config.draft_model, self.device)
        )

    def _count_blocks(self, config: EngineConfig, shape: KVShape, proposer: Proposer | None) -> int:
        blocks = self._wanted_blocks(config, shape, proposer)
        # On a CPU it is taken as it is used, so that it may be more than is free now, but not more than there is.
        if self.device.type == "cpu" and blocks * self.block_bytes > _all_memory():
            raise StartupError(
                f"A KV cache of {blocks} blocks is {blocks * self.block_bytes / 2**30:.1f} GiB, more than this machine "
                "has: lower --kv-cache-memory or --kv-cache-blocks."
            )
        return blocks

    def _wanted_blocks(self, config: EngineConfig, shape: KVShape, proposer: Proposer | None) -> int:
        if config.kv_cache_blocks is not None:
            return config.kv_cache_blocks
        if config.kv_cache_memory is not None:
            if config.kv_cache_memory < self.block_bytes:
                raise StartupError(
                    f"--kv-cache-memory {config.kv_cache_memory} holds not one KV block of {self.block_bytes} bytes."
                )
            return config.kv_cache_memory // self.block_bytes
        # Enough for all sequences at full length, within a share of what is free.
        enough = config.max_num_seqs * -(-self.max_model_len // config.block_size)
        if self._meter is not None:
            limit = kv_cache_bytes(self._meter, partial(self._try_out, config, shape, proposer))
            self._graphs = None
            del self.cache
            if limit < self.block_bytes:
                raise StartupError(
                    f"After weights, graphs and the largest step {self.device} has no room for a KV cache: lower "
                    "--max-batched-tokens or --max-num-seqs, or --quantization makes the weights smaller."
                )
            return min(enough, limit // self.block_bytes)
        # A CPU's memory is others' too.
        free = 0.25 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / self.tp.size
        return max(1, min(enough, int(free) // self.block_bytes))

    def _try_out(self, config: EngineConfig, shape: KVShape, proposer: Proposer | None) -> int:
        """The most that serving does, in a cache that is just large enough for a step; the bytes of that."""
        blocks = -(-min(config.max_batched_tokens, self.max_model_len) // config.block_size) + 1
        self._allocate(config, shape, proposer, blocks)
        # No word to other ranks: they do the same of their own accord.
        self._cover(self._compute)
        self._record_graphs()
        return blocks * self.block_bytes


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise StartupError(f"--device must be auto, cpu, cuda or one such as cuda:1, not {name!r}.")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise StartupError(f"--device {name}, but PyTorch finds no GPU on this machine.")
    device = torch.device(name)
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise StartupError(
            f"--device {name}, but PyTorch finds {torch.cuda.device_count()} on this machine, from cuda:0."
        )
    return device


def check_kernels(device: torch.device) -> None:
    """Raises ``StartupError`` if ``TOLLGATE_KERNELS`` asks for what cannot be had on this device."""
    try:
        wanted = path()
    except ValueError as error:
        raise StartupError(str(error)) from error
    if wanted == "triton" and device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise StartupError(
            "TOLLGATE_KERNELS=triton on a CPU needs TRITON_INTERPRET=1 beside it, and is very slow: leave it out."
        )


def pick_dtype(name: str, folder: Path, device: torch.device) -> torch.dtype:
    """``auto``: what the checkpoint says, but float32 for a small model on a CPU: faster there, and exact."""
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cpu" and _weight_bytes(folder) <= _SMALL:
        return torch.float32
    config = read_config(folder)
    return _DTYPES.get(config.get("dtype") or config.get("torch_dtype") or "", torch.bfloat16)


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """As many as this process may keep busy: a container's share counts, beyond which its threads are held back
    (https://docs.kernel.org/admin-guide/cgroup-v2.html)."""
    allowed = len(os.sched_getaffinity(0))
    try:
        most, period = quota.read_text().split()
        return max(1, min(allowed, round(int(most) / int(period))))
    except (OSError, ValueError):  # none, or "max"
        return allowed


def pick_threads(folder: Path) -> int:
    """A small model's products do not repay waking a second thread, and the HTTP process needs a core too."""
    return 1 if _weight_bytes(folder) <= _SMALL else cores()


def _weight_bytes(folder: Path) -> int:
    sizes = (
        sum(file.stat().st_size for file in folder.glob(f"*.{kind}")) for kind in ("safetensors", "gguf")
    )
    return next(filter(None, sizes), 0)


def _all_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
