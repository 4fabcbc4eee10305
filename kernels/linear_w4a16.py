"""A matrix product with weights in groups of 4-bit codes.

    out[r, n] = sum over k of x[r, k] * (code[n, k] - zero[n, k / group]) * scale[n, k / group]  + bias[n]

Shapes: ``x`` [rows, in]; ``bias`` [out]; the weight as ``pack_w4`` makes it of codes [out, in] from 0 to 15, with a
``scale`` and a ``zero``, no integer in general, for each group of 32, 64 or 128 inputs. The formula is AWQ's and
GPTQ's; their words hold eight outputs (AWQ) or eight inputs (GPTQ) in different orders, which the readers in
engine/weights undo. ``offset`` there is ``(8 - zero) * scale``.

Inputs are packed in steps of 128, and a step is [out, 32] words of 16 bits: bits ``4q`` to ``4q + 3`` of word ``j`` are
input ``32 q + j``. So a tile of outputs is contiguous, each thread loads 16 bytes, a quarter of a step is one shift and
one mask away from the layout of matrix instructions, and no group ends within a quarter. A code is converted by placing
it in the lowest bits of 128 (1024 in float16); this constant is subtracted together with the zero point, as both are
multiples of the sum of a group's ``x``. Scales are applied to sums in float32, never to single weights.

Up to ``MAX_ROWS`` rows use that kernel, in tiles of 16 rows or, from 17 on, of 32; for more the weight is widened to
``x``'s dtype and multiplied by cuBLAS, which rounds weights and sums in a different order. With a given tile size, a
row's result depends on that row alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels import launch, split_k
from kernels.launch import Variant, jit, on_triton, tl, triton
from kernels.split_k import finish

STEP = 128
"""Inputs that are packed together."""
GROUPS = (128, 64, 32)
MAX_ROWS = {"sm_80": 64, "sm_90": 64, "sm_100": 64, "gfx942": 64}
"""Rows up to which the kernel is used; not measured."""
_CENTER = {torch.bfloat16: 128, torch.float16: 1024, torch.float32: 0}
"""A number at which consecutive values of the dtype are one apart, and whose lowest four bits are 0. For float32 codes
are converted instead."""


@dataclass(frozen=True, slots=True)
class PackedInt4Weight:
    """A packed weight. Outputs are padded to a multiple of 64, inputs to one of 128, with scales of zero."""

    words: Tensor
    """int16 [steps, out, 32]"""
    scales: Tensor
    """int32 [groups, out]: the bits of a scale in the lower half, of a zero in the upper one."""
    dtype: torch.dtype
    """The dtype of scales and zeros, bfloat16 or float16."""
    group: int
    in_features: int
    out_features: int

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes


def pack_w4(codes: Tensor, scale: Tensor, offset: Tensor) -> PackedInt4Weight:
    """``codes`` uint8 [out, in]; ``scale`` and ``offset`` [out, in / group]. A group must be a multiple of 32: one that
    is none of ``GROUPS`` becomes several."""
    outputs, inputs = codes.shape
    size = inputs // scale.shape[1]
    group = next((group for group in GROUPS if size % group == 0), 0)
    if not group:
        raise ValueError(f"Groups of {size} weights cannot be packed; multiples of 32 can.")
    rows, columns = -outputs % 64, -inputs % STEP
    padded = functional.pad(codes, (0, columns, 0, rows)).to(torch.int32)
    quarters = (
        padded.view(len(padded), -1, 4, 32) << torch.arange(0, 16, 4, device=codes.device).int()[:, None]
    )
    words = quarters.sum(2, dtype=torch.int32).to(torch.int16).transpose(0, 1).contiguous()

    pairs = _narrow(scale.float(), offset.float()).repeat_interleave(size // group, 1)
    pairs = functional.pad(pairs, (0, 0, 0, columns // group, 0, rows)).transpose(0, 1).contiguous()
    return PackedInt4Weight(words, pairs.view(torch.int32)[..., 0], pairs.dtype, group, inputs, outputs)


def _narrow(scale: Tensor, offset: Tensor) -> Tensor:
    """Scales and zeros [..., 2] in the 16-bit dtype that loses less: checkpoints' scales are float16, ours have 8
    bits."""
    scale = torch.where(scale.abs() < 2.0**-100, 2.0**-100, scale)
    exact = torch.stack([scale, 8 - offset / scale], -1)
    forms = [exact.to(dtype) for dtype in (torch.bfloat16, torch.float16)]

    def loss(form: Tensor) -> float:
        step, zero = form.float().unbind(-1)
        lost = (step - scale).abs() * 8 + ((8 - zero) * step - offset).abs()
        return float(lost.nan_to_num(torch.inf).sum())

    return min(forms, key=loss)


def widen_w4(weight: PackedInt4Weight, dtype: torch.dtype) -> Tensor:
    """[out, in]"""
    shifts = torch.arange(0, 16, 4, device=weight.words.device)[:, None]
    codes = (weight.words.to(torch.int32)[:, :, None] >> shifts) & 15
    codes = codes.transpose(0, 1).reshape(weight.words.shape[1], -1, weight.group).float()
    pairs = weight.scales.view(weight.dtype).view(*weight.scales.shape, 2).transpose(0, 1).float()
    wide = (codes - pairs[..., 1:]) * pairs[..., :1]
    return wide.flatten(1)[: weight.out_features, : weight.in_features].to(dtype)


def linear_w4a16_reference(x: Tensor, weight: PackedInt4Weight, bias: Tensor | None = None) -> Tensor:
    return functional.linear(x, widen_w4(weight, x.dtype), None if bias is None else bias.to(x.dtype))


def linear_w4a16(
    x: Tensor,
    weight: PackedInt4Weight,
    bias: Tensor | None = None,
    counters: Tensor | None = None,
    *,
    invariant: bool = False,
) -> Tensor:
    """``counters``: from ``counters_w4``, allocated if None. ``invariant``: any number of rows uses the kernel, with
    one tile size."""
    if not on_triton(x):
        return linear_w4a16_reference(x, weight, bias)
    if invariant or len(x) <= MAX_ROWS[launch.arch(x.device)]:
        return linear_w4a16_triton(x, weight, bias, counters, tile=16 if invariant else None)
    return functional.linear(x, widen_w4_triton(weight, x.dtype), None if bias is None else bias.to(x.dtype))


@jit
def _scale_and_zero(pair, HALF: tl.constexpr):
    if HALF:
        return (
            pair.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32),
            (pair >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32),
        )
    return (pair << 16).to(tl.float32, bitcast=True), (pair & -65536).to(tl.float32, bitcast=True)


@jit
def _numbers(packed, quarter: tl.constexpr, dtype: tl.constexpr, CENTER: tl.constexpr, PAIRS: tl.constexpr):
    """Codes of a quarter, plus ``CENTER``."""
    if CENTER == 0:
        return ((packed >> (4 * quarter)) & 15).to(dtype)
    magic: tl.constexpr = 0x4300 if CENTER == 128 else 0x6400
    if PAIRS:
        # Two words at a time, as there is no shift of register halves; bits that cross over are masked out.
        bits = tl.inline_asm_elementwise(
            "{ .reg .b32 t; shr.b32 t, $1, $2; lop3.b32 $0, t, 0x000f000f, $4, 0xea; }",
            "=r,r,r,r,r,r",
            [packed, 4 * quarter, magic * 65537],
            tl.int16,
            is_pure=True,
            pack=2,
        )
    else:
        bits = ((packed >> (4 * quarter)) & 15) | magic
    return bits.to(dtype, bitcast=True)


@jit(varying=("rows",))
def _linear_w4a16_kernel(
    x,
    words,
    scales,
    bias,
    pieces,
    counters,
    out,
    rows,
    inputs,
    outputs,
    padded,
    x_stride,
    steps,
    steps_a_split,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    CENTER: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    AMD: tl.constexpr,
    PAIRS: tl.constexpr,
    STAGES: tl.constexpr,
):
    tile, piece, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    output = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    row = block * ROWS + tl.arange(0, ROWS)
    word = tl.arange(0, 32)
    dtype: tl.constexpr = x.dtype.element_ty
    ones = tl.full((OUTPUTS, 32), 1.0, tl.float32).to(dtype)
    x += row.to(tl.int64)[None, :] * x_stride
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    # With explicit stages the loop prefetches everything, scales included.
    stop = tl.minimum(steps, (piece + 1) * steps_a_split)
    for step in tl.range(piece * steps_a_split, stop, num_stages=STAGES):
        packed = tl.load(words + (step * padded.to(tl.int64) + output)[:, None] * 32 + word[None, :])
        product = tl.zeros((OUTPUTS, ROWS), tl.float32)
        summed = tl.zeros((OUTPUTS, ROWS), tl.float32)
        for quarter in tl.static_range(4):
            k = step * 128 + quarter * 32 + word
            numbers = tl.load(x + k[:, None], (k < inputs)[:, None] & (row < rows)[None, :], other=0.0)
            codes = _numbers(packed, quarter, dtype, CENTER, PAIRS)
            product = tl.dot(codes, numbers, product, input_precision="ieee")
            summed = tl.dot(ones, numbers, summed, input_precision="ieee")
            if (quarter + 1) * 32 % GROUP == 0:
                group = (step * (128 // GROUP) + quarter * 32 // GROUP) * padded + output
                scale, zero = _scale_and_zero(tl.load(scales + group), HALF)
                product -= summed * (zero + CENTER)[:, None]
                total += product * scale[:, None]
                product = tl.zeros((OUTPUTS, ROWS), tl.float32)
                summed = tl.zeros((OUTPUTS, ROWS), tl.float32)
    tile += block * tl.num_programs(0)
    finish(total, bias, pieces, counters, out, row, output, rows, outputs, tile, piece, SPLITS, BIAS, AMD)


@jit
def _widen_w4_kernel(
    words,
    scales,
    out,
    inputs,
    outputs,
    padded,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    step = tl.program_id(1).to(tl.int64)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    word = tl.arange(0, 32)
    packed = tl.load(words + (step * padded + output)[:, None] * 32 + word[None, :])
    for quarter in tl.static_range(4):
        k = step * 128 + quarter * 32 + word
        group = (step * (128 // GROUP) + quarter * 32 // GROUP) * padded + output
        scale, zero = _scale_and_zero(tl.load(scales + group), HALF)
        codes = ((packed >> (4 * quarter)) & 15).to(tl.float32)
        wide = (codes - zero[:, None]) * scale[:, None]
        where = output.to(tl.int64)[:, None] * inputs + k[None, :]
        tl.store(
            out + where, wide.to(out.dtype.element_ty), (output < outputs)[:, None] & (k < inputs)[None, :]
        )


@dataclass(frozen=True, slots=True)
class _Launch:
    outputs: int
    """Of a tile. Two warps keep to ``mma.sync``, whose left side comes from registers on all of NVIDIA's chips."""
    warps: int
    stages: int


def _launch(tile: int, arch: str) -> _Launch:
    """By rows in a tile: 4 KB of weights and as much of ``x`` (or twice that) are loaded ahead for each stage."""
    if arch == "gfx942":
        return _Launch(64, 2, 2)
    return _Launch(64, 2, 4 if tile == 16 else 3)


def counters_w4(weight: PackedInt4Weight) -> Tensor:
    """For all launches with that weight, as long as they follow one another."""
    return split_k.counters(weight.words.shape[1] // 64 * 4, weight.words.device)


def linear_w4a16_triton(
    x: Tensor,
    weight: PackedInt4Weight,
    bias: Tensor | None = None,
    counters: Tensor | None = None,
    tile: int | None = None,
) -> Tensor:
    rows, inputs = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty(rows, weight.out_features, dtype=x.dtype, device=x.device)
    if not rows:
        return out
    arch = launch.arch(x.device)
    tile = tile or (16 if rows <= 16 else 32)
    steps, padded, _ = weight.words.shape
    table = _launch(tile, arch)
    tiles, blocks = padded // table.outputs, triton.cdiv(rows, tile)
    splits = split_k.split(tiles, steps, arch)
    pieces = out
    if splits.count > 1:
        pieces = torch.empty(splits.count, rows, weight.out_features, dtype=torch.float32, device=x.device)
    if counters is None or len(counters) < tiles * blocks:
        counters = split_k.counters(tiles * blocks, x.device)
    _linear_w4a16_kernel[(tiles, splits.count, blocks)](
        x,
        weight.words,
        weight.scales,
        out if bias is None else bias,
        pieces,
        counters,
        out,
        rows,
        inputs,
        weight.out_features,
        padded,
        x.stride(0),
        steps,
        splits.steps,
        GROUP=weight.group,
        HALF=weight.dtype == torch.float16,
        CENTER=_CENTER[x.dtype],
        ROWS=tile,
        OUTPUTS=table.outputs,
        SPLITS=splits.count,
        BIAS=bias is not None,
        AMD=arch == "gfx942",
        PAIRS=x.is_cuda and arch != "gfx942",
        STAGES=table.stages,
        num_warps=table.warps,
        num_stages=table.stages,
    )
    return out


def widen_w4_triton(weight: PackedInt4Weight, dtype: torch.dtype) -> Tensor:
    out = torch.empty(weight.out_features, weight.in_features, dtype=dtype, device=weight.words.device)
    steps, padded, _ = weight.words.shape
    _widen_w4_kernel[(padded // 64, steps)](
        weight.words,
        weight.scales,
        out,
        weight.in_features,
        weight.out_features,
        padded,
        GROUP=weight.group,
        HALF=weight.dtype == torch.float16,
        OUTPUTS=64,
        num_warps=4,
    )
    return out


def variants(arch: str) -> Iterator[Variant]:
    """Some of Llama-3-8B's and Qwen3-0.6B's layers: all kinds of groups, and of tiles."""
    names = ("rows", "inputs", "outputs", "padded", "x_stride", "steps", "steps_a_split")
    numbers = dict.fromkeys(names, "i32")
    for dtype, group, tile, (inputs, outputs) in (
        ("bf16", 128, 16, (4096, 4096)),
        ("bf16", 128, 32, (4096, 4096)),
        ("bf16", 64, 16, (1024, 4096)),
        ("bf16", 32, 32, (14336, 4096)),
        ("fp16", 128, 16, (4096, 4096)),
    ):
        table = _launch(tile, arch)
        splits = split_k.split(outputs // table.outputs, inputs // STEP, arch)
        pointers = dict.fromkeys(("x", "bias", "out"), f"*{dtype}") | {"words": "*i16", "scales": "*i32"}
        yield Variant(
            f"{dtype} group={group} rows={tile} splits={splits.count}",
            _linear_w4a16_kernel,
            {**pointers, "pieces": "*fp32", "counters": "*i32", **numbers},
            {
                "GROUP": group,
                "HALF": dtype == "fp16",
                "CENTER": 128 if dtype == "bf16" else 1024,
                "ROWS": tile,
                "OUTPUTS": table.outputs,
                "SPLITS": splits.count,
                "BIAS": False,
                "AMD": arch == "gfx942",
                "PAIRS": arch != "gfx942",
                "STAGES": table.stages,
            },
            num_warps=table.warps,
            num_stages=table.stages,
            dot=True,
            unaligned=frozenset({"rows", "steps", "steps_a_split"}),
        )
    for group in GROUPS[::2]:
        yield Variant(
            f"widen bf16 group={group}",
            _widen_w4_kernel,
            {
                "words": "*i16",
                "scales": "*i32",
                "out": "*bf16",
                **dict.fromkeys(("inputs", "outputs", "padded"), "i32"),
            },
            {"GROUP": group, "HALF": False, "OUTPUTS": 64},
        )
