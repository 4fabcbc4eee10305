"""Bit masks of the tokens that each request's grammar allows next, computed while the forward pass runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from llguidance import LLExecutor, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par, fill_next_token_bitmask_par_with_draft_tokens
from torch import Tensor

from engine.core.plan import ScheduledRequest
from engine.core.sampling_params import Grammar
from engine.core.sampling_row import SamplingRow
from engine.grammar.forecast import Habits
from engine.grammar.grammar_cache import CompiledGrammar, GrammarCache
from engine.grammar.matcher import SLOW_SECONDS, Bits, GrammarMatcher
from engine.grammar.vocabulary import Vocabulary
from engine.grammar.watch import Watch

MASK_TIMEOUT = 0.002
"""Seconds that a step waits for slow masks where other requests share the step."""


@dataclass(slots=True)
class _Task:
    """The masks of one request in one step."""

    request_id: int
    matcher: GrammarMatcher
    answer: list[int]
    """All generated tokens."""
    stops: frozenset[int]
    ahead: int = 0
    """Draft tokens of the request that count as generated here."""
    rows: list[int] = field(default_factory=list)
    """Indices of the step's sampling rows that the masks are for."""
    draft_tokens: list[int] = field(default_factory=list)


class PendingMasks:
    """The masks of a step, in flight."""

    def __init__(
        self,
        grammars: GrammarManager,
        fast: list[_Task],
        bits: Future[Bits] | None,
        slow: list[_Task],
        alone: bool,
    ) -> None:
        """``bits``: the masks of ``fast``, in order. ``alone``: every row of the step has a grammar."""
        self.late: set[int] = set()
        """Requests whose masks were not ready in time, so that no token can be sampled for them in this step."""
        self._grammars = grammars
        self._fast = fast
        self._bits = bits
        self._slow = slow
        self._alone = alone

    def wait(self, timeout: float | None = None) -> tuple[list[int], Tensor]:
        """(rows, int32 [len(rows), words]): the sampling rows that have masks, and the masks.

        ``timeout``: seconds after which slow masks are late; where the step has no other rows, the first of them is
        waited for. None: all are waited for.
        """
        found: list[tuple[int, Bits]] = []
        if self._bits is not None:
            every, row = self._bits.result(), 0
            for task in self._fast:
                if task.matcher.exhausted:
                    self._grammars.start_slow(task)
                    self._slow.append(task)
                else:
                    found += zip(task.rows, every[row:], strict=False)
                row += len(task.rows)
        futures = [task.matcher.pending[2] for task in self._slow if task.matcher.pending]
        if futures and timeout is None:
            wait(futures)
        elif futures:
            if self._alone and not found:
                wait(futures, return_when=FIRST_COMPLETED)
            wait(futures, timeout)
        for task in self._slow:
            matcher = task.matcher
            if matcher.pending is not None and matcher.pending[2].done():
                found += zip(task.rows, matcher.pending[2].result(), strict=True)
            else:
                self.late.add(task.request_id)
        for task in (*self._fast, *self._slow):
            if task.matcher.failed is not None:
                self._grammars.failed[task.request_id] = task.matcher.failed
        found.sort(key=lambda one: one[0])
        rows = [row for row, _ in found]
        bits = np.array([bits for _, bits in found], dtype=np.int32).reshape(len(rows), self._grammars.words)
        return rows, torch.from_numpy(bits)


class GrammarManager:
    """Matchers and masks of all requests that have a grammar.

    Masks are computed in threads: fast ones for all requests in one call, those that were slow the last time (and the
    first of each request) one by one in another thread, so that only their own requests wait for them.

    Where a grammar is complete, the request's stop tokens are allowed; where nothing else may follow, only they are.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """``vocab_size``: how many logits there are, which may be more than the tokenizer has tokens.

        Returns at once: the vocabulary is read with the first grammar, unless ``read_ahead`` was called before.
        """
        self.failed: dict[int, str] = {}
        """Requests whose answers cannot be continued, and why: see ``take_failed``."""
        self.words = -(-vocab_size // 32)
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._slow_thread = ThreadPoolExecutor(1, "slow-grammar")
        self._compiler = ThreadPoolExecutor(1, "compiler")
        self._vocabulary = Vocabulary(folder)
        self._ahead: Future[object] | None = None
        self._executor = LLExecutor()
        self._compiled = GrammarCache()
        self._habits = Habits()
        self._matchers: dict[int, GrammarMatcher] = {}
        self._watches: dict[int, Watch] = {}
        """Of requests whose grammars have not been triggered."""

    def read_ahead(self) -> None:
        """Has the vocabulary read in the thread: for when no request waits."""
        if self._ahead is None:
            self._ahead = self._thread.submit(self._vocabulary.get)

    def prepare(self, grammar: Grammar) -> Future[CompiledGrammar] | None:
        """Starts to compile it, in a thread of its own: a large one takes seconds, for which no step should wait.

        ``None`` if it is compiled.
        """
        if grammar in self._compiled:
            return None
        return self._compiler.submit(lambda: self._compiled.get(grammar, self._vocabulary.get()[0]))

    def start(self, sampling_rows: Sequence[SamplingRow]) -> PendingMasks | None:
        """Starts to compute the masks of the rows that have a grammar; ``None`` if none has."""
        tasks = self._tasks(sampling_rows)
        if not tasks:
            return None
        fast, slow = [], []
        for task in tasks:
            matcher = task.matcher
            # A mask that came late is still valid: its request has no new token since. So is one that was in time
            # while a sibling's was late: siblings start in the same step, and might never all be ready at once.
            if matcher.has_pending(task.answer, task.draft_tokens):
                slow.append(task)
            elif matcher.slow or matcher.busy:
                self.start_slow(task)
                slow.append(task)
            else:
                matcher.pending = None
                fast.append(task)
        bits = self._thread.submit(self._fill_fast, fast) if fast else None
        alone = sum(len(task.rows) for task in tasks) == len(sampling_rows)
        return PendingMasks(self, fast, bits, slow, alone)

    def start_slow(self, task: _Task) -> None:
        bits = self._slow_thread.submit(self._fill_slow, task)
        task.matcher.pending = len(task.answer), task.draft_tokens, bits

    def propose(
        self, requests: Sequence[ScheduledRequest], sampled: Mapping[int, Sequence[int]]
    ) -> dict[int, list[int]]:
        """Draft tokens that the grammars of requests force or suggest after what was sampled in a step."""
        found: dict[int, list[int]] = {}
        for scheduled in requests:
            matcher, tokens = self._matchers.get(scheduled.request_id), sampled.get(scheduled.request_id)
            if matcher is None or not tokens or not scheduled.lookahead or scheduled.sampling is None:
                continue
            if matcher.slow or matcher.busy or not scheduled.sampling.stop_token_ids.isdisjoint(tokens):
                continue
            answer = [*scheduled.history[scheduled.prompt_length :], *tokens]
            tokenizer, _ = self._vocabulary.get()
            if drafts := matcher.propose(answer, scheduled.lookahead, tokenizer, self._habits):
                found[scheduled.request_id] = drafts
        return found

    def drain(self) -> None:
        """Waits for masks in flight, after a step that was abandoned; the next step starts them again."""
        for thread in (self._thread, self._slow_thread):
            thread.submit(int).result()

    def take_failed(self) -> dict[int, str]:
        """Requests that have failed since the last call, and why."""
        failed, self.failed = self.failed, {}
        return failed

    def release(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._matchers.pop(request_id, None)
            self._watches.pop(request_id, None)

    def _tasks(self, sampling_rows: Sequence[SamplingRow]) -> list[_Task]:
        """What is to be done for each request, with the draft tokens up to one that is none of the tokenizer's tokens.

        A model may have more logits than its tokenizer has tokens, and any of them may be proposed.
        """
        tasks: list[_Task] = []
        for row, sampling_row in enumerate(sampling_rows):
            grammar = sampling_row.sampling.grammar
            if grammar is None:
                continue
            request_id, drafts = sampling_row.request_id, sampling_row.draft_tokens
            if not drafts or not tasks or tasks[-1].request_id != request_id:
                matcher = self._matcher(sampling_row, grammar)
                if matcher is None:
                    continue
                answer = [*sampling_row.history[sampling_row.prompt_length :], *drafts]
                stops = sampling_row.sampling.stop_token_ids
                tasks.append(_Task(request_id, matcher, answer, stops, len(drafts)))
            tasks[-1].rows.append(row)
            tasks[-1].draft_tokens = drafts[tasks[-1].ahead :]
        return tasks

    def _matcher(self, row: SamplingRow, grammar: Grammar) -> GrammarMatcher | None:
        """The request's matcher, or where its trigger is met by draft tokens, which may be rejected, one for this step;
        ``None`` while it is not met."""
        request_id = row.request_id
        matcher = self._matchers.get(request_id)
        if matcher is not None:
            return matcher
        if grammar.trigger is None:
            matcher = self._matchers[request_id] = GrammarMatcher(grammar, self._compiled)
            return matcher
        watch = self._watches.get(request_id)
        if watch is None:
            watch = self._watches[request_id] = Watch(grammar.trigger, *self._vocabulary.get())
        if begin := watch.read(row.history, row.prompt_length):
            matcher = self._matchers[request_id] = GrammarMatcher(grammar, self._compiled, begin)
            return matcher
        begin = watch.beyond(row.draft_tokens) if row.draft_tokens else None
        return GrammarMatcher(grammar, self._compiled, begin) if begin else None

    def _fill_fast(self, tasks: list[_Task]) -> Bits:
        tokenizer, end = self._vocabulary.get()
        bits, row = self._blank(sum(len(task.rows) for task in tasks), tokenizer), 0
        alone, with_drafts, first_rows = [], [], []
        for task in tasks:
            task.matcher.advance(task.answer, tokenizer)
            matcher, draft_tokens = task.matcher.llmatcher, _in_vocabulary(task.draft_tokens, end)
            if draft_tokens:
                with_drafts.append((matcher, row, draft_tokens))
            else:
                alone.append((matcher, row))
            first_rows.append(row)
            row += len(task.rows)
        started = time.perf_counter()
        if alone:
            fill_next_token_bitmask_par(self._executor, alone, bits)
        if with_drafts:
            fill_next_token_bitmask_par_with_draft_tokens(self._executor, with_drafts, bits)
        seconds = time.perf_counter() - started
        for task, row in zip(tasks, first_rows, strict=True):
            # Which of them was slow shows when they are computed one by one.
            task.matcher.slow = task.matcher.slow or seconds > SLOW_SECONDS
            task.matcher.charge(seconds / len(tasks))
            task.matcher.check()
            self._replace_end_token(task.stops, bits[row : row + len(task.rows)], end)
        return self._fit(bits)

    def _fill_slow(self, task: _Task) -> Bits:
        tokenizer, end = self._vocabulary.get()
        bits, matcher = self._blank(len(task.rows), tokenizer), task.matcher
        matcher.advance(task.answer, tokenizer)
        for _ in range(2):
            if matcher.exhausted:
                matcher.restart(task.answer, tokenizer)
            matcher.fill(bits, _in_vocabulary(task.draft_tokens, end))
            if not matcher.exhausted:
                break
        self._replace_end_token(task.stops, bits, end)
        return self._fit(bits)

    def _blank(self, rows: int, tokenizer: LLTokenizer) -> Bits:
        # Rows after a draft token that the grammar forbids stay unmasked: their samples are discarded.
        return np.full((rows, -(-tokenizer.vocab_size // 32)), -1, dtype=np.int32)

    def _replace_end_token(self, stop_token_ids: frozenset[int], bits: Bits, end: int) -> None:
        """Replaces ``end`` by the request's stop tokens."""
        word, bit = divmod(end, 32)
        end_bit = np.uint32(1 << bit)
        unsigned = bits.view(np.uint32)
        over = np.flatnonzero(unsigned[:, word] & end_bit)
        unsigned[:, word] &= ~end_bit
        stops = [token for token in stop_token_ids if token < end]
        for row in over.tolist():
            for token in stops:
                unsigned[row, token // 32] |= np.uint32(1 << token % 32)
            if not stops and not unsigned[row].any():
                # Only max_tokens ends this request: any token is better than an empty mask.
                bits[row] = -1

    def _fit(self, bits: Bits) -> Bits:
        """As wide as the logits: ids beyond the tokenizer's vocabulary are never allowed."""
        if bits.shape[1] == self.words:
            return bits
        fitted = np.zeros((len(bits), self.words), dtype=np.int32)
        width = min(self.words, bits.shape[1])
        fitted[:, :width] = bits[:, :width]
        return fitted


def _in_vocabulary(draft_tokens: list[int], end: int) -> list[int]:
    return list(takewhile(lambda draft_token: draft_token < end, draft_tokens))
