"""Multi-head latent attention (MLA, https://arxiv.org/abs/2405.04434), in the absorbed form.

A head's keys and values are products of one latent a token with its rows of one matrix. Here these rows multiply the
head's query instead, and what it has attended to: latents are cached, and read as they lie, by all heads at once. The
part of a query and key that is rotated goes beside them, with one key for all heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata
from engine.layers.linear import Linear
from engine.layers.norm import RMSNorm
from engine.layers.product import Product
from kernels.launch import on_triton
from kernels.rope import rope


class HeadProducts:
    """A product of each head with a weight of its own: ``x`` [tokens, heads, in] → [tokens, heads, out].

    ``weight`` [heads, out, in]. Where a row's result must not depend on the others (see ``Linear``), heads are computed
    one by one.
    """

    def __init__(self, weight: Tensor, *, invariant: bool = False) -> None:
        on_cpu = weight.device.type == "cpu" and not on_triton(weight)
        self.count = len(weight)
        self._heads: list[Linear] = []
        if on_cpu and (invariant or weight.dtype == torch.float32):
            self._heads = [Linear(one.contiguous(), invariant=invariant) for one in weight]
        else:
            # As it is multiplied: turned in each call, it would take a CPU seven times as long.
            self._weight = weight.mT.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        if self._heads:
            return torch.stack([head(x[:, i]) for i, head in enumerate(self._heads)], 1)
        return torch.bmm(x.transpose(0, 1), self._weight).transpose(0, 1)


class LatentAttention:
    """``x`` [tokens, hidden] → [tokens, hidden].

    ``low``: the vector that queries come from, if they come from one, and is then normalised by ``query_norm``, the
    latent, of size ``rank``, and the key. Of each head's query the first ``rotary`` dimensions are rotated. ``keys``
    takes the others to the size of a latent, ``values`` what was attended to from there to a head's value.
    """

    def __init__(
        self,
        low: Product,
        query: Product,
        query_norm: RMSNorm | None,
        norm: RMSNorm,
        keys: HeadProducts,
        values: HeadProducts,
        out: Product,
        *,
        rank: int,
        rotary: int,
        scale: float,
    ) -> None:
        self._low = low
        self._query = query
        self._query_norm = query_norm
        self._norm = norm
        self._keys = keys
        self._values = values
        self._out = out
        self._rank = rank
        self._rotary = rotary
        self._scale = scale

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, ...],
        batch: AttentionMetadata,
        cache: KVLayer,
    ) -> Tensor:
        tokens, rotary, size = len(x), self._rotary, self._rank + self._rotary
        low = self._low(x)
        latents, _ = self._norm(low[:, -size:-rotary])
        keys = rope(low[:, None, -rotary:], *rotation)
        cache.backend.store(cache, keys, latents[:, None], batch)
        if self._query_norm is not None:
            x, _ = self._query_norm(low[:, :-size])
        query = rope(self._query(x).view(tokens, self._keys.count, -1), *rotation)
        query = torch.cat([query[..., :rotary], self._keys(query[..., rotary:])], -1)
        attended = cache.backend.forward(query, cache, batch, scale=self._scale)
        return self._out(self._values(attended).reshape(tokens, -1))
