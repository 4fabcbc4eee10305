"""Logits processing before sampling: grammar masks, stop tokens, biases and penalties.

Row by row, in this order, all in float32:

    x[token] = -inf                 where the row's bit mask is 0 for the token, or ends before it
    x[stop] = -inf                  for the stop tokens, unless no token would be left in the row
    x[token] += first[i]            for the biases
    x[token] = (x[token] / second[i] if x[token] > 0 else x[token] * second[i]) - first[i]      for the penalties

Shapes: ``logits`` [rows, vocab]. Returns float32 [rows, vocab]; ``logits`` are not modified. On a GPU the first launch
has many programs a row, copies and masks; the second has one a row, and is skipped where only masks are given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.launch import Variant, arch, jit, tl, triton

SIZES = {"CHUNK": 4096, "BLOCK": 1024}
"""Logits, and entries of ``Edits.tokens``, that a program processes at a time, on all chips."""

WARPS = {"sm_80": 8, "sm_90": 8, "sm_100": 8, "gfx942": 4}


@dataclass(frozen=True, slots=True)
class Edits:
    """The edits of a batch, on the logits' device."""

    mask_of: Tensor | None = None
    """int32 [rows]: the index of a row's mask in ``bits``, or -1."""
    bits: Tensor | None = None
    """int32 [masks, words]: one bit a token, the lowest first; 1: allowed."""
    starts: Tensor | None = None
    """int32 [3 * rows + 1]: offsets in ``tokens`` of each row's stop tokens, then of each row's biases, then of each
    row's penalties, and the end."""
    tokens: Tensor | None = None
    """int32 [entries]. No token is repeated within a row's stop tokens, biases or penalties."""
    first: Tensor | None = None
    """float32 [entries]: a bias, or a penalty that is subtracted (presence and frequency)."""
    second: Tensor | None = None
    """float32 [entries]: the repetition penalty."""


def edit_logits_reference(logits: Tensor, edits: Edits) -> Tensor:
    out = logits.to(torch.float32, copy=True)
    rows, vocab = out.shape
    if edits.mask_of is not None and edits.bits is not None:
        token = torch.arange(vocab, device=out.device)
        within = token < 32 * edits.bits.shape[1]
        words = edits.bits[:, torch.where(within, token // 32, 0)]
        allowed = ((words >> (token % 32)) & 1).bool() & within
        masked_out = ~allowed[edits.mask_of.clamp(min=0)] & (edits.mask_of >= 0)[:, None]
        out.masked_fill_(masked_out, float("-inf"))
    if edits.starts is not None:
        bounds = edits.starts.tolist()
        for row, x in enumerate(out):
            stops, biases, penalties = (slice(*bounds[at : at + 2]) for at in range(row, 3 * rows, rows))
            without = x.index_fill(0, edits.tokens[stops].long(), float("-inf"))
            if without.amax() > float("-inf"):
                x.copy_(without)
            x[edits.tokens[biases].long()] += edits.first[biases]
            at = edits.tokens[penalties].long()
            scaled = torch.where(x[at] > 0, x[at] / edits.second[penalties], x[at] * edits.second[penalties])
            x[at] = scaled - edits.first[penalties]
    return out


@jit
def _mask_kernel(logits, mask_of, bits, out, vocab, words, stride, MASKED: tl.constexpr, CHUNK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * stride + columns, columns < vocab, other=0.0).to(tl.float32)
    if MASKED:
        mask = tl.load(mask_of + row).to(tl.int64)
        if mask >= 0:
            word = tl.load(bits + mask * words + columns // 32, columns // 32 < words, other=0)
            x = tl.where(((word >> (columns % 32)) & 1) == 1, x, float("-inf"))
    tl.store(out + row * vocab + columns, x, columns < vocab)


@jit(varying=("rows",))
def _edit_kernel(
    out, kept, starts, tokens, first, second, vocab, rows, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    x = out + row.to(tl.int64) * vocab
    column = tl.arange(0, CHUNK)
    offset = tl.arange(0, BLOCK)
    # Barriers between the steps: threads read what other threads stored.
    start, end = tl.load(starts + row), tl.load(starts + row + 1)
    if start < end:
        for at in range(start, end, BLOCK):
            inside = at + offset < end
            token = tl.load(tokens + at + offset, inside, other=0)
            tl.store(kept + at + offset, tl.load(x + token, inside, other=0.0), inside)
            tl.store(x + token, float("-inf"), inside)
        tl.debug_barrier()
        top = float("-inf")
        for chunk in range(0, vocab, CHUNK):
            rest = tl.load(x + chunk + column, chunk + column < vocab, other=float("-inf"))
            top = tl.maximum(top, tl.max(rest, 0))
        tl.debug_barrier()
        if top == float("-inf"):
            for at in range(start, end, BLOCK):
                inside = at + offset < end
                token = tl.load(tokens + at + offset, inside, other=0)
                tl.store(x + token, tl.load(kept + at + offset, inside, other=0.0), inside)
        tl.debug_barrier()
    start, end = tl.load(starts + rows + row), tl.load(starts + rows + row + 1)
    for at in range(start, end, BLOCK):
        inside = at + offset < end
        token = tl.load(tokens + at + offset, inside, other=0)
        added = tl.load(first + at + offset, inside, other=0.0)
        tl.store(x + token, tl.load(x + token, inside, other=0.0) + added, inside)
    tl.debug_barrier()
    start, end = tl.load(starts + 2 * rows + row), tl.load(starts + 2 * rows + row + 1)
    for at in range(start, end, BLOCK):
        inside = at + offset < end
        token = tl.load(tokens + at + offset, inside, other=0)
        penalty = tl.load(first + at + offset, inside, other=0.0)
        factor = tl.load(second + at + offset, inside, other=1.0)
        old = tl.load(x + token, inside, other=0.0)
        tl.store(x + token, tl.where(old > 0, old / factor, old * factor) - penalty, inside)


def edit_logits_triton(logits: Tensor, edits: Edits) -> Tensor:
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    out = torch.empty(rows, vocab, dtype=torch.float32, device=logits.device)
    if not rows:
        return out
    warps = WARPS[arch(logits.device)]
    masked = edits.bits is not None
    _mask_kernel[(rows, triton.cdiv(vocab, SIZES["CHUNK"]))](
        logits,
        edits.mask_of if masked else out,
        edits.bits if masked else out,
        out,
        vocab,
        edits.bits.shape[1] if masked else 0,
        logits.stride(0),
        MASKED=masked,
        CHUNK=SIZES["CHUNK"],
        num_warps=warps,
    )
    if edits.starts is not None:
        kept = torch.empty_like(edits.first)
        _edit_kernel[(rows,)](
            out,
            kept,
            edits.starts,
            edits.tokens,
            edits.first,
            edits.second,
            vocab,
            rows,
            **SIZES,
            num_warps=warps,
        )
    return out


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    for dtype in ("bf16", "fp32"):
        for masked in (False, True):
            integers = "*i32" if masked else "*fp32"
            yield Variant(
                f"{dtype} copy{' masked' if masked else ''}",
                _mask_kernel,
                {
                    "logits": f"*{dtype}",
                    "mask_of": integers,
                    "bits": integers,
                    "out": "*fp32",
                    "vocab": "i32",
                    "words": "i32",
                    "stride": "i32",
                },
                {"MASKED": masked, "CHUNK": SIZES["CHUNK"]},
                num_warps=WARPS[arch],
                unaligned=frozenset({"words"}),
            )
    yield Variant(
        "edit",
        _edit_kernel,
        {
            **dict.fromkeys(("out", "kept", "first", "second"), "*fp32"),
            **dict.fromkeys(("starts", "tokens"), "*i32"),
            **dict.fromkeys(("vocab", "rows"), "i32"),
        },
        SIZES,
        num_warps=WARPS[arch],
        unaligned=frozenset({"rows"}),
    )
