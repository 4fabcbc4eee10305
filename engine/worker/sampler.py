"""The next token of each request from its logits, and how likely it was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.core.logprobs import TokenLogprobs
from engine.core.sampling_row import SamplingRow
from engine.worker.logit_editor import LogitEditor
from engine.worker.reasoning_budget import forced
from engine.worker.upload import upload
from kernels.launch import on_triton
from kernels.sample import MIN_TEMPERATURE, sample

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


class Sampler:
    """Samples tokens, step after step."""

    def __init__(self) -> None:
        self._editor = LogitEditor()

    def sample(
        self,
        logits: Tensor,
        sampling_rows: Sequence[SamplingRow],
        masks: tuple[list[int], Tensor] | None = None,
    ) -> Tensor:
        """One token for each row of ``logits`` [len(sampling_rows), vocab], which are not modified: int64, on their
        device, and nothing waits for them.

        In vLLM's order (https://docs.vllm.ai/en/latest/api/vllm/v1/sample/sampler.html):

        1. tokens that a grammar forbids are masked: ``masks`` is (rows, int32 [len(rows), words] of bits, 1 for
          allowed);
        2. ``min_tokens`` masks the stop tokens, ``logit_bias`` is added;
        3. the penalties for repetition, frequency and presence;
        4. greedy requests take the largest logit, the first of equals; for the others
        5. temperature, min-p, top-k, top-p, and the sample itself (kernels/sample.py).

        The first three apply to greedy requests too, and cost nothing where no request uses them. Last, a reasoning
        budget that is spent replaces what was sampled.
        """
        tokens = _choose(self._editor.edit(logits, sampling_rows, masks), sampling_rows)
        if demanded := forced(sampling_rows):
            arrays = np.array([*demanded.items()], dtype=np.int64).T
            rows, instead = upload([*np.ascontiguousarray(arrays)], logits.device)
            tokens[rows] = instead
        return tokens


def _choose(logits: Tensor, sampling_rows: Sequence[SamplingRow]) -> Tensor:
    if on_triton(logits):
        return _choose_on_gpu(logits, sampling_rows)
    params = [sampling_row.sampling for sampling_row in sampling_rows]
    if all(p.temperature < MIN_TEMPERATURE for p in params):
        # Also the first of several largest; in 16 bits on a CPU in a quarter of argmax's time.
        return logits.max(dim=-1).indices
    device, vocab = logits.device, logits.shape[1]
    uniform = uniforms([p.seed for p in params], [sampling_row.position for sampling_row in sampling_rows])
    shares = [[p.temperature, p.top_p, p.min_p] for p in params]
    temperature, top_p, min_p = torch.tensor(shares, dtype=torch.float32).T.contiguous().to(device)
    top_k = torch.tensor([min(p.top_k, vocab) or vocab for p in params], dtype=torch.int64, device=device)
    tokens = sample(logits, temperature, top_k, top_p, min_p, torch.from_numpy(uniform).to(device))
    # A row of NaN (weights or an adapter that overflow) yields no token; it must not fail the other requests' step.
    return tokens.clamp_(max=vocab - 1)


def _choose_on_gpu(logits: Tensor, sampling_rows: Sequence[SamplingRow]) -> Tensor:
    """One copy to the device, and no synchronization."""
    params, vocab = [sampling_row.sampling for sampling_row in sampling_rows], logits.shape[1]
    shares = np.array([[p.temperature, p.top_p, p.min_p] for p in params], dtype=np.float32).T
    uniform = uniforms(
        [p.seed for p in params], [sampling_row.position for sampling_row in sampling_rows]
    ).astype(np.float32)
    top_k = np.array([min(p.top_k, vocab) or vocab for p in params], dtype=np.int32)
    arrays = [*np.ascontiguousarray(shares), uniform, top_k]
    temperature, top_p, min_p, uniform, top_k = upload(arrays, logits.device)
    return sample(logits, temperature, top_k, top_p, min_p, uniform).long()


class PendingLogprobs:
    """The logprobs of sampled tokens, for those that ask for them. Without any, they cost nothing.

    They are the log-softmax of the logits as the model gives them, before temperature, top-k and top-p, as OpenAI's
    are: the model's distribution, not the caller's modification of it.
    """

    def __init__(self, logits: Tensor, sampling_rows: Sequence[SamplingRow], sampled: Tensor) -> None:
        """``sampled``: [len(sampling_rows)], on the device of ``logits``."""
        self.tensors: list[Tensor] = []
        """On the device: of each row that asks, its token's logprob, the most likely ones', and these tokens."""
        self._sampling_rows = sampling_rows
        self._rows = [
            row
            for row, sampling_row in enumerate(sampling_rows)
            if sampling_row.sampling.logprobs is not None
        ]
        self._wanted = [sampling_rows[row].sampling.logprobs or 0 for row in self._rows]
        if self._rows:
            (rows,) = upload([np.array(self._rows, dtype=np.int64)], logits.device)
            logprobs = logits[rows].float().log_softmax(dim=-1)
            chosen = logprobs.gather(1, sampled[rows][:, None]).squeeze(1)
            values, ids = logprobs.topk(min(max(self._wanted), logits.shape[1]), dim=-1)
            self.tensors = [chosen, values, ids]

    def read(
        self, tensors: Sequence[Tensor], sampled: Sequence[int], kept: Sequence[bool]
    ) -> dict[int, list[TokenLogprobs]]:
        """Those of the tokens that are ``kept``, by request. ``tensors``: on the host by now."""
        logprobs_of: dict[int, list[TokenLogprobs]] = {}
        if not self._rows:
            return logprobs_of
        chosen, values, ids = (tensor.tolist() for tensor in tensors)
        for i, row in enumerate(self._rows):
            if kept[row]:
                top = list(zip(ids[i], values[i], strict=True))[: self._wanted[i]]
                logprobs_of.setdefault(self._sampling_rows[row].request_id, []).append(
                    TokenLogprobs(sampled[row], chosen[i], top)
                )
        return logprobs_of


def uniforms(seeds: list[int], positions: list[int]) -> np.ndarray:
    """One number in [0, 1) per request, float64: a function of the request's seed and the token's position alone.

    The generator is SplitMix64 (Steele et al., 2014, https://doi.org/10.1145/2714064.2660195), entered at the
    position; it has no state to keep, so preemption costs it nothing.
    """
    with np.errstate(over="ignore"):
        found = _mix(mixed(seeds) + np.array(positions, dtype=np.uint64) * GOLDEN)
    return (found >> np.uint64(11)) * 2.0**-53


def mixed(seeds: list[int]) -> np.ndarray:
    """uint64: where each request's generator begins."""
    with np.errstate(over="ignore"):
        return _mix(np.array([seed & (2**64 - 1) for seed in seeds], dtype=np.uint64))


def _mix(z: np.ndarray) -> np.ndarray:
    z = z + GOLDEN
    z = (z ^ (z >> np.uint64(30))) * MIX_1
    z = (z ^ (z >> np.uint64(27))) * MIX_2
    return z ^ (z >> np.uint64(31))
