"""Medusa heads (https://arxiv.org/abs/2401.10774): each drafts one of the next tokens from the target's last hidden
state.

How often heads are right may stand beside, in ``medusa_right``, as ``engine train-draft`` measures it: trees are then
made for it.

The layout is that of the published checkpoints: head ``i`` has residual layers ``i.0.linear``, ``i.1.linear`` … and
then the matrix ``i.n.weight`` of its logits; it drafts the token ``i + 1`` after the one that the target samples.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.errors import UnsupportedModel
from engine.layers.product import Product
from engine.models.builder import LayerBuilder
from engine.models.config import Raw, integer
from engine.models.registry import Model, read_config


class MedusaHeads:
    def __init__(self, folder: Path, target: Model, build: LayerBuilder) -> None:
        """Raises ``ModelUnavailable`` or ``UnsupportedModel``."""
        raw, weights = read_config(folder), build.weights
        count, layers = integer(raw, "medusa_num_heads"), integer(raw, "medusa_num_layers")
        hidden = target.embed(torch.zeros(1, dtype=torch.int64, device=weights.device)).shape[-1]
        # Wrapped modules are saved with their names.
        prefix = "medusa_head." if f"medusa_head.0.{layers}.weight" in weights else ""
        if f"{prefix}0.{layers}.weight" not in weights:
            raise UnsupportedModel(f"{folder} lacks 0.{layers}.weight: it holds no Medusa heads.")
        self._heads: list[tuple[list[Product], Product]] = []
        for i in range(count):
            blocks = [
                build.linear({f"{prefix}{i}.{j}.linear": hidden}, hidden, bias=True) for j in range(layers)
            ]
            self._heads.append((blocks, build.linear({f"{prefix}{i}.{layers}": target.vocab_size}, hidden)))
        weights.finish()
        self.right = _right(raw, count)
        """Of each head, how often its token of each rank is right."""

    def __len__(self) -> int:
        return len(self._heads)

    def logits(self, head: int, hidden: Tensor) -> Tensor:
        """[rows, hidden] → [rows, vocab]"""
        blocks, last = self._heads[head]
        for block in blocks:
            hidden = hidden + functional.silu(block(hidden))
        return last(hidden)


_FIRST, _LATER, _RANKS = 0.6, 0.8, 8


def _right(raw: Raw, count: int) -> tuple[tuple[float, ...], ...]:
    """As config.json says, or about what the paper's figures show."""
    told = raw.get("medusa_right")
    if isinstance(told, list) and len(told) == count:
        try:
            return tuple(tuple(float(share) for share in ranks) or (0.0,) for ranks in told)
        except (TypeError, ValueError) as error:
            raise UnsupportedModel(f"medusa_right is no list of shares for each head: {error}.") from error
    return tuple(
        tuple(_FIRST * _LATER**head * (1.0 if rank == 0 else 0.2 / rank) for rank in range(_RANKS))
        for head in range(count)
    )
