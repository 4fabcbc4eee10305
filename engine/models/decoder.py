"""The decoder that all families are: blocks of rotary grouped-query attention and an MLP, as ``DecoderConfig`` says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata
from engine.errors import UnsupportedModel
from engine.kv_cache import KVCache, KVShape
from engine.layers.attention import PagedAttention
from engine.layers.mlp import PLAIN_ACTIVATIONS, GatedMLP, PlainMLP, Xielu
from engine.layers.moe import MixtureMLP, SharedMixture
from engine.layers.norm import HeadNorm, JointHeadNorm, LayerNorm, NoNorm, RMSNorm, RotatedHeadNorm
from engine.layers.product import Product
from engine.layers.rope import NoRotation, RotaryTable, ScaledRotation, ScalingRotaryTable
from engine.models.builder import LayerBuilder
from engine.models.config import DecoderConfig, Experts
from engine.weights.weight_loader import WeightLoader
from kernels.rope import rope as rope_kernel
from kernels.route import SigmoidRouting, route

Norm = RMSNorm | LayerNorm

log = logging.getLogger("engine.models")

_PREFIXES = ("model.", "language_model.model.", "model.language_model.")
"""Prefixes of the decoder's tensors; the last two are those of multimodal checkpoints."""
_VISION = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


class Block:
    def __init__(self, config: DecoderConfig, build: LayerBuilder, name: str, layer: int) -> None:
        def norm(part: str | None) -> Norm | None:
            return _norm(config, build.weights, f"{name}.{part}") if part else None

        norms = config.norms
        self._attention_norm = norm(norms.attention) or NoNorm()
        self._attention = _attention(config, build, f"{name}.self_attn", layer)
        self._after_attention = norm(norms.after_attention)
        self._mlp_norm = norm(norms.mlp) or NoNorm()
        if config.experts and layer in config.experts.layers:
            self._mlp: Product = _mixture(config, config.experts, build, name)
        else:
            self._mlp = _mlp(config, build, f"{name}.{config.mlp}")
        self._after_mlp = norm(norms.after_mlp)

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: tuple[Tensor, ...],
        batch: AttentionMetadata,
        cache: KVLayer,
    ) -> tuple[Tensor, Tensor]:
        x, residual = self._attention_norm(x, residual)
        x = self._attention(x, rotation, batch, cache)
        if self._after_attention:
            x, _ = self._after_attention(x)
        x, residual = self._mlp_norm(x, residual)
        x = self._mlp(x)
        if self._after_mlp:
            x, _ = self._after_mlp(x)
        return x, residual


class ParallelBlock(Block):
    """Attention and MLP read the same, and are added to the residual together."""

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: tuple[Tensor, ...],
        batch: AttentionMetadata,
        cache: KVLayer,
    ) -> tuple[Tensor, Tensor]:
        x, residual = self._attention_norm(x, residual)
        return self._attention(x, rotation, batch, cache) + self._mlp(x), residual


class Decoder:
    """``length``: the longest context to be served; ``None``: the longest that the model supports.

    Raises ``UnsupportedModel`` if the weights do not fit.
    """

    def __init__(self, config: DecoderConfig, build: LayerBuilder, length: int | None = None) -> None:
        weights, tp = build.weights, build.weights.tp
        if config.fused and tp.size > 1:
            raise UnsupportedModel(
                "Models with fused projections do not support tensor parallelism: leave out --tensor-parallel."
            )
        if config.head_norm and config.head_norm.joint and tp.size > 1:
            raise UnsupportedModel(
                "Models that normalise queries and keys over all heads do not support tensor parallelism: leave out "
                "--tensor-parallel."
            )
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        prefix = next((name for name in _PREFIXES if f"{name}embed_tokens.weight" in weights), _PREFIXES[0])
        self._embedding = weights.take(f"{prefix}embed_tokens.weight", (config.vocab_size, config.hidden))
        self._scale = config.embedding_scale
        if config.rounded_scale:
            self._scale = torch.tensor(self._scale, dtype=weights.dtype).item()
        kind = ParallelBlock if config.parallel else Block
        self._blocks: list[tuple[Block, int]] = []
        for i, rope in enumerate(config.layer_ropes):
            block = kind(config, build, f"{prefix}layers.{i}", i)
            # Layers without a rotation take the last table.
            self._blocks.append((block, len(config.ropes) if rope is None else rope))
            # Old checkpoints store this buffer, which is computed here.
            weights.ignore(f"{prefix}layers.{i}.self_attn.rotary_emb.inv_freq")
        for i in range(config.predictors):
            weights.ignore(f"{prefix}layers.{config.layers + i}.")
        self.kv_shape = KVShape(config.layers, tp.divide(config.kv_heads, "KV heads"), config.head_dim)
        self._norm = _norm(config, weights, f"{prefix}norm")
        self._head = _head(config, build, prefix, self._embedding)
        self._logit_scale = config.logit_scale
        self._softcap = config.logit_softcap
        length = min(length or self.max_positions, self.max_positions)
        self._tables: list[RotaryTable | NoRotation] = [
            (ScalingRotaryTable if rope.query_growth else RotaryTable)(
                rope, length, weights.device, weights.dtype
            )
            for rope in config.ropes
        ]
        if None in config.layer_ropes:
            self._tables.append(NoRotation(config.ropes[0].dim, weights.device, weights.dtype))

    def forward(self, tokens: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache) -> Tensor:
        x = torch.nn.functional.embedding(tokens, self._embedding)
        if self._scale != 1:
            x = x * self._scale
        rotations = [table(positions) for table in self._tables]
        residual: Tensor | None = None
        for (block, rope), layer in zip(self._blocks, cache.layers, strict=True):
            x, residual = block(x, residual, rotations[rope], batch, layer)
        return self._norm(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._head(hidden)
        if self._logit_scale != 1:
            logits = logits.mul_(self._logit_scale)
        if self._softcap is None:
            return logits
        return logits.div_(self._softcap).tanh_().mul_(self._softcap)


def _norm(config: DecoderConfig, weights: WeightLoader, name: str) -> Norm:
    weight = weights.take(f"{name}.weight", (config.hidden,))
    if config.layer_norm:
        bias = weights.take(f"{name}.bias", (config.hidden,)) if config.norm_bias else None
        return LayerNorm(weight, config.eps, bias=bias)
    return RMSNorm(weight, config.eps, offset=config.norm_offset)


def _mlp(config: DecoderConfig, build: LayerBuilder, name: str) -> Product:
    """Without experts."""
    if config.gated:
        return _gated(config, build, name, config.width, config.gate_up, config.down, bias=config.mlp_bias)
    up = {f"{name}.{part}": config.width for part in config.gate_up}
    return PlainMLP(
        build.linear(up, config.hidden, bias=config.mlp_bias, split="out"),
        build.linear(
            {f"{name}.{config.down}": config.hidden}, config.width, bias=config.mlp_bias, split="in"
        ),
        PLAIN_ACTIVATIONS[config.activation] or _xielu(build.weights, f"{name}.act_fn"),
    )


def _xielu(weights: WeightLoader, name: str) -> Xielu:
    above, below = (weights.take(f"{name}.alpha_{side}", (1,)).item() for side in "pn")
    # The checkpoint has these in a shape of their own: no dimension at all.
    beta, eps = (weights.take(f"{name}.{part}", ()).item() for part in ("beta", "eps"))
    return Xielu(above, below, beta, eps)


def _gated(
    config: DecoderConfig,
    build: LayerBuilder,
    name: str,
    width: int,
    gate_up: Sequence[str],
    down: str,
    *,
    bias: bool = False,
) -> GatedMLP:
    """``gate_up``: the names of the gate's and the other layer, or one for both."""
    parts = {f"{name}.{part}": 2 * width // len(gate_up) for part in gate_up}
    return GatedMLP(
        build.linear(parts, config.hidden, bias=bias, split="out"),
        build.linear({f"{name}.{down}": config.hidden}, width, bias=bias, split="in"),
        config.activation,
    )


def _attention(config: DecoderConfig, build: LayerBuilder, name: str, layer: int) -> PagedAttention:
    tp = build.weights.tp
    heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
    # This rank's heads.
    local_heads, local_kv_heads = tp.divide(heads, "heads"), tp.divide(kv_heads, "KV heads")
    counts = (heads, kv_heads, kv_heads) if len(config.qkv) > 1 else (heads + 2 * kv_heads,)
    parts = {f"{name}.{part}": count * dim for part, count in zip(config.qkv, counts, strict=True)}
    rows = None
    rope = config.ropes[config.layer_ropes[layer] or 0]
    if config.interleaved and config.layer_ropes[layer] is not None:
        # Queries and keys are turned in halves; that their rows have changed places alike changes no score.
        halves = _halves(dim, rope.dim)
        rows = {
            part: (torch.arange(count)[:, None] * dim + halves).flatten()
            for part, count in zip(parts, (local_heads, local_kv_heads), strict=False)
        }
    rotate = _rotation(config, build.weights, name, local_heads, local_kv_heads)
    if rope.query_growth:
        rotate = ScaledRotation(rotate, local_heads)
    return PagedAttention(
        build.linear(parts, config.hidden, bias=config.qkv_bias, split="out", rows=rows),
        build.linear({f"{name}.o_proj": config.hidden}, heads * dim, bias=config.out_bias, split="in"),
        local_heads,
        local_kv_heads,
        dim,
        scale=config.scale,
        rotate=rotate,
        window=config.windows[layer],
        softcap=config.softcap,
    )


def _halves(dim: int, rotary: int) -> Tensor:
    """The order of a head's dimensions in which pairs that lay side by side lie half the rotary dimensions apart."""
    return torch.cat([torch.arange(0, rotary, 2), torch.arange(1, rotary, 2), torch.arange(rotary, dim)])


def _rotation(
    config: DecoderConfig, weights: WeightLoader, name: str, heads: int, kv_heads: int
) -> Callable[..., Tensor]:
    """``heads`` and ``kv_heads``: this rank's."""
    norms = config.head_norm
    if norms is None:
        return rope_kernel
    names = (f"{name}.{norms.query}.weight", f"{name}.{norms.key}.weight")
    if norms.joint:
        sizes = (heads * config.head_dim, kv_heads * config.head_dim)
        query, key = (weights.take(part, (size,)) for part, size in zip(names, sizes, strict=True))
        return JointHeadNorm(query, key, heads, config.eps)
    query, key = (weights.take(part, (config.head_dim,)) for part in names)
    kind = RotatedHeadNorm if norms.rotated else HeadNorm
    return kind(query, key, heads, kv_heads, config.eps, config.norm_offset)


def _mixture(config: DecoderConfig, experts: Experts, build: LayerBuilder, name: str) -> Product:
    weights, name = build.weights, f"{name}.{experts.name}"
    # The router is small, and sensitive to rounding: it is never quantized.
    router, choose = weights.take(f"{name}.gate.weight", (experts.count, config.hidden)), route
    if experts.sigmoid:
        # Scores and bias are in float32, as in training: differences between experts are small.
        bias = weights.exact(f"{name}.gate.e_score_correction_bias", (experts.count,))
        router, choose = router.float(), partial(_choose, experts.sigmoid, bias.float())
    mlps = (
        _gated(config, build, f"{name}.experts.{i}", experts.width, experts.gate_up, experts.down)
        for i in range(experts.count)
    )
    mixture = MixtureMLP(
        router, mlps, experts.top_k, experts.normalise, choose=choose, invariant=build.invariant
    )
    if not experts.shared:
        return mixture
    shared_name = f"{name}.{experts.shared_name}"
    shared = _gated(config, build, shared_name, experts.shared, experts.gate_up, experts.down)
    gate = weights.take(f"{shared_name}_gate.weight", (1, config.hidden)) if experts.shared_gate else None
    return SharedMixture(mixture, shared, gate, invariant=build.invariant)


def _choose(
    routing: SigmoidRouting, bias: Tensor, scores: Tensor, top_k: int, normalise: bool
) -> tuple[Tensor, Tensor]:
    return routing(scores, bias, top_k, normalise)


def _head(config: DecoderConfig, build: LayerBuilder, prefix: str, embedding: Tensor) -> Product:
    weights = build.weights
    for name in _VISION:
        weights.ignore(name)
    # Next to the decoder, or to the module that contains it.
    name = "language_model.lm_head" if prefix == "language_model.model." else "lm_head"
    if config.tied:
        if not weights.differs(f"{name}.weight", embedding):
            weights.ignore(f"{name}.weight")
            return build.tied(f"{prefix}embed_tokens", embedding)
        log.warning(
            "config.json says that the head is the embedding (tie_word_embeddings), but the weights hold another one, "
            "%s.weight: it is used. Correct config.json to silence this warning.",
            name,
        )
    return build.linear({name: config.vocab_size}, config.hidden)
