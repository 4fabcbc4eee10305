"""The next token of each request from its logits, and how likely it was."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.core.logprobs import TokenLogprobs
from engine.core.sampling_row import SamplingRow
from engine.worker.logit_editor import LogitEditor
from engine.worker.reasoning_budget import force
from engine.worker.upload import upload
from kernels.launch import on_triton
from kernels.sample import MIN_TEMPERATURE, sample

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


class Sampler:
    """Samples tokens, step after step."""

    def __init__(self) -> None:
        self._editor = LogitEditor()

    def sample(
        self,
        logits: Tensor,
        sampling_rows: Sequence[SamplingRow],
        masks: tuple[list[int], Tensor] | None = None,
    ) -> list[int]:
        """One token for each row of ``logits`` [len(sampling_rows), vocab], which are not modified.

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
        return force(sampling_rows, _choose(self._editor.edit(logits, sampling_rows, masks), sampling_rows))


def _choose(logits: Tensor, sampling_rows: Sequence[SamplingRow]) -> list[int]:
    if on_triton(logits):
        return _choose_on_gpu(logits, sampling_rows)
    params = [sampling_row.sampling for sampling_row in sampling_rows]
    if all(p.temperature < MIN_TEMPERATURE for p in params):
        # Also the first of several largest; in 16 bits on a CPU in a quarter of argmax's time.
        return logits.max(dim=-1).indices.tolist()
    device, vocab = logits.device, logits.shape[1]
    uniform = uniforms([p.seed for p in params], [sampling_row.position for sampling_row in sampling_rows])
    shares = [[p.temperature, p.top_p, p.min_p] for p in params]
    temperature, top_p, min_p = torch.tensor(shares, dtype=torch.float32).T.contiguous().to(device)
    top_k = torch.tensor([min(p.top_k, vocab) or vocab for p in params], dtype=torch.int64, device=device)
    tokens = sample(logits, temperature, top_k, top_p, min_p, torch.from_numpy(uniform).to(device))
    # A row of NaN (weights or an adapter that overflow) yields no token; it must not fail the other requests' step.
    return tokens.clamp_(max=vocab - 1).tolist()


def _choose_on_gpu(logits: Tensor, sampling_rows: Sequence[SamplingRow]) -> list[int]:
    """One copy to the device, and one back, the only synchronization."""
    params, vocab = [sampling_row.sampling for sampling_row in sampling_rows], logits.shape[1]
    shares = np.array([[p.temperature, p.top_p, p.min_p] for p in params], dtype=np.float32).T
    uniform = uniforms(
        [p.seed for p in params], [sampling_row.position for sampling_row in sampling_rows]
    ).astype(np.float32)
    top_k = np.array([min(p.top_k, vocab) or vocab for p in params], dtype=np.int32)
    arrays = [*np.ascontiguousarray(shares), uniform, top_k]
    temperature, top_p, min_p, uniform, top_k = upload(arrays, logits.device)
    return sample(logits, temperature, top_k, top_p, min_p, uniform).tolist()


def sampled_logprobs(
    logits: Tensor, sampling_rows: Sequence[SamplingRow], sampled: Sequence[int], kept: Sequence[bool]
) -> dict[int, list[TokenLogprobs]]:
    """The logprobs of the valid tokens, by request, for those that ask for them. Without any, it costs nothing.

    They are the log-softmax of the logits as the model gives them, before temperature, top-k and top-p, as OpenAI's
    are: the model's distribution, not the caller's modification of it.
    """
    rows = [
        row
        for row, sampling_row in enumerate(sampling_rows)
        if kept[row] and sampling_row.sampling.logprobs is not None
    ]
    if not rows:
        return {}
    wanted = [sampling_rows[row].sampling.logprobs for row in rows]
    logprobs = logits[rows].float().log_softmax(dim=-1)
    tokens = [sampled[row] for row in rows]
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None]).squeeze(1).tolist()
    most = min(max(wanted), logits.shape[1])
    values, ids = (found.tolist() for found in logprobs.topk(most, dim=-1))
    logprobs_of: dict[int, list[TokenLogprobs]] = {}
    for i, row in enumerate(rows):
        top = list(zip(ids[i], values[i], strict=True))[: wanted[i]]
        logprobs_of.setdefault(sampling_rows[row].request_id, []).append(
            TokenLogprobs(tokens[i], chosen[i], top)
        )
    return logprobs_of


def uniforms(seeds: list[int], positions: list[int]) -> np.ndarray:
    """One number in [0, 1) per request, float64: a function of the request's seed and the token's position alone.

    The generator is SplitMix64 (Steele et al., 2014, https://doi.org/10.1145/2714064.2660195), entered at the
    position; it has no state to keep, so preemption costs it nothing.
    """
    with np.errstate(over="ignore"):
        start = _mix(np.array([seed & (2**64 - 1) for seed in seeds], dtype=np.uint64))
        mixed = _mix(start + np.array(positions, dtype=np.uint64) * _GOLDEN)
    return (mixed >> np.uint64(11)) * 2.0**-53


def _mix(z: np.ndarray) -> np.ndarray:
    z = z + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))
