"""Speculative decoding's check: how many guesses of each request count (https://arxiv.org/abs/2211.17192).

Two rules, whose tokens are spread exactly as the target's own:

- ``verify``. The target drew a token at each guess and one after the last, whether or not the guess is right. Guesses
  count up to the first that is not the token drawn there; that token, or the one after the last guess, counts too:

      accepted = the least i such that tokens[start + i] != guesses[start + i], or the number of guesses

  For guesses made without chance this is rejection sampling. The engine's sampler applies this rule to tokens that are
  on the host already: histories, stop tokens, grammars and logprobs want each of them there, so a launch of its own
  would save no round trip, and on a GPU too ``engine.worker.sampler.verify`` walks over them. The kernel is for a step
  whose tokens stay on the device.

- ``reject``. Guesses drawn by chance from a draft's q, as the paper has it: guess x counts if u * q(x) < p(x), for a
  uniform u of its own, which is with probability min(1, p(x) / q(x)). Where one fails, the token is drawn from
  max(p - q, 0), normalised (where rounding leaves nothing of that, p is q, and the guess stays); where none does, the
  one after the last from p. Draws are by inverting the cumulative distribution in the order of ids.

Shapes: ``starts`` int32 or int64 [requests + 1], where each request's rows begin; it has one row more than guesses.
``tokens``, ``guesses`` int64 [rows], ``guesses`` unread in a request's last row; ``p``, ``q`` float32 [rows, vocab],
``q`` unread in a request's last row; ``accept`` float32 [rows], ``uniform`` float32 [requests], in [0, 1). ``verify``
returns ``accepted`` int64 [requests] and ``kept`` int64 [rows]: the tokens that count, then -1; ``reject`` the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from kernels.launch import Variant, arch, jit, on_triton, tl

SIZES = {"CHUNK": 2048}
"""Probabilities that a program looks at at a time, on all chips."""

WARPS = {"sm_80": 8, "sm_90": 8, "sm_100": 8, "gfx942": 4}


def verify_reference(tokens: Tensor, guesses: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    kept, accepted = torch.full_like(tokens, -1), []
    for start, end in pairwise(starts.tolist()):
        right = (tokens[start : end - 1] == guesses[start : end - 1]).long().cumprod(0).sum().item()
        kept[start : start + right + 1] = tokens[start : start + right + 1]
        accepted.append(right)
    return torch.tensor(accepted, dtype=torch.int64, device=tokens.device), kept


def reject_reference(
    p: Tensor, q: Tensor, guesses: Tensor, accept: Tensor, uniform: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    kept, accepted = torch.full_like(guesses, -1), []
    for request, (start, end) in enumerate(pairwise(starts.tolist())):
        row = start
        while row < end - 1 and accept[row] * q[row, guesses[row]] < p[row, guesses[row]]:
            kept[row] = guesses[row]
            row += 1
        accepted.append(row - start)
        weights = p[row].double() if row == end - 1 else (p[row].double() - q[row].double()).clamp(min=0)
        ends = weights.cumsum(0)
        found = torch.searchsorted(ends, uniform[request].double() * ends[-1], right=True)
        kept[row] = torch.minimum(found, weights.nonzero().amax()) if ends[-1] > 0 else guesses[row]
    return torch.tensor(accepted, dtype=torch.int64, device=guesses.device), kept


def verify(tokens: Tensor, guesses: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    check = verify_triton if on_triton(tokens) else verify_reference
    return check(tokens, guesses, starts)


def reject(
    p: Tensor, q: Tensor, guesses: Tensor, accept: Tensor, uniform: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    check = reject_triton if on_triton(p) else reject_reference
    return check(p, q, guesses, accept, uniform, starts)


@jit
def _verify_kernel(tokens, guesses, starts, accepted, kept, BLOCK: tl.constexpr):
    request = tl.program_id(0)
    start, end = tl.load(starts + request), tl.load(starts + request + 1)
    place = tl.arange(0, BLOCK)
    wrong = end - 1 - start
    for at in range(0, end - 1 - start, BLOCK):
        inside = at + place < end - 1 - start
        token = tl.load(tokens + start + at + place, inside, other=0)
        guess = tl.load(guesses + start + at + place, inside, other=0)
        wrong = tl.minimum(wrong, tl.min(tl.where(inside & (token != guess), at + place, end - start), 0))
    tl.store(accepted + request, wrong.to(tl.int64))
    for at in range(0, end - start, BLOCK):
        inside = at + place < end - start
        token = tl.load(tokens + start + at + place, inside, other=0)
        tl.store(kept + start + at + place, tl.where(at + place <= wrong, token, -1), inside)


@jit
def _weights(p, q, columns, vocab, residual):
    """Of the token that replaces a guess, or of the one after the last."""
    inside = columns < vocab
    weights = tl.load(p + columns, inside, other=0.0)
    weights -= tl.load(q + columns, inside & residual, other=0.0)
    return tl.maximum(weights, 0.0)


@jit
def _reject_kernel(
    p,
    q,
    guesses,
    accept,
    uniform,
    starts,
    accepted,
    kept,
    vocab,
    p_stride,
    q_stride,
    CHUNK: tl.constexpr,
):
    request = tl.program_id(0)
    start, end = tl.load(starts + request).to(tl.int64), tl.load(starts + request + 1).to(tl.int64)
    row = start
    going = row < end - 1
    while going:
        guess = tl.load(guesses + row)
        right = tl.load(accept + row) * tl.load(q + row * q_stride + guess) < tl.load(
            p + row * p_stride + guess
        )
        if right:
            tl.store(kept + row, guess)
            row += 1
        going = right & (row < end - 1)
    tl.store(accepted + request, row - start)
    residual = row < end - 1
    target, other = p + row * p_stride, q + row * q_stride
    column = tl.arange(0, CHUNK)
    total = 0.0
    for chunk in range(0, vocab, CHUNK):
        total += tl.sum(_weights(target, other, chunk + column, vocab, residual), 0)
    wanted = tl.load(uniform + request) * total
    before = 0.0
    first = vocab
    last = 0
    for chunk in range(0, vocab, CHUNK):
        weights = _weights(target, other, chunk + column, vocab, residual)
        ends = before + tl.cumsum(weights, 0)
        passed = (weights > 0) & (ends > wanted)
        first = tl.minimum(first, tl.min(tl.where(passed, chunk + column, vocab), 0))
        last = tl.maximum(last, tl.max(tl.where(weights > 0, chunk + column, 0), 0))
        before += tl.sum(weights, 0)
    token = tl.where(total > 0, tl.minimum(first, last).to(tl.int64), tl.load(guesses + row))
    tl.store(kept + row, token)
    for after in range(row + 1, end):
        tl.store(kept + after, tl.full([], -1, tl.int64))


def verify_triton(tokens: Tensor, guesses: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    requests = len(starts) - 1
    accepted = torch.empty(requests, dtype=torch.int64, device=tokens.device)
    kept = torch.empty_like(tokens)
    if requests:
        _verify_kernel[(requests,)](tokens, guesses, starts, accepted, kept, BLOCK=32, num_warps=1)
    return accepted, kept


def reject_triton(
    p: Tensor, q: Tensor, guesses: Tensor, accept: Tensor, uniform: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    requests = len(starts) - 1
    accepted = torch.empty(requests, dtype=torch.int64, device=guesses.device)
    kept = torch.empty_like(guesses)
    if requests:
        _reject_kernel[(requests,)](
            p,
            q,
            guesses,
            accept,
            uniform,
            starts,
            accepted,
            kept,
            p.shape[1],
            p.stride(0),
            q.stride(0),
            **SIZES,
            num_warps=WARPS[arch(p.device)],
        )
    return accepted, kept


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    integers = dict.fromkeys(("tokens", "guesses", "accepted", "kept"), "*i64") | {"starts": "*i32"}
    yield Variant("verify", _verify_kernel, integers, {"BLOCK": 32}, num_warps=1)
    yield Variant(
        "reject",
        _reject_kernel,
        {
            **dict.fromkeys(("p", "q", "accept", "uniform"), "*fp32"),
            **{name: integers[name] for name in ("guesses", "starts", "accepted", "kept")},
            **dict.fromkeys(("vocab", "p_stride", "q_stride"), "i32"),
        },
        SIZES,
        num_warps=WARPS[arch],
    )
