"""A plan as tensors: all new tokens of all requests in one flat row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.core.plan import Plan, Work
from engine.core.sampling_params import SamplingParams
from engine.layers.attend import AttentionInput, DecodeGroup, PrefillGroup

_SMALLEST = 4
"""Blocks of the narrowest decode group."""


@dataclass(slots=True)
class Draw:
    """A token to be drawn: for whom, and after what."""

    request_id: int
    sampling: SamplingParams
    history: list[int]
    """The request's tokens, prompt first. Only to be read."""
    prompt_length: int
    guesses: list[int]
    """Those that stand between ``history`` and this token."""
    guess: int | None = None
    """What this token is guessed to be; ``None`` after the last guess."""

    @property
    def position(self) -> int:
        """Where the token will stand."""
        return len(self.history) + len(self.guesses)


@dataclass(slots=True)
class Batch:
    tokens: Tensor
    """int64 [tokens]"""
    positions: Tensor
    """int64 [tokens]"""
    attention: AttentionInput
    draws: list[Draw]
    """A request's draws stand together and in order; those of siblings that begin follow."""
    drawn_rows: Tensor
    """int64 [len(draws)]: the row of the token before each."""
    adapters: list[tuple[str, int, int]]
    """Which rows are whose: (adapter, first row, row after its last)."""


class BatchBuilder:
    """Decodes come first, then chunks of prompts.

    On a CPU decodes are grouped by the power of two of blocks that their sequence fills: a short sequence is then
    not padded to the longest one's length, and the shape that it is computed in, hence its result to the last bit,
    depends on itself alone. On a GPU all decodes are one group: the kernel stops at each sequence's own end.
    """

    def __init__(self, block_size: int, padding_block: int, device: torch.device) -> None:
        self._block_size = block_size
        self._padding_block = padding_block
        self._device = device
        self._grouped = device.type == "cpu"

    def build(self, plan: Plan) -> Batch:
        groups: dict[int, list[Work]] = {}
        chunks = []
        for work in plan.work:
            if len(work.tokens) == 1:
                groups.setdefault(self._width(work), []).append(work)
            else:
                chunks.append(work)
        order = [work for width in sorted(groups) for work in groups[width]] + chunks
        counts = np.array([len(work.tokens) for work in order])
        starts = np.array([work.start for work in order])
        ends = np.cumsum(counts)
        tokens = np.array([token for work in order for token in work.tokens], dtype=np.int64)
        positions = np.arange(len(tokens)) - np.repeat(ends - counts - starts, counts)

        width = max(-(-work.end // self._block_size) for work in order)
        width = max([width, *groups]) if self._grouped else width
        tables = np.full((len(order), width), self._padding_block, dtype=np.int64)
        for row, work in enumerate(order):
            used = -(-work.end // self._block_size)
            tables[row, :used] = work.blocks[:used]
        owners = np.repeat(np.arange(len(order)), counts)
        slots = (
            tables[owners, positions // self._block_size] * self._block_size + positions % self._block_size
        )

        block_tables = self._tensor(tables)
        seq_lens = self._tensor(starts + counts)
        decodes, row = [], 0
        for blocks in sorted(groups):
            stop = row + len(groups[blocks])
            group_width = blocks if self._grouped else width
            decodes.append(DecodeGroup(row, stop, block_tables[row:stop, :group_width], seq_lens[row:stop]))
            row = stop
        prefills = []
        if chunks:
            query_starts = self._tensor(np.concatenate([[row], ends[row:]]) - row)
            prefills.append(PrefillGroup(row, len(tokens), block_tables[row:], query_starts, seq_lens[row:]))
        draws, rows = _draws(order, ends.tolist())
        return Batch(
            tokens=self._tensor(tokens),
            positions=self._tensor(positions),
            attention=AttentionInput(self._tensor(slots), decodes, prefills),
            draws=draws,
            drawn_rows=self._tensor(np.array(rows, dtype=np.int64)),
            adapters=[
                (work.adapter, int(end) - len(work.tokens), int(end))
                for work, end in zip(order, ends, strict=True)
                if work.adapter is not None
            ],
        )

    def _width(self, work: Work) -> int:
        if not self._grouped:
            return 0
        blocks = -(-work.end // self._block_size)
        return max(_SMALLEST, 1 << (blocks - 1).bit_length())

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _draws(order: list[Work], ends: list[int]) -> tuple[list[Draw], list[int]]:
    draws, rows = [], []
    for work, end in zip(order, ends, strict=True):
        if work.sampling is None:
            continue
        guesses = work.tokens[len(work.tokens) - work.drafts :]
        for i in range(work.drafts + 1):
            guess = guesses[i] if i < work.drafts else None
            draws.append(
                Draw(work.request_id, work.sampling, work.history, work.prompt_length, guesses[:i], guess)
            )
            rows.append(end - 1 - work.drafts + i)
        for sibling in work.siblings:
            draws.append(Draw(sibling.id, sibling.params, work.history, work.prompt_length, []))
            rows.append(end - 1)
    return draws, rows
