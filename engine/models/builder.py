"""Builds linear layers by the names of their weights.

A model names its layers and their shapes. The layer's implementation for the weights' format, adapters and tensor
parallelism are chosen here, so that model families need not know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.heap import return_freed
from engine.layers.embedding import Embedding, ShardedEmbedding
from engine.layers.float8 import Float8Linear
from engine.layers.key_smoothing import StoredKeys
from engine.layers.linear import Linear
from engine.layers.lora import AdaptedLinear, AdapterBank
from engine.layers.native import Int6Linear, unpacked
from engine.layers.product import Product
from engine.layers.quantized import (
    ConcatenatedLinear,
    Fp8Linear,
    Int4Linear,
    Int8Linear,
    packed_parts,
)
from engine.layers.row_parallel import GatheredLinear, RowParallelLinear
from engine.parallel.part import WHOLE_MODEL, Part
from engine.weights.quantize import ChannelWeight, Float8Weight, Int4Weight, Int6Weight, join, same_inputs
from engine.weights.weight_cache import WeightCache
from engine.weights.weight_loader import DIMENSION, Split, Weight, WeightLoader
from kernels.native.linear import PackedTensors, joined


class LayerBuilder:
    def __init__(
        self,
        weights: WeightLoader,
        *,
        adapters: AdapterBank | None = None,
        invariant: bool = False,
        cache: WeightCache | None = None,
        part: Part = WHOLE_MODEL,
        keys: StoredKeys | None = None,
    ) -> None:
        """``invariant``: a row's result must not depend on the batch, at the cost of slower prompts. ``cache``: of
        layers that were built before. ``part``: what of the model is built; ``weights`` are for its ``tp``.
        ``keys``: how they are stored, where they are made to suit that: see layers/key_smoothing.py."""
        self.weights = weights
        self.invariant = invariant
        self.part = part
        self.keys = keys
        self._adapters = adapters
        self._cache = cache

    def linear(
        self,
        parts: Mapping[str, int],
        in_features: int,
        *,
        bias: bool = False,
        split: Split | None = None,
        rows: Mapping[str, Tensor] | None = None,
        copies: Mapping[str, int] | None = None,
        unbiased: str | None = None,
    ) -> Product:
        """Layers with the same input are merged into one; ``parts`` maps their names to their output sizes.
        ``rows``: the order of this rank's outputs, for the parts that are not to keep theirs. ``copies``: the parts of
        whose shards each is on so many ranks. ``unbiased``: the part whose bias is added elsewhere.

        Raises ``UnsupportedModel`` if the weights do not fit.
        """
        times = copies or {}
        if times and self._adapters is not None:
            raise UnsupportedModel(
                "Adapters are not supported where ranks have the same KV heads: choose a --tensor-parallel that "
                "divides the number of KV heads, or leave the adapters out."
            )
        biases = []
        if bias:
            biases = [self.weights.bias(name, out, split, times.get(name, 1)) for name, out in parts.items()]
        if rows:
            orders = [rows.get(name) for name in parts]
            biases = [
                one if order is None else one[order.to(one.device)]
                for one, order in zip(biases, orders, strict=False)
            ]
        biases = [
            torch.zeros_like(one) if name == unbiased else one
            for name, one in zip(parts, biases, strict=False)
        ]
        # A bias is replicated, and must be added by one rank only.
        once = split != "in" or self.weights.tp.rank == 0
        head = any(name.endswith("lm_head") for name in parts)
        added = torch.cat(biases) if biases and once else None

        def build() -> Product:
            if head and len(parts) == 1:
                pieces = self.weights.pieces(*parts, (*parts.values(), in_features))
                if pieces is not None:
                    return self._in_pieces(pieces, *parts.values(), added)
            weights = [
                self.weights.weight(name, out, in_features, split, times.get(name, 1))
                for name, out in parts.items()
            ]
            if rows:
                orders = [rows.get(name) for name in parts]
                weights = [reordered(weight, order) for weight, order in zip(weights, orders, strict=True)]
            return self._product(weights, added, head)

        layer = self._cached(" ".join(parts), build, added)
        return self._wrapped(layer, parts, in_features, split, rows)

    def embedding(self, name: str, count: int, size: int) -> Embedding:
        """Raises ``UnsupportedModel`` if the weights do not fit."""
        # A model that was converted before was checked then.
        checked = self._cache is not None and self._cache.complete
        if self.shards(count) and self.weights.holds_plain(name):
            tp = self.weights.tp
            rows = self.weights.take_part(f"{name}.weight", (count, size), 0, tp, "tokens")
            return ShardedEmbedding(rows, tp)
        return Embedding(self.weights.rows(name, (count, size), checked=checked))

    def unties(self, name: str, embedding: Embedding) -> bool:
        """Whether the checkpoint has a plain tensor of that name that is not the embedding."""
        sharded = isinstance(embedding, ShardedEmbedding)
        return self.weights.differs(name, embedding.weight, sharded=sharded)

    def shards(self, vocabulary: int) -> bool:
        """Whether ranks have an equal part each of what there is of each token, and not all of it."""
        tp = self.weights.tp
        return self.part.vocabulary and tp.size > 1 and vocabulary % tp.size == 0

    def head(self, name: str, vocabulary: int, in_features: int, *, bias: bool) -> Product:
        """The output head."""
        if not self.shards(vocabulary):
            return self.linear({name: vocabulary}, in_features, bias=bias)
        # Nothing wraps it: a head has no adapters.
        added = self.weights.bias(name, vocabulary, "out") if bias else None

        def build() -> Product:
            return self._product([self.weights.weight(name, vocabulary, in_features, "out")], added, True)

        return GatheredLinear(self._cached(name, build, added), self.weights.tp)

    def tied(self, name: str, embedding: Embedding, bias: Tensor | None = None) -> Product:
        """The LM head that is tied to the embedding [vocab, hidden]."""
        tp = self.weights.tp
        if isinstance(embedding, ShardedEmbedding):
            bias = None if bias is None else tp.shard(bias, 0, "tokens")

        def build() -> Product:
            if self.weights.packs and (pieces := embedding.pieces()) is not None:
                return self._in_pieces(pieces, embedding.count, bias)
            return self._plain(embedding.weight(), bias, head=True)

        head = self._cached(f"{name} tied", build, bias)
        return GatheredLinear(head, tp) if isinstance(embedding, ShardedEmbedding) else head

    def _cached(self, name: str, build: Callable[[], Product], bias: Tensor | None) -> Product:
        """The layer as the cache has it; else what ``build`` makes, which is put there if it can be."""
        if self._cache is None:
            return build()
        stored: Sequence[PackedTensors] | None = self._cache.get(name)
        if stored is None:
            layer = build()
            if not (made := packed_parts(layer)):
                return layer
            stored = self._cache.put(name, [part.packed for part in made])
        widths = [packed.shape[0] for packed in stored]
        biases = [None] * len(widths) if bias is None else bias.split(widths)
        parts = [
            unpacked(packed, part, invariant=self.invariant)
            for packed, part in zip(stored, biases, strict=True)
        ]
        return parts[0] if len(parts) == 1 else ConcatenatedLinear(parts)

    def _product(self, weights: Sequence[Weight], bias: Tensor | None, head: bool) -> Product:
        plain = [weight for weight in weights if isinstance(weight, Tensor)]
        grouped = [weight for weight in weights if isinstance(weight, Int4Weight)]
        six = [weight for weight in weights if isinstance(weight, Int6Weight)]
        if len(weights) == len(six) > 1:
            codes, scales = torch.cat([part.codes for part in six]), torch.cat([part.scale for part in six])
            return self._layer(Int6Weight(codes, scales), bias)
        eight = [weight for weight in weights if isinstance(weight, Float8Weight)]
        if len(weights) == len(eight) > 1 and len({part.group for part in eight}) == 1:
            codes, scales = (
                torch.cat([part.codes for part in eight]),
                torch.cat([part.scale for part in eight]),
            )
            return self._layer(Float8Weight(codes, scales, eight[0].group), bias)
        if len(plain) == len(weights):
            return self._plain(torch.cat(plain), bias, head)
        if len(grouped) == len(weights) and same_inputs(grouped):
            return self._grouped(join(grouped), bias)
        if len(weights) == 1:
            return self._layer(weights[0], bias)
        widths = [len(weight) if isinstance(weight, Tensor) else len(weight.codes) for weight in weights]
        biases = [None] * len(weights) if bias is None else bias.split(widths)
        return ConcatenatedLinear(
            [self._product([weight], part, head) for weight, part in zip(weights, biases, strict=True)]
        )

    def _plain(self, weight: Tensor, bias: Tensor | None, head: bool) -> Product:
        return self._layer(self.weights.quantized(weight, head), bias)

    def _in_pieces(self, pieces: Iterable[Tensor], rows: int, bias: Tensor | None) -> Product:
        """A head, the largest of all weights: of what it is made from, there is never more than a piece."""

        def packed() -> Iterator[PackedTensors]:
            for piece in pieces:
                return_freed()
                layer = self._layer(self.weights.quantized(piece, head=True), None)
                yield from (part.packed for part in packed_parts(layer))

        return unpacked(joined(packed(), rows), bias, invariant=self.invariant)

    def _layer(self, weight: Weight, bias: Tensor | None) -> Product:
        match weight:
            case Int4Weight():
                return self._grouped(weight, bias)
            case Int6Weight():
                return Int6Linear(weight, bias)
            case Float8Weight():
                return Float8Linear(weight, bias, invariant=self.invariant)
            case ChannelWeight() if weight.codes.dtype == torch.int8:
                return Int8Linear(weight, bias, invariant=self.invariant)
            case ChannelWeight():
                return Fp8Linear(weight, bias, invariant=self.invariant)
        return Linear(weight, bias, invariant=self.invariant)

    def _grouped(self, weight: Int4Weight, bias: Tensor | None) -> Product:
        weight = weight.to(self.weights.device)
        if weight.size % 32:
            return Linear(weight.weight().to(self.weights.dtype), bias, invariant=self.invariant)
        return Int4Linear(weight, bias, invariant=self.invariant)

    def _wrapped(
        self,
        layer: Product,
        parts: Mapping[str, int],
        in_features: int,
        split: Split | None,
        rows: Mapping[str, Tensor] | None,
    ) -> Product:
        """``layer``, this rank's shard, wrapped with adapters and, if it is row-parallel, the all-reduce."""
        if split is None:
            return layer
        weights, tp = self.weights, self.weights.tp
        # An expert sees only its own tokens, and does not know which adapters they have.
        if self._adapters is not None and not any(".experts." in name for name in parts):
            layer = AdaptedLinear(
                layer,
                self._adapters,
                parts,
                in_features,
                DIMENSION[split],
                weights.device,
                weights.dtype,
                rows,
            )
        return RowParallelLinear(layer, tp) if split == "in" and tp.size > 1 else layer


def reordered(weight: Weight, order: Tensor | None) -> Weight:
    """``weight`` with its rows (outputs) in another order."""
    if order is None:
        return weight
    if isinstance(weight, Tensor):
        return weight[order.to(weight.device)]
    order = order.to(weight.codes.device)
    if isinstance(weight, Int4Weight):
        parts = {"codes": weight.codes, "scale": weight.scale, "offset": weight.offset}
    else:
        parts = {"codes": weight.codes, "scale": weight.scale}
    return replace(weight, **{name: part[order] for name, part in parts.items()})
