"""The tokens that each request's grammar allows next, as bits, computed beside the forward pass."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par, fill_next_token_bitmask_par_with_draft_tokens
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as RustTokenizer
from torch import Tensor

from engine.core.sampling_params import Grammar
from engine.grammar.language import definition, limits, plain
from engine.worker.batch import Draw

_END = "<|end of grammar|>"
"""A token of our own that llguidance takes for the end: which tokens really end an answer, each request says."""

_KEPT = 64
"""Grammars that stay compiled."""

Bits = NDArray[np.int32]


@dataclass(slots=True)
class Pending:
    """Masks on their way."""

    draws: list[int]
    bits: Future[Bits]

    def wait(self) -> tuple[list[int], Tensor]:
        return self.draws, torch.from_numpy(self.bits.result())


@dataclass(slots=True)
class _State:
    matcher: LLMatcher
    consumed: int = 0
    """Generated tokens that the matcher has seen."""


class Grammars:
    """One matcher a request, which follows the request's own list of tokens: preemption costs it nothing.

    All work is done in one thread of its own, which shares it out to others outside of Python. Where a grammar is
    complete, the request's stop tokens are allowed; where nothing else may follow, they alone are.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """``vocab_size``: how many logits there are, which may be more than the tokenizer has tokens.

        Returns at once; the vocabulary's trie (half a second for 150,000 tokens) is built in the thread.
        """
        self._words = -(-vocab_size // 32)
        self._vocab_size = vocab_size
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._vocabulary = self._thread.submit(_read, folder)
        self._executor = LLExecutor()
        self._compiler = ThreadPoolExecutor(1, "compiler")
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._lock = Lock()
        """Of the dictionary, which both threads change."""
        self._states: dict[int, _State] = {}
        self._failed: dict[int, str] = {}

    def prepare(self, grammar: Grammar) -> Future[LLMatcher] | None:
        """Starts to compile it, in a thread of its own: a large one takes seconds, for which no step should wait.

        ``None`` if it is compiled.
        """
        if (grammar.kind, grammar.source) in self._compiled:
            return None
        return self._compiler.submit(self._compile, grammar)

    def begin(self, draws: Sequence[Draw]) -> Pending | None:
        """Starts to compute the masks of the draws that have a grammar; ``None`` if none has."""
        bound = [i for i, draw in enumerate(draws) if draw.sampling.grammar is not None]
        if not bound:
            return None
        return Pending(bound, self._thread.submit(self._fill, [draws[i] for i in bound]))

    def take_failed(self) -> dict[int, str]:
        """Requests whose grammar ran into llguidance's limits since the last call, and why."""
        failed, self._failed = self._failed, {}
        return failed

    def forget(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            self._states.pop(request_id, None)

    def _fill(self, draws: list[Draw]) -> Bits:
        tokenizer, end = self._vocabulary.result()
        # Draws after a guess that the grammar forbids stay as they are: nobody will want them.
        bits = np.full((len(draws), -(-tokenizer.vocab_size // 32)), -1, dtype=np.int32)
        alone: list[tuple[LLMatcher, int]] = []
        guessed: list[tuple[LLMatcher, int, list[int]]] = []
        for row, guesses in _rows(draws, end):
            state = self._follow(draws[row], tokenizer)
            if guesses:
                guessed.append((state.matcher, row, guesses))
            else:
                alone.append((state.matcher, row))
        if alone:
            fill_next_token_bitmask_par(self._executor, alone, bits)
        if guessed:
            fill_next_token_bitmask_par_with_draft_tokens(self._executor, guessed, bits)
        for request_id in {draw.request_id for draw in draws}:
            matcher = self._states[request_id].matcher
            if matcher.is_error():
                self._failed[request_id] = plain(matcher.get_error())
        self._let_end(draws, bits, end)
        return self._fit(bits)

    def _follow(self, draw: Draw, tokenizer: LLTokenizer) -> _State:
        """The request's matcher, which has seen all that was generated."""
        state = self._states.get(draw.request_id)
        if state is None:
            assert draw.sampling.grammar is not None
            grammar = draw.sampling.grammar
            state = _State(self._compile(grammar).deep_copy())
            if grammar.prefix:
                state.matcher.consume_tokens(tokenizer.tokenize_str(grammar.prefix))
            self._states[draw.request_id] = state
        new = draw.history[draw.prompt_length + state.consumed :]
        if new:
            state.matcher.consume_tokens(new)
            state.consumed += len(new)
        return state

    def _compile(self, grammar: Grammar) -> LLMatcher:
        key = grammar.kind, grammar.source
        compiled = self._compiled.get(key)
        if compiled is None:
            tokenizer, _ = self._vocabulary.result()
            compiled = LLMatcher(tokenizer, definition(grammar), log_level=0, limits=limits())
        with self._lock:
            self._compiled[key] = compiled
            self._compiled.move_to_end(key)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return compiled

    def _let_end(self, draws: list[Draw], bits: Bits, end: int) -> None:
        """Puts each request's stop tokens in the place of ours."""
        word, bit = divmod(end, 32)
        mine = np.uint32(1 << bit)
        unsigned = bits.view(np.uint32)
        over = np.flatnonzero(unsigned[:, word] & mine)
        unsigned[:, word] &= ~mine
        for row in over.tolist():
            stops = [token for token in draws[row].sampling.stop_token_ids if token < end]
            for token in stops:
                unsigned[row, token // 32] |= np.uint32(1 << token % 32)
            if not stops and not unsigned[row].any():
                # Nothing ends this request but its length: better any text than none to choose from.
                bits[row] = -1

    def _fit(self, bits: Bits) -> Bits:
        """As many words as the logits have: ids that the tokenizer has not are never allowed."""
        if bits.shape[1] == self._words:
            return bits
        fitted = np.zeros((len(bits), self._words), dtype=np.int32)
        width = min(self._words, bits.shape[1])
        fitted[:, :width] = bits[:, :width]
        return fitted


def _rows(draws: list[Draw], known: int) -> list[tuple[int, list[int]]]:
    """Where each request's draws begin, and the guesses between them up to one that is none of the ``known`` tokens.

    A model may have more logits than its tokenizer has tokens, and whoever guesses may guess any of them.
    """
    found: list[tuple[int, list[int]]] = []
    for row, draw in enumerate(draws):
        if draw.guesses:
            found[-1] = found[-1][0], list(takewhile(lambda guess: guess < known, draw.guesses))
        else:
            found.append((row, []))
    return found


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
