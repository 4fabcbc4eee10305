"""Rotary position embedding in the half-split layout of Hugging Face checkpoints (https://arxiv.org/abs/2104.09864).

    out[t, h, i]     = x[t, h, i] * cos[t, i] - x[t, h, i + d] * sin[t, i]
    out[t, h, i + d] = x[t, h, i + d] * cos[t, i] + x[t, h, i] * sin[t, i]      for i < d = rotary / 2
    out[t, h, j]     = x[t, h, j]                                               for j >= rotary

``norm_rope`` normalises each head before: ``x / sqrt(mean(x²) + eps) * weight``. ``shifted_rope`` adds a bias before,
and takes a constant off after: ``rope(x + bias) * factors - shift``, as keys with a large bias lose much of what tells
them apart if they are rounded with it (engine/layers/key_smoothing.py).

Shapes: ``x`` [tokens, heads, head_dim]; ``cos``, ``sin`` [tokens, 1, rotary], the tokens' rows of the tables, repeated
for both halves; ``weight`` [heads, 2 * head_dim], each head's weight repeated; ``bias``, ``factors``, ``shift`` float32
[heads, head_dim]. All return a new contiguous tensor of ``x``'s shape and dtype.

On a GPU a program reads some heads of a token once, normalises and rotates them in registers in float32, and rounds
once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Variant, arch, jit, on_triton, tl, triton
from kernels.native import rows as native

PAIRS = 512
"""Pairs of elements that a program rotates, on all chips, which determines its number of heads."""


def rope_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotary = cos.shape[-1]
    low, high = x[..., :rotary].chunk(2, dim=-1)
    rotated = torch.cat([-high, low], -1)
    return torch.cat([torch.addcmul(x[..., :rotary] * cos, rotated, sin), x[..., rotary:]], -1)


def norm_rope_reference(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return rope_reference((wide * weight[:, : x.shape[-1]]).to(x.dtype), cos, sin)


def shifted_rope_reference(
    x: Tensor, bias: Tensor, factors: Tensor, shift: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    rotated = rope_reference(x.float() + bias, cos.float(), sin.float())
    return (rotated * factors - shift).to(x.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if on_triton(x):
        return rope_triton(x, cos, sin)
    if native.takes(x, x.shape[-1], cos.shape[-1] // 2):
        return native.norm_rope(x, None, 0.0, cos, sin)
    if x.shape[-1] != cos.shape[-1]:
        return rope_reference(x, cos, sin)
    # The middle of [-x, x] is x rotated by a right angle.
    return torch.addcmul(x * cos, _middle(torch.cat([-x, x], -1)), sin)


def norm_rope(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    if on_triton(x):
        return norm_rope_triton(x, weight, eps, cos, sin)
    if weight.dtype == x.dtype and native.takes(x, x.shape[-1], cos.shape[-1] // 2):
        return native.norm_rope(x, weight, eps, cos, sin)
    size = x.shape[-1]
    if x.device.type != "cpu" or size != cos.shape[-1]:
        return norm_rope_reference(x, weight, eps, cos, sin)
    # The layer norm of [-x, x] is an RMS norm (see rms_norm.py), and has the rotated halves, too.
    both = torch.layer_norm(torch.cat([-x, x], -1), (2 * size,), None, None, eps) * weight
    return torch.addcmul(both[..., size:] * cos, _middle(both), sin)


def shifted_rope(x: Tensor, bias: Tensor, factors: Tensor, shift: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if on_triton(x):
        return shifted_rope_triton(x, bias, factors, shift, cos, sin)
    if native.takes(x, x.shape[-1], cos.shape[-1] // 2):
        return native.shifted_rope(x, bias, factors, shift, cos, sin)
    return shifted_rope_reference(x, bias, factors, shift, cos, sin)


def _middle(both: Tensor) -> Tensor:
    quarter = both.shape[-1] // 4
    return both[..., quarter : 3 * quarter]


@jit
def _rope_kernel(
    x,
    weight,
    factors,
    shift,
    cos,
    sin,
    out,
    x_stride,
    head_stride,
    cos_stride,
    sin_stride,
    eps,
    heads,
    HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    NORM: tl.constexpr,
    SHIFT: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF)[None, :]
    pair_mask = (head < heads) & (column < ROTARY // 2)
    source = x + token * x_stride + head * head_stride
    target = out + (token * heads + head) * HEAD_DIM
    scales = weight + head * (2 * HEAD_DIM)
    low = tl.load(source + column, pair_mask, other=0.0).to(tl.float32)
    high = tl.load(source + ROTARY // 2 + column, pair_mask, other=0.0).to(tl.float32)
    rest = low
    after = column
    rest_mask = pair_mask
    if REST > 0:
        after = ROTARY + tl.arange(0, REST)[None, :]
        rest_mask = (head < heads) & (after < HEAD_DIM)
        rest = tl.load(source + after, rest_mask, other=0.0).to(tl.float32)
    one = head * HEAD_DIM
    if SHIFT:
        low += tl.load(weight + one + column, pair_mask, other=0.0)
        high += tl.load(weight + one + ROTARY // 2 + column, pair_mask, other=0.0)
        if REST > 0:
            rest += tl.load(weight + one + after, rest_mask, other=0.0)
    if NORM:
        squares = tl.sum(low * low, 1) + tl.sum(high * high, 1)
        if REST > 0:
            squares += tl.sum(rest * rest, 1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        low *= scale * tl.load(scales + column, pair_mask, other=0.0).to(tl.float32)
        high *= scale * tl.load(scales + ROTARY // 2 + column, pair_mask, other=0.0).to(tl.float32)
        if REST > 0:
            rest *= scale * tl.load(scales + after, rest_mask, other=0.0).to(tl.float32)
    cos_mask = column < ROTARY // 2
    cosine = tl.load(cos + token * cos_stride + column, cos_mask, other=0.0).to(tl.float32)
    sine = tl.load(sin + token * sin_stride + column, cos_mask, other=0.0).to(tl.float32)
    first, second = low * cosine - high * sine, high * cosine + low * sine
    if SHIFT:
        first = first * tl.load(factors + one + column, pair_mask, other=0.0)
        first -= tl.load(shift + one + column, pair_mask, other=0.0)
        second = second * tl.load(factors + one + ROTARY // 2 + column, pair_mask, other=0.0)
        second -= tl.load(shift + one + ROTARY // 2 + column, pair_mask, other=0.0)
        if REST > 0:
            rest = rest * tl.load(factors + one + after, rest_mask, other=0.0)
            rest -= tl.load(shift + one + after, rest_mask, other=0.0)
    dtype = out.dtype.element_ty
    tl.store(target + column, first.to(dtype), pair_mask)
    tl.store(target + ROTARY // 2 + column, second.to(dtype), pair_mask)
    if REST > 0:
        tl.store(target + after, rest.to(dtype), rest_mask)


def _blocks(head_dim: int, rotary: int, heads: int) -> dict[str, int]:
    half = triton.next_power_of_2(max(1, rotary // 2))
    return {
        "HEAD_DIM": head_dim,
        "ROTARY": rotary,
        "HEADS": min(max(1, PAIRS // half), triton.next_power_of_2(heads)),
        "HALF": half,
        "REST": triton.next_power_of_2(head_dim - rotary) if rotary < head_dim else 0,
    }


def _warps(blocks: dict[str, int], arch: str) -> int:
    """8 elements of each half per thread: loads of 16 bytes with 16-bit elements."""
    return max(1, blocks["HEADS"] * blocks["HALF"] // (512 if arch == "gfx942" else 256))


def rope_triton(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _launch(x, cos, sin)


def norm_rope_triton(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    return _launch(x, cos, sin, weight, eps)


def shifted_rope_triton(
    x: Tensor, bias: Tensor, factors: Tensor, shift: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    return _launch(x, cos, sin, bias, shifted=(factors, shift))


def _launch(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    weight: Tensor | None = None,
    eps: float = 0.0,
    shifted: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """``weight``: with ``shifted``, factors and shift, the bias."""
    tokens, heads, head_dim = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    blocks = _blocks(head_dim, cos.shape[-1], heads)
    if out.numel():
        _rope_kernel[(tokens, triton.cdiv(heads, blocks["HEADS"]))](
            x,
            x if weight is None else weight,
            *(shifted or (x, x)),
            cos,
            sin,
            out,
            x.stride(0),
            x.stride(1),
            cos.stride(0),
            sin.stride(0),
            eps,
            heads,
            **blocks,
            NORM=weight is not None and shifted is None,
            SHIFT=shifted is not None,
            num_warps=_warps(blocks, arch(out.device)),
        )
    return out


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    for dtype in ("bf16", "fp16"):
        for head_dim, rotary, kind in (
            (128, 128, ""),
            (128, 128, " norm"),
            (80, 32, ""),
            (128, 128, " shift"),
        ):
            blocks, shift = _blocks(head_dim, rotary, 24), kind == " shift"
            yield Variant(
                f"{dtype} head_dim={head_dim} rotary={rotary}{kind}",
                _rope_kernel,
                {
                    **dict.fromkeys(("x", "cos", "sin", "out"), f"*{dtype}"),
                    **dict.fromkeys(("weight", "factors", "shift"), "*fp32" if shift else f"*{dtype}"),
                    **dict.fromkeys(("x_stride", "head_stride", "cos_stride", "sin_stride", "heads"), "i32"),
                    "eps": "fp32",
                },
                {**blocks, "NORM": kind == " norm", "SHIFT": shift},
                num_warps=_warps(blocks, arch),
                unaligned=frozenset({"heads"}),
            )
