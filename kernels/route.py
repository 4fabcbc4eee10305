"""Routing of tokens to experts in a mixture of experts (https://arxiv.org/abs/2401.04088).

    p[t] = softmax(scores[t]),    w[t, e] = p[t, e], or p[t, e] / Σ_e∈top(t) p[t, e]

Shapes: ``scores`` [tokens, experts].

``route`` and ``group`` are for experts that are called one by one. ``route`` returns the chosen experts int64
[tokens, top_k], the most likely first, and their weights [tokens, top_k] in the scores' dtype; the softmax is computed
in float32. ``group`` inverts that: for each expert in use, in ascending order, its tokens' rows and its rank among a
row's experts, both int64 [n].

``assign_triton`` is for experts that are computed all at once, and needs no synchronisation with the host. It has two
launches, whose grids depend on shapes alone: each chunk of tokens chooses experts and counts them; then each chunk
computes its offsets, and (token, expert) pairs are sorted by expert, stably, and divided into tiles of one expert each.
Ties are resolved towards the lowest ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.launch import Variant, jit, tl, triton

_CHOICES = 2048
"""Scores of one program: those of 32 tokens, or of fewer if there are more than 64 experts."""
_CHOICE_WARPS = 8


def route_reference(scores: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    weights, experts = torch.softmax(scores, dim=-1, dtype=torch.float32).topk(top_k, dim=-1)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return experts, weights.to(scores.dtype)


def route(scores: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    return route_reference(scores, top_k, normalise)


@dataclass(frozen=True, slots=True)
class SigmoidRouting:
    """How experts are chosen by DeepSeek-V3 (https://arxiv.org/abs/2412.19437) and GLM-4.5.

        s[t] = sigmoid(scores[t]),    w[t, e] = scaling * s[t, e], or scaling * s[t, e] / Σ_e∈top(t) s[t, e]

    top(t) are the highest ``s + bias`` of the ``top_groups`` groups of experts whose two highest are highest.
    """

    groups: int = 1
    top_groups: int = 1
    scaling: float = 1.0
    least: float = 1e-20
    """Added to what weights are normalised by."""

    def __call__(self, scores: Tensor, bias: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
        """As ``route``; ``bias`` float32 [experts]."""
        # torch computes what is left of whole vectors otherwise: with whole vectors a row, all rows are computed alike.
        padded = torch.nn.functional.pad(scores.float(), (0, -scores.shape[1] % 32))
        chances = padded.sigmoid()[:, : scores.shape[1]]
        wanted = _in_best_groups(chances + bias, self.groups, self.top_groups, 2)
        experts = wanted.topk(top_k, dim=-1).indices
        weights = chances.gather(1, experts)
        if normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + self.least)
        return experts, weights * self.scaling


@dataclass(frozen=True, slots=True)
class GroupRouting:
    """How experts are chosen by DeepSeek-V2 (https://arxiv.org/abs/2405.04434): by softmax, among those of the
    ``top_groups`` groups whose likeliest expert is likeliest. The weights are multiplied by ``scaling``."""

    groups: int = 1
    top_groups: int = 1
    scaling: float = 1.0

    def __call__(self, scores: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
        """As ``route``, with weights in float32."""
        chances = torch.softmax(scores, dim=-1, dtype=torch.float32)
        wanted = _in_best_groups(chances, self.groups, self.top_groups, 1)
        weights, experts = wanted.topk(top_k, dim=-1)
        if normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return experts, weights * self.scaling


def _in_best_groups(wanted: Tensor, groups: int, top_groups: int, best: int) -> Tensor:
    """``wanted`` [tokens, experts], minus infinity outside the groups whose ``best`` highest have the highest sums."""
    if groups == 1:
        return wanted
    grouped = wanted.unflatten(1, (groups, -1))
    chosen = grouped.topk(best, dim=-1).values.sum(-1).topk(top_groups, dim=-1).indices
    kept = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter_(1, chosen, True)
    return grouped.masked_fill(~kept[..., None], float("-inf")).flatten(1)


@dataclass(frozen=True, slots=True)
class CorrectedRouting:
    """How experts are chosen by ERNIE 4.5: by softmax, top(t) being the highest ``p + bias``.

    Weights are normalised by their sum, or by ``least`` where that is greater.
    """

    least: float = 1e-12

    def __call__(self, scores: Tensor, bias: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
        """As ``route``; ``bias`` float32 [experts]."""
        chances = torch.softmax(scores, dim=-1, dtype=torch.float32)
        experts = (chances + bias).topk(top_k, dim=-1).indices
        weights = chances.gather(1, experts)
        if normalise:
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=self.least)
        return experts, weights


@dataclass(frozen=True, slots=True)
class TopSigmoid:
    """How experts are chosen by Llama 4: the highest scores, each with its sigmoid as its weight."""

    def __call__(self, scores: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
        """As ``route``."""
        best, experts = scores.float().topk(top_k, dim=-1)
        # As in SigmoidRouting: whole vectors a row.
        weights = torch.nn.functional.pad(best, (0, -top_k % 32)).sigmoid()[:, :top_k]
        return experts, weights / weights.sum(-1, keepdim=True) if normalise else weights


@dataclass(frozen=True, slots=True)
class SparseMixer:
    """How two experts are chosen by Phi-MoE (SparseMixer-v2, https://arxiv.org/abs/2409.12136).

    Each is the highest of those that are left; its weight is its chance among those whose scores are near:
    ``(best - score) / max(|score|, best) <= 2 * jitter``. The weights do not sum to one.
    """

    jitter: float = 0.01

    def __call__(self, scores: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
        """As ``route``; ``top_k`` experts are chosen one after another."""
        scores = scores.float()
        size, left = scores.abs(), scores
        chosen, weights = [], []
        for _ in range(top_k):
            best, expert = left.max(dim=-1, keepdim=True)
            far = (best - left) / size.clamp(min=best) > 2 * self.jitter
            chances = torch.softmax(left.masked_fill(far, float("-inf")), dim=-1)
            chosen.append(expert)
            weights.append(chances.gather(1, expert))
            left = left.scatter(1, expert, float("-inf"))
        weight = torch.cat(weights, 1)
        if normalise:
            weight = weight / weight.sum(-1, keepdim=True)
        return torch.cat(chosen, 1), weight


def group(experts: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(expert, rows, ranks)"""
    top_k = experts.shape[1]
    owners, order = experts.flatten().sort(stable=True)
    used, counts = torch.unique_consecutive(owners, return_counts=True)
    for expert, chosen in zip(used.tolist(), order.split(counts.tolist()), strict=True):
        yield expert, chosen // top_k, chosen % top_k


@dataclass(frozen=True, slots=True)
class Assignment:
    """A pair is ``token * top_k + rank``, where a token's experts are ranked by ascending id."""

    weights: Tensor
    """float32 [pairs]"""
    order: Tensor
    """int32 [pairs]: the pairs by expert, then by token."""
    tiles: Tensor
    """int32 [1 + 3 * max_tiles]: the number of tiles; then for each its expert, and the range of its pairs in
    ``order``."""
    max_tiles: int
    """The most tiles that are possible."""


@jit(varying=("tokens",))
def _route_kernel(
    scores,
    experts,
    weights,
    counts,
    tokens,
    scores_stride,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOP: tl.constexpr,
    NORMALISE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Chooses a chunk's experts, each token's by ascending id, and counts them."""
    chunk = tl.program_id(0)
    rows = chunk * CHUNK + tl.arange(0, CHUNK)
    numbers = tl.arange(0, EXPERTS)[None, :]
    inside = (rows < tokens)[:, None]
    score = tl.load(
        scores + rows[:, None].to(tl.int64) * scores_stride + numbers, inside & (numbers < COUNT), other=0.0
    )
    score = tl.where(numbers < COUNT, score.to(tl.float32), float("-inf"))
    chance = tl.exp(score - tl.max(score, 1)[:, None])
    chance = chance / tl.sum(chance, 1)[:, None]
    # NaN is replaced by 0, so that such a row still gets exactly TOP experts.
    left = tl.where(numbers < COUNT, tl.where(chance == chance, chance, 0.0), -1.0)
    taken = tl.zeros([CHUNK, EXPERTS], tl.int32)
    for _ in tl.static_range(TOP):
        best = tl.where(left == tl.max(left, 1)[:, None], numbers, EXPERTS)
        picked = numbers == tl.min(best, 1)[:, None]
        taken = tl.where(picked, 1, taken)
        left = tl.where(picked, -1.0, left)
    weight = tl.where(taken > 0, chance, 0.0)
    if NORMALISE:
        weight = weight / tl.sum(weight, 1)[:, None]
    pairs = rows[:, None] * TOP + tl.cumsum(taken, 1) - taken
    chosen = (taken > 0) & inside
    tl.store(experts + pairs, tl.broadcast_to(numbers, [CHUNK, EXPERTS]), chosen)
    tl.store(weights + pairs, weight, chosen)
    tl.store(counts + chunk * EXPERTS + tl.arange(0, EXPERTS), tl.sum(chosen.to(tl.int32), 0))


@jit(varying=("tokens", "chunks"))
def _sort_kernel(
    experts,
    counts,
    order,
    tiles,
    tokens,
    chunks,
    EXPERTS: tl.constexpr,
    TOP: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):
    chunk = tl.program_id(0)
    numbers = tl.arange(0, EXPERTS)
    total = tl.zeros([EXPERTS], tl.int32)
    before = tl.zeros([EXPERTS], tl.int32)
    for start in range(0, chunks, CHUNK):
        other = start + tl.arange(0, CHUNK)[:, None]
        count = tl.load(counts + other * EXPERTS + numbers[None, :], other < chunks, other=0)
        total += tl.sum(count, 0)
        before += tl.sum(tl.where(other < chunk, count, 0), 0)
    end = tl.cumsum(total, 0)

    rows = chunk * CHUNK + tl.arange(0, CHUNK)
    taken = tl.zeros([CHUNK, EXPERTS], tl.int32)
    for rank in tl.static_range(TOP):
        expert = tl.load(experts + rows * TOP + rank, rows < tokens, other=-1)
        taken += (expert[:, None] == numbers[None, :]).to(tl.int32)
    pairs = rows[:, None] * TOP + tl.cumsum(taken, 1) - taken
    tl.store(order + (end - total + before)[None, :] + tl.cumsum(taken, 0) - taken, pairs, taken > 0)

    if chunk == 0:
        needed = (total + ROWS - 1) // ROWS
        last = tl.cumsum(needed, 0)
        tl.store(tiles, tl.sum(needed, 0))
        for i in range(tl.max(needed, 0)):
            tile = tiles + 1 + 3 * (last - needed + i)
            first = end - total + i * ROWS
            tl.store(tile, numbers, i < needed)
            tl.store(tile + 1, first, i < needed)
            tl.store(tile + 2, tl.minimum(first + ROWS, end), i < needed)


def _chunk(experts: int) -> int:
    return max(1, min(32, _CHOICES // experts))


def assign_triton(scores: Tensor, top_k: int, normalise: bool, rows: int) -> Assignment:
    """``rows``: pairs in a tile."""
    tokens, count = scores.shape
    pairs, experts = tokens * top_k, triton.next_power_of_2(count)
    chunk = _chunk(experts)
    chunks = triton.cdiv(tokens, chunk)
    # Each expert in use leaves at most ``rows - 1`` pairs of its last tile empty.
    max_tiles = (pairs + min(count, pairs) * (rows - 1)) // rows

    def ints(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.int32, device=scores.device)

    chosen, counts, order, tiles = ints(pairs), ints(chunks, experts), ints(pairs), ints(1 + 3 * max_tiles)
    weights = torch.empty(pairs, dtype=torch.float32, device=scores.device)
    _route_kernel[(chunks,)](
        scores,
        chosen,
        weights,
        counts,
        tokens,
        scores.stride(0),
        COUNT=count,
        EXPERTS=experts,
        TOP=top_k,
        NORMALISE=normalise,
        CHUNK=chunk,
        num_warps=_CHOICE_WARPS,
    )
    _sort_kernel[(chunks,)](
        chosen,
        counts,
        order,
        tiles,
        tokens,
        chunks,
        EXPERTS=experts,
        TOP=top_k,
        CHUNK=chunk,
        ROWS=rows,
        num_warps=_CHOICE_WARPS,
    )

    return Assignment(weights, order, tiles, max_tiles)


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    for name, count, top in (("Mixtral-8x7B", 8, 2), ("Qwen3-30B", 128, 8)):
        routed = {"EXPERTS": count, "TOP": top, "CHUNK": _chunk(count)}
        yield Variant(
            f"choose {name}",
            _route_kernel,
            {
                "scores": "*bf16",
                "experts": "*i32",
                "weights": "*fp32",
                "counts": "*i32",
                "tokens": "i32",
                "scores_stride": "i32",
            },
            {"COUNT": count, "NORMALISE": True, **routed},
            num_warps=_CHOICE_WARPS,
            unaligned=frozenset({"tokens"}),
        )
        yield Variant(
            f"sort {name}",
            _sort_kernel,
            {
                **dict.fromkeys(("experts", "counts", "order", "tiles"), "*i32"),
                "tokens": "i32",
                "chunks": "i32",
            },
            {"ROWS": 16, **routed},
            num_warps=_CHOICE_WARPS,
            unaligned=frozenset({"tokens", "chunks"}),
        )
