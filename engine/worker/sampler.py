"""The next token of each request from its logits, and how likely it was."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.core.logprobs import TokenLogprobs
from engine.core.plan import Work
from kernels.sample import sample

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def draw(logits: Tensor, sampled: list[Work]) -> list[int]:
    """``logits`` [len(sampled), vocab]: row by row the token of each work."""
    params = [work.sampling for work in sampled]
    if all(p.temperature == 0 for p in params):
        return logits.argmax(dim=-1).tolist()
    device, vocab = logits.device, logits.shape[1]
    uniform = uniforms([p.seed for p in params], [work.end for work in sampled])
    return sample(
        logits,
        torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        torch.tensor([p.top_k or vocab for p in params], dtype=torch.int64, device=device),
        torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        torch.from_numpy(uniform).to(device),
    ).tolist()


def measure(logits: Tensor, sampled: list[Work], drawn: list[int]) -> dict[int, list[TokenLogprobs]]:
    """The logprobs of the tokens drawn, by request, for those that ask for them. Without any, it costs nothing.

    They are the log-softmax of the logits as the model gives them, before temperature, top-k and top-p, as OpenAI's
    are: they tell what the model thinks, not what the caller made of it.
    """
    rows = [row for row, work in enumerate(sampled) if work.sampling.logprobs is not None]
    if not rows:
        return {}
    wanted = [sampled[row].sampling.logprobs for row in rows]
    logprobs = logits[rows].float().log_softmax(dim=-1)
    tokens = [drawn[row] for row in rows]
    chosen = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None]).squeeze(1).tolist()
    most = min(max(wanted), logits.shape[1])
    values, ids = (found.tolist() for found in logprobs.topk(most, dim=-1))
    return {
        sampled[row].request_id: [
            TokenLogprobs(tokens[i], chosen[i], list(zip(ids[i], values[i], strict=True))[: wanted[i]])
        ]
        for i, row in enumerate(rows)
    }


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
