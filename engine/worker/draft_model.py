"""Draft tokens from a small model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from engine.config import EngineConfig
from engine.core.plan import PENDING, Plan, ScheduledRequest
from engine.core.sampling_row import SamplingRow
from engine.errors import StartupError
from engine.kv_cache import KVCache
from engine.models.hidden_states import HiddenStates
from engine.models.registry import Model, load_model
from engine.worker.batch import Batch, BatchBuilder
from engine.worker.cpu_recordings import CpuRecordings, records
from engine.worker.draft_sampler import DraftSampler
from engine.worker.feed import Feed
from engine.worker.sampler import Sampler
from engine.worker.upload import upload
from engine.worker.verified import Verified, VerifiedRequest
from kernels.native.recording import NotRecordable

_NEAR = 4
"""Missing tokens that are computed together with the first draft token."""


class DraftModelProposer:
    """Has a KV cache of its own under the target's block numbers: a block that is shared, cached or copied is so for
    both models.

    It computes nothing until a draft token is requested; then it catches up with the target, and runs one step a draft
    token for all requests together. It samples as the target will: by the same parameters and the same uniform number.
    """

    source = "draft"

    def __init__(self, config: EngineConfig, target: Model, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ``StartupError`` if there is no such model, or its vocabulary is not the target's."""
        if config.draft_model is None:
            raise ValueError("no draft model is named")
        self.model = load_model(
            config.draft_model,
            device,
            dtype,
            quantization=config.draft_quantization,
            weights_cache=config.weights_cache,
        )
        if self.model.state_shape is not None:
            raise StartupError(
                f"{config.draft_model} cannot propose draft tokens: its layers keep a state of each request, from "
                "which tokens that are not accepted could not be taken back."
            )
        _check_vocabularies(config.model, target, config.draft_model, self.model)
        self.block_bytes = self.model.kv_shape.block_bytes(config.block_size, dtype)
        self._block_size = config.block_size
        self._vocab = min(self.model.vocab_size, target.vocab_size)
        self._chunk = config.max_batched_tokens
        self._most = config.max_num_seqs or 1
        self._recordings: CpuRecordings | None = None
        self._device = device
        self._dtype = dtype
        self._sampler = Sampler()
        self._seen: dict[int, _CachedTokens] = {}
        self._launched: dict[int, tuple[int, int, list[int]]] = {}
        """By request whose draft tokens stay on the device until its tokens are known: how many before these were
        cached, how many there were, and its blocks."""
        self._known: dict[int, _DraftState] = {}
        """Requests that could get draft tokens in this step."""

    def allocate(self, blocks: int) -> None:
        self._cache = KVCache(self.model.kv_shape, blocks, self._block_size, self._device, self._dtype)
        self._batches = BatchBuilder(self._cache, self._device)
        if records(self._cache):
            with torch.inference_mode():
                try:
                    self._recordings = CpuRecordings(
                        self.model, self._cache, self._most, self.model.max_positions, loose=True
                    )
                except NotRecordable:
                    self._recordings = None
        self._filled = [0] * blocks
        """Of each block, how many of its first tokens are cached here: no more than the target has computed."""

    def warm_up(self, plans: Iterable[Plan]) -> None:
        """Computes these as for draft tokens; the results are discarded."""
        for plan in plans:
            batch = self._batches.build(plan)
            hidden = self.model.forward(batch.tokens, batch.positions, batch.attention, self._cache)
            if batch.sampling_rows:
                logits = self.model.logits(hidden[batch.logits_indices])[:, : self._vocab]
                self._sampler.sample(logits, batch.sampling_rows)

    def begin(self, plan: Plan) -> None:
        self._cache.copy(plan.copies)
        for source, target in plan.copies:
            self._filled[target] = self._filled[source]
        for request_id in plan.preempted:
            self._seen.pop(request_id, None)
        size, filled = self._block_size, self._filled
        for scheduled in plan.requests:
            # What the target writes now is not cached here.
            first, inside = divmod(scheduled.start, size)
            block = scheduled.blocks[first]
            filled[block] = min(filled[block], inside)
            for block in scheduled.blocks[first + 1 : -(-scheduled.end // size)]:
                filled[block] = 0

    def look(
        self, plan: Plan, tokens: Mapping[int, Sequence[int]], limits: Mapping[int, int]
    ) -> dict[int, int]:
        self._known = {}
        able = {}
        for scheduled in plan.requests:
            limit = limits.get(scheduled.request_id)
            if not limit:
                continue
            known = _DraftState(scheduled, list(tokens[scheduled.request_id]))
            limit = min(limit, self.model.max_positions - known.length)
            if limit > 0:
                self._known[scheduled.request_id] = known
                able[scheduled.request_id] = limit
        return able

    def prepare(self, lengths: Mapping[int, int]) -> dict[int, int]:
        """Computes what is missing of requests that are far behind, in the order given, up to one chunk a step."""
        left, chunks, ready = self._chunk, [], {}
        for request_id, length in lengths.items():
            known = self._known[request_id]
            missing = known.computed - self._seen_by(known)
            if missing > _NEAR:
                count = min(missing, left)
                if count:
                    end = known.computed - missing + count
                    chunks.append(known.scheduled_for(self._advance(known, end), end, sampling=False))
                    left -= count
                if count < missing:
                    continue
            ready[request_id] = length
        if chunks:
            self._run(chunks)
        return ready

    def propose(self, lengths: Mapping[int, int]) -> dict[int, list[int]]:
        draft_tokens: dict[int, list[int]] = {request_id: [] for request_id in lengths}
        for done in range(max(lengths.values())):
            scheduled_requests = []
            for request_id, length in lengths.items():
                if length <= done:
                    continue
                known = self._known[request_id]
                start = self._advance(known, known.length) if done == 0 else known.length + done - 1
                scheduled_requests.append(known.scheduled_for(start, known.length + done, sampling=True))
            for request_id, token in self._run(scheduled_requests).items():
                draft_tokens[request_id].append(token)
                self._known[request_id].extra.append(token)
        for request_id, made in draft_tokens.items():
            known = self._known[request_id]
            first = known.length // self._block_size
            self._seen[request_id] = _CachedTokens(known.length, made[:-1], known.scheduled.blocks[first:])
        return draft_tokens

    def able(self, verified: Verified, limits: Mapping[int, int]) -> dict[int, int]:
        able = {}
        for number, limit in limits.items():
            limit = min(limit, self.model.max_positions - verified.requests[number].scheduled.end - 1)
            if limit > 0:
                able[number] = limit
        return able

    def launch(
        self, verified: Verified, states: HiddenStates | None, lengths: Mapping[int, int]
    ) -> tuple[list[int], Tensor]:
        """As ``FeedingProposer`` has it: after each draft token that is verified, and after the last, comes what was
        sampled there. What is wrong of it is written over in the next step."""
        ready = self._caught_up(verified, lengths)
        if not ready:
            return [], verified.last.new_empty(0, 0)
        rows = verified.chosen(ready)
        sampling = [row.scheduled.sampling for row in rows if row.scheduled.sampling is not None]
        sampler = DraftSampler(sampling, self._vocab, self._device)
        arrays = [[row.place for row in rows], [row.length for row in rows]]
        places, positions = upload([np.array(array, dtype=np.int64) for array in arrays], self._device)
        accepted, rejected = verified.accepted[places], verified.rejected[places]
        drafts = verified.last.new_zeros(len(rows), max(ready.values()))
        samples = {row.scheduled.request_id: row.sample for row in rows}
        feed = Feed(samples, len(verified.sampled), verified.sampled)
        entries = []
        for row in rows:
            scheduled, seen = row.scheduled, self._seen_of(row)
            tokens = scheduled.history[seen:] + [PENDING] * (scheduled.num_draft_tokens + 1)
            entries.append(ScheduledRequest(scheduled.request_id, tokens, seen, scheduled.blocks, None, True))
            self._launched[scheduled.request_id] = seen, row.length, scheduled.blocks
        back = [row.scheduled.num_draft_tokens for row in rows]
        hidden = self._last_rows(entries, feed, back, accepted)
        for done in range(drafts.shape[1]):
            count = sum(length > done for length in ready.values())
            if done:
                columns = torch.stack([rejected[:count], drafts[:count, done - 1]], 1)
                feed = Feed(
                    {row.scheduled.request_id: i for i, row in enumerate(rows[:count])}, count, columns, 2
                )
                hidden = self._last_rows([_fed(row, done) for row in rows[:count]], feed)
            logits = self.model.logits(hidden[:count])[:, : self._vocab]
            drafts[:count, done] = sampler.sample(logits, positions[:count] + accepted[:count] + 1 + done)
        return [row.scheduled.request_id for row in rows], drafts

    def settle(self, tokens: Mapping[int, Sequence[int]]) -> None:
        for number, (seen, length, blocks) in self._launched.items():
            if kept := len(tokens.get(number, ())):
                self._seen[number] = _CachedTokens(length + kept, [], [])
                self._fill(blocks, seen, length + kept - 1)
        self._launched = {}

    def _caught_up(self, verified: Verified, lengths: Mapping[int, int]) -> dict[int, int]:
        """Computes what is missing of requests that are far behind, as ``prepare`` does; returns those that are not."""
        left, chunks, ready = self._chunk, [], {}
        for number, length in lengths.items():
            row = verified.requests[number]
            start = self._seen_of(row)
            missing = row.length - start
            if missing > _NEAR:
                count = min(missing, left)
                if count:
                    left -= count
                    scheduled = row.scheduled
                    chunk = scheduled.history[start : start + count]
                    chunks.append(ScheduledRequest(number, chunk, start, scheduled.blocks, None, True))
                    self._seen[number] = _CachedTokens(start + count, [], [])
                    self._fill(scheduled.blocks, start, start + count)
                if count < missing:
                    continue
            ready[number] = length
        if chunks:
            self._run(chunks)
        return ready

    def _seen_of(self, row: VerifiedRequest) -> int:
        """How many of its tokens before those that are sampled are cached."""
        there = self._seen.get(row.scheduled.request_id)
        if there is not None:
            return min(there.length, row.length)
        return min(self._shared(row.scheduled), row.length)

    def _last_rows(
        self,
        entries: list[ScheduledRequest],
        feed: Feed,
        back: Sequence[int] = (),
        accepted: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [entries, hidden] of the last token of each, or of the one that is ``accepted`` after the
        ``back``-th last."""
        batch = self._batches.build(Plan(entries), feed)
        tokens = batch.tokens.clamp_(max=self.model.vocab_size - 1)
        hidden = self.model.forward(tokens, batch.positions, batch.attention, self._cache)
        ends, end = {}, 0
        for entry in batch.order:
            end += len(entry.tokens)
            ends[entry.request_id] = end - 1
        firsts = [ends[entry.request_id] for entry in entries]
        if accepted is not None:
            firsts = [end - places for end, places in zip(firsts, back, strict=True)]
        (last,) = upload([np.array(firsts, dtype=np.int64)], self._device)
        return hidden[last if accepted is None else last + accepted]

    def _fill(self, blocks: Sequence[int], start: int, end: int) -> None:
        size = self._block_size
        for index in range(start // size, -(-end // size)):
            self._filled[blocks[index]] = min(size, end - index * size)

    def forget(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._seen.pop(request_id, None)

    def _run(self, scheduled_requests: list[ScheduledRequest]) -> dict[int, int]:
        """The next token of each scheduled request that samples."""
        batch = self._batches.build(Plan(scheduled_requests))
        batch.tokens.clamp_(max=self.model.vocab_size - 1)
        hidden = self._hidden(batch)
        if not batch.sampling_rows:
            return {}
        sampling_rows = [
            self._known[sampling_row.request_id].sampling_row for sampling_row in batch.sampling_rows
        ]
        logits = self.model.logits(hidden[batch.logits_indices])[:, : self._vocab]
        sampled = self._sampler.sample(logits, sampling_rows).tolist()
        return {
            sampling_row.request_id: token for sampling_row, token in zip(sampling_rows, sampled, strict=True)
        }

    def _hidden(self, batch: Batch) -> Tensor:
        """Between a step's draft tokens Python would take as long as the small model: they are replayed."""
        if self._recordings is not None:
            try:
                if (found := self._recordings.forward(batch)) is not None:
                    return found
            except NotRecordable:
                self._recordings = None
        return self.model.forward(batch.tokens, batch.positions, batch.attention, self._cache)

    def _seen_by(self, known: _DraftState) -> int:
        """How many of the request's tokens are cached: never all of them."""
        scheduled = known.scheduled
        there = self._seen.get(scheduled.request_id)
        if there is None:
            seen = self._shared(scheduled)
        else:
            seen = there.length
            # Accepted draft tokens are cached, unless their blocks were released since.
            if (
                there.draft_tokens
                and scheduled.blocks[seen // self._block_size :][: len(there.blocks)] == there.blocks
            ):
                for draft_token in there.draft_tokens:
                    if seen >= known.length or known.token(seen) != draft_token:
                        break
                    seen += 1
        # What a block holds beyond these is an earlier request's.
        return min(seen, known.computed)

    def _shared(self, scheduled: ScheduledRequest) -> int:
        """Tokens of a request that were cached for others."""
        seen = 0
        for block in scheduled.blocks:
            seen += self._filled[block]
            if self._filled[block] < self._block_size:
                break
        return seen

    def _advance(self, known: _DraftState, seen: int) -> int:
        """Records that ``seen`` tokens, all sampled by the target, will be cached. Returns how many are already."""
        start = self._seen_by(known)
        self._seen[known.scheduled.request_id] = _CachedTokens(seen, [], [])
        # Not the last one sampled: the target has yet to compute it, in this block or in a copy.
        self._fill(known.scheduled.blocks, start, min(seen, known.computed))
        return start


def _fed(row: VerifiedRequest, done: int) -> ScheduledRequest:
    """Its last draft token, of ``done``."""
    scheduled = row.scheduled
    entry = ScheduledRequest(
        scheduled.request_id, [PENDING], scheduled.end + done, scheduled.blocks, None, True
    )
    entry.slack = scheduled.num_draft_tokens
    return entry


@dataclass(slots=True)
class _CachedTokens:
    """What is cached of a request."""

    length: int
    """Tokens from the first on, all sampled by the target."""
    draft_tokens: list[int]
    """Cached after them."""
    blocks: list[int]
    """The blocks that hold these."""


class _DraftState:
    """A request after a step: its history, what was sampled, and the draft tokens proposed since."""

    __slots__ = ("computed", "extra", "length", "sampling_row", "scheduled")

    def __init__(self, scheduled: ScheduledRequest, sampled: list[int]) -> None:
        if scheduled.sampling is None:
            raise ValueError("nothing is sampled for this request")
        self.scheduled = scheduled
        self.length = len(scheduled.history) + len(sampled)
        """Tokens without draft tokens."""
        self.computed = self.length - 1
        """Tokens that the target has keys and values of."""
        self.extra = sampled
        self.sampling_row = SamplingRow(
            scheduled.request_id, scheduled.sampling, scheduled.history, scheduled.prompt_length, sampled
        )

    def token(self, position: int) -> int:
        after = position - len(self.scheduled.history)
        return self.extra[after] if after >= 0 else self.scheduled.history[position]

    def scheduled_for(self, start: int, end: int, *, sampling: bool) -> ScheduledRequest:
        """Runs the tokens at ``start`` … ``end - 1``."""
        history = self.scheduled.history
        after = len(history)
        tokens = history[start:end] + self.extra[max(0, start - after) : max(0, end - after)]
        params = self.scheduled.sampling if sampling else None
        return ScheduledRequest(self.scheduled.request_id, tokens, start, self.scheduled.blocks, params, True)


def _check_vocabularies(target_folder: Path, target: Model, folder: Path, draft: Model) -> None:
    """Padded sizes may differ, the tokens may not."""
    paths = [target_folder / "tokenizer.json", folder / "tokenizer.json"]
    if all(path.is_file() for path in paths):
        vocabularies = [Tokenizer.from_file(str(path)).get_vocab() for path in paths]
        same = vocabularies[0] == vocabularies[1]
        used = max(vocabularies[0].values(), default=-1) + 1
        same = same and used <= min(target.vocab_size, draft.vocab_size)
    else:
        same = target.vocab_size == draft.vocab_size
    if not same:
        raise StartupError(
            f"--draft-model {folder} has another vocabulary than {target_folder}, so its draft tokens would mean other "
            "text. Use a smaller model of the same family."
        )
