"""The tokens that each request's grammar allows next, as bits, computed beside the forward pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from llguidance import LLExecutor, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par, fill_next_token_bitmask_par_with_draft_tokens
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as RustTokenizer
from torch import Tensor

from engine.core.sampling_params import Grammar
from engine.core.sampling_row import SamplingRow
from engine.grammar.compiled import Compiled, Entry
from engine.grammar.follower import SLOW, Bits, Follower

_END = "<|end of grammar|>"
"""A token of our own that llguidance takes for the end: which tokens really end an answer, each request says."""

PATIENCE = 0.002
"""Seconds that a step waits for slow masks, if there are others whom it keeps waiting."""


@dataclass(slots=True)
class _Task:
    """The masks of one request in one step."""

    request_id: int
    follower: Follower
    answer: list[int]
    """All that was generated."""
    stops: frozenset[int]
    rows: list[int] = field(default_factory=list)
    """Which of the step's draws they are."""
    draft_tokens: list[int] = field(default_factory=list)


class Pending:
    """Masks on their way."""

    def __init__(
        self,
        grammars: Grammars,
        together: list[_Task],
        bits: Future[Bits] | None,
        apart: list[_Task],
        alone: bool,
    ) -> None:
        """``bits``: of ``together``, one after the other. ``alone``: no draw of the step is without a grammar."""
        self.late: set[int] = set()
        """Requests whose masks were not waited for, so that nothing can be drawn for them in this step."""
        self._grammars = grammars
        self._together = together
        self._bits = bits
        self._apart = apart
        self._alone = alone

    def wait(self, patience: float | None = None) -> tuple[list[int], Tensor]:
        """(rows, int32 [len(rows), words]): which draws have masks, and these.

        ``patience``: seconds after which slow masks are late, but for the first of them where nobody else is in the
        step; None: all are waited for.
        """
        found: list[tuple[int, Bits]] = []
        if self._bits is not None:
            every, row = self._bits.result(), 0
            for task in self._together:
                if task.follower.exhausted:
                    self._grammars.start_apart(task)
                    self._apart.append(task)
                else:
                    found += zip(task.rows, every[row:], strict=False)
                row += len(task.rows)
        futures = [task.follower.pending[2] for task in self._apart if task.follower.pending]
        if futures and patience is None:
            wait(futures)
        elif futures:
            if self._alone and not found:
                wait(futures, return_when=FIRST_COMPLETED)
            wait(futures, patience)
        for task in self._apart:
            follower = task.follower
            if follower.pending is not None and follower.pending[2].done():
                found += zip(task.rows, follower.pending[2].result(), strict=True)
            else:
                self.late.add(task.request_id)
        for task in (*self._together, *self._apart):
            if task.follower.failed is not None:
                self._grammars.failed[task.request_id] = task.follower.failed
        found.sort(key=lambda one: one[0])
        rows = [row for row, _ in found]
        bits = np.array([bits for _, bits in found], dtype=np.int32).reshape(len(rows), self._grammars.words)
        return rows, torch.from_numpy(bits)


class Grammars:
    """Masks are computed in threads: those that are quick for all requests in one go, those that were slow the last
    time (and the first of each request) one by one in another thread, so that nobody waits for them but who asked.

    Where a grammar is complete, the request's stop tokens are allowed; where nothing else may follow, they alone are.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """``vocab_size``: how many logits there are, which may be more than the tokenizer has tokens.

        Returns at once; the vocabulary's trie (half a second for 150,000 tokens) is built in the thread.
        """
        self.failed: dict[int, str] = {}
        """Requests whose answers cannot go on, and why: see ``take_failed``."""
        self.words = -(-vocab_size // 32)
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._slow = ThreadPoolExecutor(1, "slow-grammar")
        self._compiler = ThreadPoolExecutor(1, "compiler")
        self._vocabulary = self._thread.submit(_read, folder)
        self._executor = LLExecutor()
        self._compiled = Compiled()
        self._followers: dict[int, Follower] = {}

    def prepare(self, grammar: Grammar) -> Future[Entry] | None:
        """Starts to compile it, in a thread of its own: a large one takes seconds, for which no step should wait.

        ``None`` if it is compiled.
        """
        if grammar in self._compiled:
            return None
        return self._compiler.submit(lambda: self._compiled.get(grammar, self._vocabulary.result()[0]))

    def begin(self, sampling_rows: Sequence[SamplingRow]) -> Pending | None:
        """Starts to compute the masks of the draws that have a grammar; ``None`` if none has."""
        tasks = self._tasks(sampling_rows)
        if not tasks:
            return None
        together, apart = [], []
        for task in tasks:
            follower = task.follower
            # One that came late is as good now: its request has gained nothing since. Nor is one lost that was in
            # time while a sibling's was late: they begin in the same step, and might else never all be there at once.
            if follower.waits_for(task.answer, task.draft_tokens):
                apart.append(task)
            elif follower.apart or follower.busy:
                self.start_apart(task)
                apart.append(task)
            else:
                follower.pending = None
                together.append(task)
        bits = self._thread.submit(self._fill_all, together) if together else None
        alone = sum(len(task.rows) for task in tasks) == len(sampling_rows)
        return Pending(self, together, bits, apart, alone)

    def start_apart(self, task: _Task) -> None:
        bits = self._slow.submit(self._fill_one, task)
        task.follower.pending = len(task.answer), task.draft_tokens, bits

    def settle(self) -> None:
        """Waits for what was begun: a step was given up, and its masks are begun anew with the next one."""
        for thread in (self._thread, self._slow):
            thread.submit(int).result()

    def take_failed(self) -> dict[int, str]:
        """Requests whose grammar took too much since the last call, and why."""
        failed, self.failed = self.failed, {}
        return failed

    def forget(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._followers.pop(request_id, None)

    def _tasks(self, sampling_rows: Sequence[SamplingRow]) -> list[_Task]:
        """What is to be done for each request, with the guesses up to one that is none of the tokenizer's tokens.

        A model may have more logits than its tokenizer has tokens, and whoever guesses may guess any of them.
        """
        tasks: list[_Task] = []
        for row, sampling_row in enumerate(sampling_rows):
            grammar = sampling_row.sampling.grammar
            if grammar is None:
                continue
            if not sampling_row.draft_tokens:
                follower = self._followers.get(sampling_row.request_id)
                if follower is None:
                    follower = self._followers[sampling_row.request_id] = Follower(grammar, self._compiled)
                answer = sampling_row.history[sampling_row.prompt_length :]
                tasks.append(
                    _Task(sampling_row.request_id, follower, answer, sampling_row.sampling.stop_token_ids)
                )
            tasks[-1].rows.append(row)
            tasks[-1].draft_tokens = sampling_row.draft_tokens
        return tasks

    def _fill_all(self, tasks: list[_Task]) -> Bits:
        tokenizer, end = self._vocabulary.result()
        bits, row = self._blank(sum(len(task.rows) for task in tasks), tokenizer), 0
        alone, with_drafts, places = [], [], []
        for task in tasks:
            task.follower.follow(task.answer, tokenizer)
            matcher, draft_tokens = task.follower.matcher, _known(task.draft_tokens, end)
            if draft_tokens:
                with_drafts.append((matcher, row, draft_tokens))
            else:
                alone.append((matcher, row))
            places.append(row)
            row += len(task.rows)
        began = time.perf_counter()
        if alone:
            fill_next_token_bitmask_par(self._executor, alone, bits)
        if with_drafts:
            fill_next_token_bitmask_par_with_draft_tokens(self._executor, with_drafts, bits)
        seconds = time.perf_counter() - began
        for task, row in zip(tasks, places, strict=True):
            # Whose fault it was, they find out one by one.
            task.follower.apart = task.follower.apart or seconds > SLOW
            task.follower.worked(seconds / len(tasks))
            task.follower.look()
            self._let_end(task.stops, bits[row : row + len(task.rows)], end)
        return self._fit(bits)

    def _fill_one(self, task: _Task) -> Bits:
        tokenizer, end = self._vocabulary.result()
        bits, follower = self._blank(len(task.rows), tokenizer), task.follower
        follower.follow(task.answer, tokenizer)
        for _ in range(2):
            if follower.exhausted:
                follower.revive(task.answer, tokenizer)
            follower.fill(bits, _known(task.draft_tokens, end))
            if not follower.exhausted:
                break
        self._let_end(task.stops, bits, end)
        return self._fit(bits)

    def _blank(self, rows: int, tokenizer: LLTokenizer) -> Bits:
        # Draws after a guess that the grammar forbids stay as they are: nobody will want them.
        return np.full((rows, -(-tokenizer.vocab_size // 32)), -1, dtype=np.int32)

    def _let_end(self, stop_token_ids: frozenset[int], bits: Bits, end: int) -> None:
        """Puts the request's stop tokens in the place of ours."""
        word, bit = divmod(end, 32)
        mine = np.uint32(1 << bit)
        unsigned = bits.view(np.uint32)
        over = np.flatnonzero(unsigned[:, word] & mine)
        unsigned[:, word] &= ~mine
        stops = [token for token in stop_token_ids if token < end]
        for row in over.tolist():
            for token in stops:
                unsigned[row, token // 32] |= np.uint32(1 << token % 32)
            if not stops and not unsigned[row].any():
                # Nothing ends this request but its length: better any text than none to choose from.
                bits[row] = -1

    def _fit(self, bits: Bits) -> Bits:
        """As many words as the logits have: ids that the tokenizer has not are never allowed."""
        if bits.shape[1] == self.words:
            return bits
        fitted = np.zeros((len(bits), self.words), dtype=np.int32)
        width = min(self.words, bits.shape[1])
        fitted[:, :width] = bits[:, :width]
        return fitted


def _known(draft_tokens: list[int], end: int) -> list[int]:
    return list(takewhile(lambda draft_token: draft_token < end, draft_tokens))


def _read(folder: Path) -> tuple[LLTokenizer, int]:
    """llguidance's tokenizer, and the token that stands for the end of a grammar."""
    tokenizer = RustTokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.add_special_tokens([AddedToken(_END, special=True)])
    end = tokenizer.token_to_id(_END)
    kinds = tokenizer.decoder.__getstate__() if tokenizer.decoder is not None else b""
    if b'"Metaspace"' in kinds:
        # The same to llguidance, which asks only what a token's bytes are, in a form that it reads.
        tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    return LLTokenizer(tokenizer.to_str(), eos_token=end), end
