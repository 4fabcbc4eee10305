"""Samples draft tokens at positions that the device alone knows.

As ``Sampler`` does, by the same parameters and the same uniform numbers, but without biases and penalties, which hang
on tokens that no host has seen: a request that asks for them gets draft tokens that are right less often, and no other
answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.core.sampling_params import SamplingParams
from engine.worker.sampler import GOLDEN, MIX_1, MIX_2, mixed
from engine.worker.upload import upload
from kernels.launch import on_triton
from kernels.sample import MIN_TEMPERATURE, sample


class DraftSampler:
    def __init__(self, params: Sequence[SamplingParams], vocab: int, device: torch.device) -> None:
        """``params``: of the rows in their order; ``vocab``: logits of each."""
        self._vocab = vocab
        self._greedy = all(one.temperature < MIN_TEMPERATURE for one in params)
        if self._greedy:
            return
        shares = np.array([[p.temperature, p.top_p, p.min_p] for p in params], dtype=np.float32).T
        counts = np.array([min(p.top_k, vocab) or vocab for p in params], dtype=np.int64)
        seeds = mixed([p.seed for p in params]).view(np.int64)
        arrays = [*np.ascontiguousarray(shares), counts, seeds]
        self._temperature, self._top_p, self._min_p, self._top_k, self._seeds = upload(arrays, device)

    def sample(self, logits: Tensor, positions: Tensor) -> Tensor:
        """int64 [rows], of the first so many requests. ``logits`` [rows, vocab]; ``positions`` int64 [rows]: those of
        the tokens that are sampled."""
        if self._greedy:
            return logits.max(dim=-1).indices
        rows = len(logits)
        uniform, top_k = uniforms(self._seeds[:rows], positions), self._top_k[:rows]
        if on_triton(logits):
            uniform, top_k = uniform.float(), top_k.int()
        shares = self._temperature[:rows], top_k, self._top_p[:rows], self._min_p[:rows]
        return sample(logits, *shares, uniform).long().clamp_(max=self._vocab - 1)


def uniforms(seeds: Tensor, positions: Tensor) -> Tensor:
    """``sampler.uniforms``, on the device: float64. ``seeds``: ``mixed``, int64."""
    mixed = _mix(seeds + positions * _signed(GOLDEN))
    return _shifted(mixed, 11).double() * 2.0**-53


def _mix(z: Tensor) -> Tensor:
    # Sums and products of int64 wrap around as those of uint64 do.
    z = z + _signed(GOLDEN)
    z = (z ^ _shifted(z, 30)) * _signed(MIX_1)
    z = (z ^ _shifted(z, 27)) * _signed(MIX_2)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, by: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def _signed(number: np.uint64) -> int:
    return int(number.astype(np.int64))
