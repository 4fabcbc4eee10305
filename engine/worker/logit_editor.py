"""Changes to logits before sampling: grammar masks, ``min_tokens``, biases and penalties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from engine.core.sampling_params import SamplingParams
from engine.core.sampling_row import SamplingRow
from engine.worker.upload import upload
from kernels.edit_logits import Edits, edit_logits_triton
from kernels.launch import on_triton

_NEVER = float("-inf")


class LogitEditor:
    """Caches, for each request of the last step, what does not change and its tokens' counts, so that a step costs a
    request only its new tokens. A request that skips a step is counted again, so nothing has to be released.
    """

    def __init__(self) -> None:
        self._cached: dict[int, _RequestEdits] = {}

    def edit(
        self,
        logits: Tensor,
        sampling_rows: Sequence[SamplingRow],
        masks: tuple[list[int], Tensor] | None = None,
    ) -> Tensor:
        """``logits`` [len(sampling_rows), vocab] themselves where there is nothing to edit, otherwise a copy in
        float32.

        In this order, as in vLLM: what the grammar forbids and, before ``min_tokens``, the stop tokens become -inf;
        ``logit_bias`` is added; then the penalties. Where a grammar allows nothing but stop tokens, ``min_tokens`` is
        ignored.
        """
        rows = [row for row, sampling_row in enumerate(sampling_rows) if edited(sampling_row.sampling)]
        if not rows and masks is None:
            self._cached = {}
            return logits
        stops, biases, counts = self._gather(sampling_rows, rows, logits.shape[1])
        if on_triton(logits):
            return edit_logits_triton(logits, _edits(logits, masks, (stops, biases, counts)))
        logits = logits.to(torch.float32, copy=True)
        if masks is not None:
            _bar(logits, *masks)
        if stops:
            _bar_stops(logits, stops)
        if biases:
            at, (added,) = biases.tensors(logits.device)
            logits.index_put_(at, added, accumulate=True)
        if counts:
            at, (charge, repetition) = counts.tensors(logits.device)
            values = logits[at]
            logits[at] = torch.where(values > 0, values / repetition, values * repetition) - charge
        return logits

    def _gather(
        self, sampling_rows: Sequence[SamplingRow], rows: Sequence[int], vocab: int
    ) -> tuple[_Entries, _Entries, _Entries]:
        """Edits of ``rows``: masked stop tokens, biases and penalties."""
        kept = self._cached
        self._cached = {}
        stops, biases, counts = _Entries(), _Entries(), _Entries()
        for row in rows:
            sampling_row = sampling_rows[row]
            params = sampling_row.sampling
            notes = self._cached.get(sampling_row.request_id) or kept.get(sampling_row.request_id)
            if notes is None or notes.history is not sampling_row.history or notes.params is not params:
                notes = _RequestEdits(sampling_row, vocab)
            self._cached[sampling_row.request_id] = notes
            if sampling_row.position - sampling_row.prompt_length < params.min_tokens and len(notes.stops):
                stops.add(row, notes.stops)
            if len(notes.biased):
                biases.add(row, notes.biased, notes.biases)
            if notes.counts is not None:
                notes.catch_up()
                tokens, times = notes.counts.beside(sampling_row.draft_tokens)
                charge = params.frequency_penalty * times + params.presence_penalty * (times > 0)
                counts.add(row, tokens, charge, np.full(len(tokens), params.repetition_penalty, np.float32))
        return stops, biases, counts


def edited(params: SamplingParams) -> bool:
    """Whether logits are changed before a token is sampled."""
    return bool(params.min_tokens or params.logit_bias or _penalized(params))


def _penalized(params: SamplingParams) -> bool:
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1)


def _edits(logits: Tensor, masks: tuple[list[int], Tensor] | None, entries: Sequence[_Entries]) -> Edits:
    """All edits, uploaded to the GPU in one copy."""
    rows = len(logits)
    which, bits = masks or ([], torch.empty(0, 0, dtype=torch.int32))
    mask_of = np.full(rows, -1, dtype=np.int32)
    mask_of[which] = np.arange(len(which))
    arrays = [mask_of, bits.numpy().ravel()]
    if any(entries):
        sizes = np.concatenate([[0], *(entry.sizes(rows) for entry in entries)])
        columns = zip(*(entry.columns() for entry in entries), strict=True)
        arrays += [np.cumsum(sizes).astype(np.int32), *map(np.concatenate, columns)]
    of, flat, *places = upload(arrays, logits.device)
    return Edits(*((of, flat.view(bits.shape)) if which else (None, None)), *places)


def _bar(logits: Tensor, rows: list[int], bits: Tensor) -> None:
    """``bits`` int32 [len(rows), words]. Tokens beyond the last word are masked."""
    allowed = _unpack(bits.to(logits.device))[:, : logits.shape[1]]
    if allowed.shape[1] < logits.shape[1]:
        allowed = pad(allowed, (0, logits.shape[1] - allowed.shape[1]))
    index = torch.tensor(rows, device=logits.device)
    # Ceilings of inf and -inf: on a CPU thirty times as fast as to fill where a mask says so.
    logits[index] = torch.minimum(logits[index], allowed.float().sub_(0.5).mul_(float("inf")))


def _unpack(bits: Tensor) -> Tensor:
    """int32 [rows, words] → uint8 [rows, 32 * words], each 0 or 1."""
    if bits.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(bits.numpy().view(np.uint8), axis=-1, bitorder="little"))
    places = torch.arange(32, dtype=torch.int32, device=bits.device)
    return ((bits[:, :, None] >> places) & 1).to(torch.uint8).flatten(1)


def _bar_stops(logits: Tensor, stops: _Entries) -> None:
    at, _ = stops.tensors(logits.device)
    before = logits[at]
    logits[at] = _NEVER
    row, _ = at
    stuck = logits.new_zeros(len(logits), dtype=torch.bool)
    stuck[stops.rows] = logits[stops.rows].amax(-1) == _NEVER
    logits[at] = torch.where(stuck[row], before, _NEVER)


class _Entries:
    """Single logits, row by row, with numbers for each."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._tokens: list[np.ndarray] = []
        self._figures: list[tuple[np.ndarray, ...]] = []

    def __bool__(self) -> bool:
        return bool(self.rows)

    def add(self, row: int, tokens: np.ndarray, *figures: np.ndarray) -> None:
        self.rows.append(row)
        self._tokens.append(tokens)
        self._figures.append(figures)

    def tensors(self, device: torch.device) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
        """((rows, tokens), figures): each flat, int64 and float32."""
        sizes = [len(tokens) for tokens in self._tokens]
        places = np.stack([np.repeat(np.array(self.rows), sizes), np.concatenate(self._tokens)])
        row, token = torch.from_numpy(places).to(device)
        columns = [np.concatenate(column) for column in zip(*self._figures, strict=True)]
        return (row, token), [torch.from_numpy(column.astype(np.float32)).to(device) for column in columns]

    def sizes(self, rows: int) -> np.ndarray:
        """How many entries each of ``rows`` rows has."""
        sizes = np.zeros(rows, dtype=np.int32)
        sizes[self.rows] = [len(tokens) for tokens in self._tokens]
        return sizes

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(tokens, first figure, second figure), int32 and float32; figures that there are not are 0."""
        tokens = np.concatenate([_ids(()), *self._tokens])
        figures = np.zeros((2, len(tokens)), dtype=np.float32)
        for i, column in enumerate(zip(*self._figures, strict=True)):
            figures[i] = np.concatenate(column)
        return tokens.astype(np.int32), figures[0], figures[1]


class _RequestEdits:
    """What is cached of one request."""

    __slots__ = ("_read", "biased", "biases", "counts", "history", "params", "stops")

    def __init__(self, sampling_row: SamplingRow, vocab: int) -> None:
        self.params = params = sampling_row.sampling
        self.history = sampling_row.history
        self._read = len(sampling_row.history)
        self.stops = _ids(token for token in params.stop_token_ids if token < vocab)
        biases: dict[int, float] = {}
        for token, bias in params.logit_bias:
            biases[token] = biases.get(token, 0.0) + bias
        self.biased = _ids(biases)
        self.biases = np.array(list(biases.values()), dtype=np.float32)
        self.counts: _Counts | None = None
        if _penalized(params):
            # Only the repetition penalty counts the prompt.
            start = sampling_row.prompt_length if params.repetition_penalty == 1 else 0
            self.counts = _Counts(_ids(sampling_row.history[start:]), sampling_row.prompt_length - start)

    def catch_up(self) -> None:
        if self.counts is not None:
            for token in self.history[self._read :]:
                self.counts.add(token)
        self._read = len(self.history)


class _Counts:
    """A request's different tokens, and how often each was generated: 0 for those of the prompt alone."""

    __slots__ = ("_places", "_times", "_tokens")

    def __init__(self, tokens: np.ndarray, prompt_length: int) -> None:
        self._tokens, places = np.unique(tokens, return_inverse=True)
        self._times = np.bincount(places[prompt_length:], minlength=len(self._tokens)).astype(np.float32)
        self._places = {token: place for place, token in enumerate(self._tokens.tolist())}

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._tokens):
            more = max(64, place)
            self._tokens = np.concatenate([self._tokens, np.zeros(more, dtype=np.int64)])
            self._times = np.concatenate([self._times, np.zeros(more, dtype=np.float32)])
        self._tokens[place] = token
        self._times[place] += 1

    def beside(self, draft_tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """(tokens, times), as if ``draft_tokens`` had been generated too."""
        used = len(self._places)
        tokens, times = self._tokens[:used], self._times[:used]
        if not draft_tokens:
            return tokens, times
        times, unknown = times.copy(), dict[int, int]()
        for draft_token in draft_tokens:
            place = self._places.get(draft_token)
            if place is None:
                unknown[draft_token] = unknown.get(draft_token, 0) + 1
            else:
                times[place] += 1
        return (
            np.concatenate([tokens, _ids(unknown)]),
            np.concatenate([times, np.array(list(unknown.values()), dtype=np.float32)]),
        )


def _ids(tokens: Iterable[int]) -> np.ndarray:
    return np.array(list(tokens), dtype=np.int64)
