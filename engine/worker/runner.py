"""Executes plans: the model, its cache and the sampler on one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.plan import PENDING, Plan, SamplerOutput
from engine.errors import InvalidRequest, OutOfMemory, StartupError
from engine.grammar.masks import MASK_TIMEOUT, GrammarManager, PendingMasks
from engine.parallel.ranks import Ranks
from engine.worker.accepted_branches import moves
from engine.worker.batch import Batch, BatchBuilder
from engine.worker.device import check_kernels, pick_device
from engine.worker.download import Download
from engine.worker.draft_feeding import DraftFeeding, FeedingProposer
from engine.worker.draft_model import DraftModelProposer
from engine.worker.feed import Feed
from engine.worker.kv_cache_size import GpuMeter, Meter, available_bytes
from engine.worker.loaded_model import LoadedModel
from engine.worker.rank_messages import HeadRows, RecordGraphs
from engine.worker.ranks import start_ranks
from engine.worker.recordings import Recordings
from engine.worker.rejection_sampler import accepted, accepted_tokens
from engine.worker.sampler import PendingLogprobs, Sampler
from engine.worker.scoring import score
from engine.worker.shared_adapters import SharedAdapters
from engine.worker.speculative import FixedDraftLength, Speculation
from engine.worker.step import Step
from engine.worker.upload import upload
from engine.worker.warm_up import EDITED, PLAIN, FirstRequest, ServingLimits, plans, sample_masked
from kernels.compilations import Compilations
from kernels.launch import on_triton, path

_T = TypeVar("_T")


class Runner:
    """Raises ``StartupError`` if the model does not load or does not fit."""

    def __init__(
        self, config: EngineConfig, ranks: Ranks | None = None, *, meter: Meter | None = None
    ) -> None:
        """``ranks``: those that share the model, as this one knows them; ``None``: it is rank 0, which starts the
        others, if any.
        ``meter``: of the memory that the KV cache is to fill; ``None``: the GPU's, where there is one."""
        device = pick_device(config.device)
        config = config.on(device.type)
        check_kernels(device)
        if config.deterministic and device.type != "cpu":
            raise StartupError(
                f"--deterministic is supported on a CPU only: on {device.type} the result of a matrix product may "
                "depend on how many rows it has. Leave it out, or use --device cpu."
            )
        if config.deterministic and config.kv_cache_dtype == "int4":
            raise StartupError(
                "--deterministic is not supported with --kv-cache-dtype int4, where a key's rounding depends on how "
                "many tokens of its block were written at once. Use int8 or fp8."
            )
        self.ranks = ranks or start_ranks(config, device)
        self._meter = meter
        try:
            self._load(config, device)
        except torch.OutOfMemoryError as error:
            self.ranks.close()
            raise StartupError(
                f"{device} has too little memory: {error}. Make the weights or the cache smaller (--quantization, "
                "--kv-cache-dtype, --kv-cache-memory) or the steps (--max-batched-tokens, --max-num-seqs)."
            ) from error
        except BaseException:
            # A start that fails leaves no other processes behind.
            self.ranks.close()
            raise

    def _load(self, config: EngineConfig, device: torch.device) -> None:
        self._loaded = loaded = LoadedModel(config, device, self.ranks)
        self.device, self.dtype = loaded.device, loaded.dtype
        self.model, self.adapters = loaded.model, loaded.adapters
        self.weight_bytes, self.block_bytes = loaded.weight_bytes, loaded.block_bytes
        self.groups = loaded.groups
        self.windows = [group.window for group in self.groups]
        """Of each group of layers."""
        self.runs_ahead = loaded.runs_ahead
        """Whether ``submit`` returns before the step is computed, so that the next one can be planned meanwhile."""
        self.overlapping = loaded.overlapping
        """Whether it is."""
        self.stateful, self.state_bytes = loaded.stateful, loaded.state_bytes
        self.checkpoints = loaded.checkpoints
        self.finds_prefixes = not self.stateful or self.checkpoints > 0
        """Whether what is cached of a prompt can be used again."""
        self.block_size = config.block_size
        self._max_num_seqs = config.max_num_seqs
        self._max_tokens = config.max_batched_tokens
        self.grammars: GrammarManager | None = None
        if self.ranks.rank == 0 and (config.model / "tokenizer.json").is_file():
            # Only rank 0 samples.
            self.grammars = GrammarManager(config.model, self.model.vocab_size)
        self._sampler = Sampler()
        self._shares_head = self.ranks.part.stage.first and self.model.shares_head
        self._tells = True
        """Whether other ranks do what this one sends them, not what they themselves plan."""
        self._hidden: Tensor | None = None
        """The hidden states that rows are taken from, where the head is shared."""
        self.compilations = Compilations()
        self.speculation: Speculation | None = None
        self._trees = config.draft_tree > 0
        """Whether draft tokens may form trees."""
        if self._meter is None and self.device.type == "cuda":
            self._meter = GpuMeter(self.device)
        self._allocate(loaded.count_blocks(partial(self._profile, self._meter) if self._meter else None))
        self.shared_adapters: SharedAdapters | None = None
        if self.adapters is not None:
            self.shared_adapters = SharedAdapters(self.adapters, self.ranks)
        self.adapter_digests: dict[str, str] = {}
        """Of those of the start, by key."""
        for key, folder in config.adapters:
            self._start_adapter(config, key, folder)

    def _start_adapter(self, config: EngineConfig, key: str, folder: Path) -> None:
        """All are read, so that a start with a bad one fails; as many stay in host memory as may."""
        if self.shared_adapters is None:
            return
        try:
            self.adapter_digests[key] = self.load_adapter(key, folder)
        except InvalidRequest as error:
            raise StartupError(f"The adapter {key} cannot be loaded. {error.message}") from error
        if len(self.shared_adapters.bank.held) > config.host_adapters:
            self.shared_adapters.drop(key)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest sequence."""
        return self._loaded.max_model_len

    def _allocate(self, blocks: int) -> None:
        loaded = self._loaded
        self.cache = loaded.allocate(blocks)
        self.recordings = Recordings(loaded, self.cache, self.ranks)
        self._feeding = None
        if loaded.proposer:
            trees = loaded.config.draft_tree > 0
            self.speculation = Speculation(loaded.proposer, loaded.config.step_drafts, trees=trees)
            # Chunks of the context are laid out by positions that the host knows; trees grow on it.
            placed = not trees and not any(sizes for sizes in self.cache.chunks)
            if self.overlapping and placed and isinstance(loaded.proposer, FeedingProposer):
                self._feeding = DraftFeeding(loaded.proposer)
        # In float32 a CPU is batch-invariant without the flag, except with Triton's interpreter.
        plain = self.device.type == "cpu" and path() != "triton"
        invariant = loaded.config.deterministic or (plain and self.dtype == torch.float32)
        self._batches = BatchBuilder(self.cache, self.device, invariant=invariant, keeping=True)

    @property
    def drafting(self) -> bool:
        """Whether it may propose draft tokens."""
        return self.speculation is not None or self._forecasting

    @property
    def feeds_drafts(self) -> bool:
        """Whether they are known to the device alone when the next step is submitted."""
        return self._feeding is not None

    @property
    def _forecasting(self) -> bool:
        """Whether grammars propose what must or may well come next. Graphs are for single tokens, so steps with drafts
        would not be replayed; and no token is taken back from a state."""
        if self.speculation is not None or self.stateful or self.ranks.stages > 1:
            return False
        return self.grammars is not None and not self.recordings.on_gpu

    def load_adapter(self, key: str, folder: Path) -> str:
        """In host memory and, if one is free, into a slot, on all ranks. Returns the digest of its files. Raises
        ``InvalidRequest`` if it cannot be read or does not fit the model."""
        if self.adapters is None or self.shared_adapters is None:
            raise InvalidRequest("The engine was started without adapters: give it --max-adapters.")
        adapter = self.adapters.read(folder)
        self.shared_adapters.hold(key, folder, adapter)
        slot = self.adapters.free_slot
        if slot is not None:
            self.execute(Plan(swaps=[(slot, key)]))
        return adapter.digest

    def submit(self, plan: Plan, after: Step | None = None) -> Step:
        """Launches it; on a CPU it is computed now.

        ``after``: the step before, if its tokens are not known yet. Those are taken from the device, and nothing is
        sampled until ``sample``, as how it is may depend on them.

        Raises ``OutOfMemory`` where the step needs more memory than there is: it then had no effect but on
        states, and can be planned again."""
        step = self._attempt(lambda: self._submit(plan, after.feed if after else None))
        if self.feeds_drafts:
            step.before = after
        return step

    def follow(self, plan: Plan, feed: Feed | None = None) -> None:
        """``submit`` on another rank than the first."""
        self._attempt(lambda: self._submit(plan, feed))

    def sample(self, step: Step, dropped: Collection[int] = ()) -> None:
        """Launches the sampling, once the tokens of the step before are in the requests' histories. Nothing is sampled
        for ``dropped`` requests. Raises ``OutOfMemory`` as ``submit``."""
        self._attempt(lambda: self._sample_after(step, dropped))

    def collect(self, step: Step) -> SamplerOutput:
        """Waits for what the step sampled. Raises ``OutOfMemory`` as ``submit``."""
        return self._attempt(lambda: self._collect(step))

    def execute(self, plan: Plan) -> SamplerOutput:
        """``submit`` and ``collect``."""
        return self.collect(self.submit(plan))

    def _attempt(self, run: Callable[[], _T]) -> _T:
        try:
            return run()
        except torch.OutOfMemoryError as error:
            if self.ranks.size > 1:
                # The other ranks are in the middle of the step, and wait for this one.
                raise
            reason = str(error)
        # Outside the except block: the exception references the step's frames, and they its tensors.
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.grammars:
            self.grammars.drain()
        self._batches.forget()
        raise OutOfMemory(reason)

    @torch.inference_mode()
    def _submit(self, plan: Plan, feed: Feed | None) -> Step:
        self.ranks.send_plan(plan, feed)
        return self._launch(plan, feed)

    def _launch(self, plan: Plan, feed: Feed | None = None) -> Step:
        step = Step(plan, began=time.perf_counter())
        batch = self._begin(step, feed)
        if batch is None:
            return step
        masks = self._start_masks(step) if feed is None else None
        states = self.speculation.states() if self.speculation else None
        hidden = self.recordings.forward(batch, states)
        if hidden is None:
            hidden = self.model.forward(batch.tokens, batch.positions, batch.attention, self.cache, states)
        if states is not None:
            states.last = hidden
        if states is not None or self.feeds_drafts:
            step.observed = batch, states
        if self._shares_head:
            self._hidden = hidden
        self._score(step, batch, hidden)
        if step.rows:
            self._tell(batch.drawn)
            step.logits = self.model.logits(hidden[batch.logits_indices])
            if feed is None:
                self._sample(step, masks)
        if feed is None:
            self._propose(step)
        return step

    def _begin(self, step: Step, feed: Feed | None = None) -> Batch | None:
        """The step's batch; ``None`` if nothing is to be computed."""
        plan = step.plan
        if plan.swaps and self.shared_adapters is not None:
            self.shared_adapters.place(plan.swaps)
        if self.speculation:
            self.speculation.begin(plan)
        if self.grammars and plan.ended:
            self.grammars.release(plan.ended)
        self.cache.copy(plan.copies, plan.state_copies)
        if not plan.requests:
            return None
        if feed is not None:
            pending = any(scheduled.tokens[-1] == PENDING for scheduled in plan.requests)
            feed = replace(feed, tokens=self._share_samples(feed)) if pending else None
        batch = self._batches.build(plan, feed)
        step.rows = batch.sampling_rows
        if self.adapters:
            self.adapters.select(batch.adapters, self.device)
        return batch

    def _share_samples(self, feed: Feed) -> Tensor:
        """What the step before samples, on all ranks: it goes from device to device."""
        tokens = feed.tokens
        if tokens is None:
            tokens = torch.empty(feed.size, dtype=torch.int64, device=self.device)
        if self.ranks.size > 1:
            self.ranks.part.tp.collectives.broadcast(tokens)
        return tokens

    def _score(self, step: Step, batch: Batch, hidden: Tensor) -> None:
        if batch.scored:

            def logits(rows: range) -> Tensor:
                self._tell(rows)
                return self.model.logits(hidden[rows.start : rows.stop])

            step.output.prompt_logprobs = score(logits, batch.scored)

    def _tell(self, rows: Sequence[int]) -> None:
        """Which rows' logits follow, to the ranks that share the head."""
        if self._shares_head and self._tells:
            self.ranks.send_stage(HeadRows(list(rows)))

    @torch.inference_mode()
    def share(self, rows: Sequence[int]) -> None:
        """What ``HeadRows`` asks for."""
        if self._hidden is not None:
            self.model.logits(self._hidden[rows])

    def _start_masks(self, step: Step) -> PendingMasks | None:
        masks = self.grammars.start(step.rows) if self.grammars else None
        step.masked = masks is not None
        return masks

    @torch.inference_mode()
    def _sample_after(self, step: Step, dropped: Collection[int]) -> None:
        if self.feeds_drafts:
            step.fill_in(dropped)
        if step.logits is not None:
            self._sample_kept(step, dropped)
        self._propose(step)

    def _sample_kept(self, step: Step, dropped: Collection[int]) -> None:
        kept = [row for row, one in enumerate(step.rows) if one.request_id not in dropped]
        if len(kept) < len(step.rows):
            step.rows = [step.rows[row] for row in kept]
            (rows,) = upload([np.array(kept, dtype=np.int64)], self.device)
            step.logits = step.logits[rows]
        if kept:
            self._sample(step, self._start_masks(step))

    def _sample(self, step: Step, masks: PendingMasks | None) -> None:
        """Launches the sampling."""
        if step.logits is None:
            return
        # Draft tokens continue what is sampled, and a token that changed a state is not computed again: every mask is
        # awaited then.
        patience = None if self.speculation or self.stateful else MASK_TIMEOUT
        allowed = masks.wait(patience) if masks else None
        if allowed is not None and not allowed[0]:
            allowed = None  # none is ready
        if masks and self.grammars:
            step.output.failed = self.grammars.take_failed()
            step.output.deferred = masks.late
        step.sampled = self._sampler.sample(step.logits, step.rows, allowed)
        step.logprobs = PendingLogprobs(step.logits, step.rows, step.sampled)
        step.download = Download([step.sampled, *step.logprobs.tensors])
        step.logits = None

    def _propose(self, step: Step) -> None:
        if self._feeding is not None and self.speculation is not None:
            self._feeding.launch(self.speculation, step)

    def drafts(self, step: Step) -> Mapping[int, int]:
        """By request, how many draft tokens ``step`` proposes on the device."""
        return step.proposed.counts if step.proposed is not None else {}

    @torch.inference_mode()
    def _collect(self, step: Step) -> SamplerOutput:
        output = step.output
        if step.download is not None and step.logprobs is not None:
            sampled, *logprobs = step.download.result()
            tokens = sampled.tolist()
            valid = accepted(step.rows, tokens)
            output.tokens = accepted_tokens(step.rows, tokens, valid)
            if self._trees:
                self.cache.move(moves(step.plan, output.tokens, self.block_size))
            output.logprobs = step.logprobs.read(logprobs, tokens, valid)
            for request_id in output.deferred:
                # Sampled without its mask.
                del output.tokens[request_id]
                output.logprobs.pop(request_id, None)
        if not step.plan.requests:
            return output
        if self._feeding is not None and self.speculation is not None:
            output.draft_tokens = self._feeding.collect(self.speculation, step)
        elif self.speculation:
            if step.observed is not None:
                self.speculation.observe(*step.observed, output.tokens)
            output.draft_tokens = self.speculation.propose(step.plan, output.tokens)
            output.draft_parents = self.speculation.parents
        elif step.masked and self.grammars and self._forecasting:
            output.draft_tokens = self.grammars.propose(step.plan.requests, output.tokens)
        return output

    def _compute(self, plan: Plan) -> SamplerOutput:
        """Of this rank alone."""
        # Nothing is sent to other ranks: they run the same.
        self._tells = False
        with torch.inference_mode():
            output = self._collect(self._launch(plan))
        self._tells = True
        return output

    def warm_up(self) -> None:
        """Runs a chunk and a few single tokens, so that the first request does not pay for lazy initialization."""
        speculation, lookahead = self.speculation, 0
        space = min(self.max_model_len, self.cache.blocks * self.block_size)
        length = min(2 * self.block_size + 1, space)
        if speculation:
            lookahead = min(speculation.max_drafts, space - length)
            self.speculation = Speculation(
                speculation.proposer, lookahead, policy=FixedDraftLength(lookahead), trees=self._trees
            )
        first = FirstRequest(length, lookahead, list(range(self.cache.blocks)), len(self.groups))
        sampled = self.execute(first.prompt())
        # On a GPU the last one covers the kernels for sampling and for editing logits.
        for params in (PLAIN, PLAIN, EDITED if self.device.type == "cuda" else PLAIN):
            self.execute(first.decode(params))
        if drafts := sampled.draft_tokens.get(0):
            self.execute(first.verify(drafts))
        if speculation:
            speculation.forget([0])
            self.speculation = speculation
        self._cover(self.execute)
        self._batches.forget()
        if self.recordings.on_gpu:
            self.ranks.send(RecordGraphs())
        self.recordings.record_on_gpu()
        self.recordings.record_on_cpu()
        self.compilations.start()

    def _cover(self, execute: Callable[[Plan], SamplerOutput]) -> None:
        """Runs every shape that Triton compiles kernels for; nothing on devices without Triton."""
        if not on_triton(torch.empty(0, device=self.device)):
            return
        limits = self._serving_limits()
        speculation, self.speculation = self.speculation, None
        for plan in plans(limits):
            execute(plan)
        if self.grammars:
            logits = torch.zeros(1, self.model.vocab_size, dtype=self.dtype, device=self.device)
            sample_masked(self._sampler, logits, self.grammars.words)
        self.speculation = speculation
        if speculation and isinstance(speculation.proposer, DraftModelProposer):
            draft = speculation.proposer
            length = min(limits.length, draft.model.max_positions)
            draft.warm_up(
                plans(replace(limits, length=length, adapters=False, prompt_logprobs=False, groups=1))
            )

    def _serving_limits(self) -> ServingLimits:
        space = self.max_model_len
        blocks = [block % self.cache.blocks for block in range(-(-space // self.block_size))]
        return ServingLimits(
            min(self._max_num_seqs, self._max_tokens),
            self._max_tokens,
            space,
            blocks,
            self.adapters is not None,
            groups=len(self.groups),
        )

    def _profile(self, meter: Meter) -> int:
        """Bytes that the device has for the KV cache."""
        available = available_bytes(meter, self._run_trial)
        del self.recordings, self.cache
        return available

    def _run_trial(self) -> int:
        """The most that serving can do, in a cache just large enough for a step. Returns that cache's bytes."""
        blocks = -(-min(self._max_tokens, self.max_model_len) // self.block_size) + 1
        self._allocate(blocks)
        self._cover(self._compute)
        self.recordings.record_on_gpu()
        return blocks * self.block_bytes
