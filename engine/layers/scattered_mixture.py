"""A mixture of experts that are divided over ranks (expert parallelism, https://arxiv.org/abs/2006.16668)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from engine.layers.mlp import GatedMLP
from engine.layers.moe import MixtureMLP
from engine.parallel.group import TPGroup


class ScatteredMixture(MixtureMLP):
    """As ``MixtureMLP``, with equally many experts whole on each rank of ``tp``, in order.

    Every rank has all of ``x``. It chooses the experts of its share of the tokens, and sends each token once to each
    rank that has some of these, beside their weights (all-to-all). What comes back are the sums of those ranks' experts
    (all-to-all), which are added in the order of the ranks; then all ranks get all tokens (all-gather). So a token's
    result does not depend on the rest of the batch, and rounds as sums of sums.
    """

    def __init__(
        self, router: Tensor, experts: Iterable[GatedMLP], *args: Any, tp: TPGroup, **options: Any
    ) -> None:
        """``experts``: this rank's."""
        super().__init__(router, experts, *args, at_once=False, **options)
        self._tp = tp

    def __call__(self, x: Tensor) -> Tensor:
        group, ranks, own = self._tp.collectives, self._tp.size, len(self._experts)
        share = -(-len(x) // ranks)
        mine = x[self._tp.rank * share : (self._tp.rank + 1) * share]
        rows, sends, receives, payload = self._addressed(mine)
        arrived = group.all_to_all(payload, sends, receives)
        sums = self._sums(*arrived.split([x.shape[1], own], 1))
        returned = group.all_to_all(sums, receives, sends)
        out = x.new_zeros(share, x.shape[1])
        for numbers, part in zip(rows, returned.split(sends), strict=True):
            # No token is twice among those of a rank.
            out[numbers] += part
        return torch.cat(group.all_gather(out))[: len(x)]

    def _addressed(self, x: Tensor) -> tuple[list[Tensor], list[int], list[int], Tensor]:
        """For each rank, which of the tokens ``x`` it is sent; how many these are; how many come from it; and what is
        sent: [sends, hidden and a weight for each of the rank's experts, 0 where it is not one of the token's]."""
        group, ranks, own = self._tp.collectives, self._tp.size, len(self._experts)
        dense = x.new_zeros(len(x), self._count)
        asked = torch.zeros_like(dense, dtype=torch.bool)
        if len(x):
            chosen, weights = self._choose(self._scores(x), self._top_k, self._normalise)
            dense.scatter_(1, chosen.long(), weights.to(x.dtype))
            asked.scatter_(1, chosen.long(), True)
        asked = asked.view(len(x), ranks, own).any(-1)
        rows = [asked[:, rank].nonzero()[:, 0] for rank in range(ranks)]
        sends = [len(numbers) for numbers in rows]
        # Of all ranks' counts this one's column says what comes.
        counts = group.all_gather(torch.tensor(sends, device=x.device))
        receives = torch.stack(counts)[:, self._tp.rank].tolist()
        parts = [
            torch.cat([x[numbers], dense[numbers, rank * own : (rank + 1) * own]], 1)
            for rank, numbers in enumerate(rows)
        ]
        return rows, sends, receives, torch.cat(parts)

    def _sums(self, x: Tensor, weights: Tensor) -> Tensor:
        """``x`` [tokens, hidden] → what this rank's experts make of it, by ``weights`` [tokens, own experts]."""
        out = x.new_zeros(x.shape)
        x = x.contiguous()
        for expert in range(len(self._experts)):
            rows = weights[:, expert].nonzero()[:, 0]
            if len(rows):
                out.index_add_(0, rows, self._weighted(expert, x[rows], weights[rows, expert, None]))
        return out
