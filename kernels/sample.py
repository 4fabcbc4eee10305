"""Sample one token a row from logits with temperature, min-p, top-k and top-p, by inverting the cumulative
distribution.

    p      = softmax(logits / temperature)
    kept   = those with p >= min_p * max(p); of these the top_k largest; of these the fewest largest whose p
             (renormalised) sum to at least top_p
    token  = the first kept i (largest first) with  sum_{j <= i} p[j] > uniform * sum_{kept} p

A logit of -inf excludes its token: whatever the filters, only tokens with p above 0 are sampled, as long as the row has
one. A row depends on its own logits, parameters and ``uniform`` alone, so a seeded request gets the same tokens in any
batch.

Shapes: ``logits`` [rows, vocab]; ``temperature``, ``top_p``, ``min_p`` float32 [rows], min_p 0 where off; ``top_k``
int64 [rows], vocab where off; ``uniform`` float64 [rows] in [0, 1). A temperature below 1e-5 takes the first largest
logit. Returns int64 [rows].

On a GPU there is no sort and no synchronisation with the host: two launches, whatever the rows' parameters.

- ``_scan_kernel``, many programs a row: each chunk's largest logit, and the sum of its weights e^((x - max) /
  temperature). Greedy rows need no more.
- ``_draw_kernel``, one program a row. Without top-k and top-p, the chunk is found by the chunks' sums, and then the
  token within it. Otherwise one pass counts the weights above each of a few cuts; a second collects, in the order of
  ids, the candidates above the highest cut that is sure to leave all that the filters keep; and among these the
  thresholds of top-k and top-p and the token itself are searched for (kernels/nucleus.py). Ties are in the order of
  ids. Rows so flat that the candidates do not fit are searched in place: slower, and as exact.

Why one uniform number a row rather than Gumbel noise for each token (argmax of logit + noise, which has the same
distribution): noise costs some eighty integer operations for each of 150,000 tokens; a seeded request gets the same
tokens on a GPU as on a CPU, but for rounding in float32; and draft and target model share one number
(engine/worker/speculative.py). A row of NaN, or without a finite logit, gives an arbitrary token of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.launch import Variant, arch, jit, on_triton, tl, triton
from kernels.nucleus import load_logits, pick_filtered, pick_unsorted

CANDIDATE_COUNTS = (256, 8192)
"""Candidates that are tried before a whole row is sorted; a trained model's nucleus nearly always fits the first."""

MIN_TEMPERATURE = 1e-5
"""Below it sampling is greedy: float32 would overflow, and only the largest logit would ever be sampled."""

_CHUNK = 128

SIZES = {"CHUNK": 4096, "CANDIDATES": 8192, "BLOCK": 1024, "WAYS": 16}
"""Of the Triton kernels, on all chips: logits a program processes at a time; the most candidates of a row; candidates
processed at a time; thresholds that a search tries in one pass."""

WARPS = {"sm_80": (8, 16), "sm_90": (8, 16), "sm_100": (8, 16), "gfx942": (4, 16)}
"""Warps of a scan program, and of a draw program."""


def sample_reference(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    greedy = temperature < MIN_TEMPERATURE
    if bool(greedy.all()):
        return logits.argmax(dim=-1)
    probs = torch.softmax(logits.float() / torch.where(greedy, 1.0, temperature)[:, None], dim=-1)
    # Without top-k and top-p no order is needed: skip the sort.
    whole = ~greedy & (top_k >= logits.shape[1]) & (top_p >= 1)
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for rows, sample_rows in ((whole, _sample_unsorted), (~greedy & ~whole, _sample_filtered)):
        index = rows.nonzero().squeeze(1)
        if len(index):
            filters = (top_k[index], top_p[index], min_p[index], uniform[index])
            tokens[index] = sample_rows(_rows(probs, index), *filters)
    if bool(greedy.any()):
        index = greedy.nonzero().squeeze(1)
        tokens[index] = logits[index].argmax(dim=-1)
    return tokens


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """``values[index]``, without a copy if that is all rows."""
    return values if len(index) == len(values) else values[index]


def _sample_unsorted(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    if bool((min_p > 0).any()):
        threshold = min_p[:, None] * probs.amax(-1, keepdim=True)
        # A mask of 0 and 1 in float32: on a CPU ten times as fast as one of bools.
        probs = torch.ge(probs, threshold, out=torch.empty_like(probs)).mul_(probs)
    # First the chunk, then the token in it: float64 cumulative sums over a whole vocabulary are slow.
    chunks = pad(probs, (0, -probs.shape[1] % _CHUNK)).unflatten(1, (-1, _CHUNK))
    sums = chunks.sum(-1).double()
    ends = sums.cumsum(-1)
    target = uniform[:, None] * ends[:, -1:]
    chunk = _find(sums, ends, target)[:, None]
    within = chunks.gather(1, chunk[:, :, None].expand(-1, -1, _CHUNK)).squeeze(1).double()
    rest = target - (ends - sums).gather(1, chunk)
    return chunk.squeeze(1) * _CHUNK + _find(within, within.cumsum(-1), rest.clamp(min=0.0))


def _sample_filtered(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    vocab = probs.shape[1]
    sampled = torch.empty_like(top_k)
    rows = torch.arange(len(probs), device=probs.device)
    for count in (*(count for count in CANDIDATE_COUNTS if count < vocab), vocab):
        here = _rows(probs, rows)
        values, ids = here.topk(count) if count < vocab else here.sort(descending=True, stable=True)
        # The candidates decide a row when top-k or min-p cuts within them, when nothing likely is left outside, or when
        # they already hold the whole nucleus.
        decided = (top_k <= count) | (values[:, -1] < min_p * values[:, 0]) | (values[:, -1] <= 0)
        decided |= (top_k >= vocab) & (min_p <= 0) & (values.double().sum(-1) >= top_p)
        if count == vocab:
            decided = torch.ones_like(decided)
        index = decided.nonzero().squeeze(1)
        if len(index):
            filters = (top_k[index], top_p[index], min_p[index], uniform[index])
            sampled[rows[index]] = _sample_sorted(_rows(values, index), _rows(ids, index), *filters, vocab)
        if len(index) == len(rows):
            break
        index = (~decided).nonzero().squeeze(1)
        rows, top_k, top_p, min_p, uniform = (x[index] for x in (rows, top_k, top_p, min_p, uniform))
    return sampled


def _sample_sorted(
    values: Tensor, ids: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor, vocab: int
) -> Tensor:
    """``values`` [rows, n] are the n largest of ``vocab``, descending, with their tokens in ``ids``."""
    rank = torch.arange(values.shape[1], device=values.device)
    cut = (values < min_p[:, None] * values[:, :1]) | (rank >= top_k[:, None])
    wide = values.double().masked_fill(cut, 0.0)
    # Top-p is a share of what min-p and top-k kept; where both are off, of the whole distribution.
    mass = torch.where((top_k < vocab) | (min_p > 0), wide.sum(-1), 1.0)[:, None]
    before = wide.cumsum(-1) - wide
    outside = (before >= top_p.double()[:, None] * mass) & (rank > 0)
    kept = wide.masked_fill(outside, 0.0)
    ends = kept.cumsum(-1)
    return ids.gather(1, _find(kept, ends, uniform[:, None] * ends[:, -1:])[:, None]).squeeze(1)


def _find(weights: Tensor, ends: Tensor, target: Tensor) -> Tensor:
    """The first index whose cumulative weight, in ``ends``, passes ``target`` [rows, 1]; float64 [rows, n]."""
    index = torch.searchsorted(ends, target, right=True).squeeze(1)
    # Rounding may carry the target onto the total itself: step back to the last nonzero weight.
    last = weights.shape[1] - 1 - (weights > 0).flip(-1).to(torch.int8).argmax(-1)
    return torch.minimum(index, last)


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    choose = sample_triton if on_triton(logits) else sample_reference
    return choose(logits, temperature, top_k, top_p, min_p, uniform)


@jit
def _scan_kernel(
    logits,
    temperature,
    chunk_maxima,
    argmaxes,
    sums,
    vocab,
    stride,
    chunks,
    MIN_TEMPERATURE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    columns = chunk * CHUNK + tl.arange(0, CHUNK)
    x = load_logits(logits + row * stride, columns, vocab)
    max_logit = tl.max(x, 0)
    temp = tl.load(temperature + row)
    temp = tl.where(temp < MIN_TEMPERATURE, 1.0, temp)
    tl.store(chunk_maxima + row * chunks + chunk, max_logit)
    tl.store(argmaxes + row * chunks + chunk, chunk * CHUNK + tl.argmax(x, 0))
    tl.store(sums + row * chunks + chunk, tl.sum(tl.exp((x - tl.maximum(max_logit, -3.4e38)) / temp), 0))


@jit
def _draw_kernel(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    uniform,
    chunk_maxima,
    argmaxes,
    sums,
    found,
    ids,
    out,
    vocab,
    stride,
    chunks,
    MIN_TEMPERATURE: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
    CANDIDATES: tl.constexpr,
    BLOCK: tl.constexpr,
    WAYS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, CHUNKS)
    maxima = tl.load(chunk_maxima + row * chunks + part, part < chunks, other=float("-inf"))
    token = tl.load(argmaxes + row * chunks + tl.argmax(maxima, 0))
    temp = tl.load(temperature + row)
    if temp >= MIN_TEMPERATURE:
        max_logit = tl.maximum(tl.max(maxima, 0), -3.4e38)
        k, p = tl.load(top_k + row).to(tl.float32), tl.load(top_p + row)
        min_weight, u = tl.load(min_p + row), tl.load(uniform + row).to(tl.float32)
        source = logits + row * stride
        if (k >= vocab) & (p >= 1):
            chunk_sums = sums + row * chunks
            token = pick_unsorted(
                source, maxima, chunk_sums, vocab, chunks, max_logit, temp, min_weight, u, CHUNKS, CHUNK
            )
        else:
            token = pick_filtered(
                source,
                found + row * CANDIDATES,
                ids + row * CANDIDATES,
                vocab,
                chunks,
                max_logit,
                temp,
                tl.maximum(min_weight, 1.2e-38),
                k,
                p,
                u,
                CHUNK,
                CANDIDATES,
                BLOCK,
                WAYS,
            )
    tl.store(out + row, token.to(tl.int64))


def sample_triton(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """``top_k`` may also be int32, and ``uniform`` float32."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    chunks = triton.cdiv(vocab, SIZES["CHUNK"])
    of_floats = {"dtype": torch.float32, "device": logits.device}
    of_integers = {"dtype": torch.int32, "device": logits.device}
    chunk_maxima, sums = torch.empty(rows, chunks, **of_floats), torch.empty(rows, chunks, **of_floats)
    argmaxes = torch.empty(rows, chunks, **of_integers)
    found = torch.empty(rows, SIZES["CANDIDATES"], **of_floats)
    ids = torch.empty(rows, SIZES["CANDIDATES"], **of_integers)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return tokens
    scan_warps, draw_warps = WARPS[arch(logits.device)]
    _scan_kernel[(rows, chunks)](
        logits,
        temperature,
        chunk_maxima,
        argmaxes,
        sums,
        vocab,
        logits.stride(0),
        chunks,
        MIN_TEMPERATURE=MIN_TEMPERATURE,
        CHUNK=SIZES["CHUNK"],
        num_warps=scan_warps,
    )
    _draw_kernel[(rows,)](
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        uniform,
        chunk_maxima,
        argmaxes,
        sums,
        found,
        ids,
        tokens,
        vocab,
        logits.stride(0),
        chunks,
        **_draw_constants(chunks),
        num_warps=draw_warps,
    )
    return tokens


def _draw_constants(chunks: int) -> dict[str, float]:
    return {"MIN_TEMPERATURE": MIN_TEMPERATURE, "CHUNKS": triton.next_power_of_2(chunks), **SIZES}


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    scan_warps, draw_warps = WARPS[arch]
    sizes = dict.fromkeys(("vocab", "stride", "chunks"), "i32")
    rows = dict.fromkeys(
        ("temperature", "top_p", "min_p", "uniform", "chunk_maxima", "sums", "found"), "*fp32"
    )
    rows |= dict.fromkeys(("top_k", "argmaxes", "ids"), "*i32") | {"out": "*i64"}
    # A vocabulary of 128,256 has 32 chunks, one of 151,936 has 38.
    for dtype, chunks in (("bf16", 32), ("fp32", 64)):
        types = {"logits": f"*{dtype}", **rows, **sizes}
        yield Variant(
            f"{dtype} scan",
            _scan_kernel,
            {
                name: types[name]
                for name in ("logits", "temperature", "chunk_maxima", "argmaxes", "sums", *sizes)
            },
            {"MIN_TEMPERATURE": MIN_TEMPERATURE, "CHUNK": SIZES["CHUNK"]},
            num_warps=scan_warps,
            unaligned=frozenset({"chunks"}),
        )
        yield Variant(
            f"{dtype} draw chunks={chunks}",
            _draw_kernel,
            types,
            _draw_constants(chunks),
            num_warps=draw_warps,
            unaligned=frozenset({"chunks"}),
        )
