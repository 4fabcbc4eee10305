"""The decoder that all families are: pre-norm blocks of rotary grouped-query attention and a gated MLP."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata
from engine.errors import UnsupportedModel
from engine.kv_cache import KVCache, KVShape
from engine.layers.attention import PagedAttention
from engine.layers.mlp import GatedMLP
from engine.layers.moe import MixtureMLP
from engine.layers.norm import HeadNorm, RMSNorm
from engine.layers.product import Product
from engine.layers.rope import RotaryTable
from engine.models.builder import LayerBuilder
from engine.models.config import DecoderConfig, Experts
from engine.weights.weight_loader import WeightLoader

log = logging.getLogger("engine.models")

_PREFIXES = ("model.", "language_model.model.", "model.language_model.")
"""Prefixes of the decoder's tensors; the last two are those of multimodal checkpoints."""
_VISION = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


class Block:
    def __init__(self, config: DecoderConfig, build: LayerBuilder, name: str, layer: int) -> None:
        def norm(part: str) -> RMSNorm:
            return _norm(config, build.weights, f"{name}.{part}")

        self._attention_norm = norm("input_layernorm")
        self._attention = _attention(config, build, f"{name}.self_attn", layer)
        self._after_attention = norm("post_attention_layernorm") if config.sandwich else None
        self._mlp_norm = norm("pre_feedforward_layernorm" if config.sandwich else "post_attention_layernorm")
        if config.experts and layer in config.experts.layers:
            self._mlp: GatedMLP | MixtureMLP = _mixture(config, config.experts, build, name)
        else:
            gate_up = ("gate_up_proj",) if config.fused else ("gate_proj", "up_proj")
            self._mlp = _mlp(config, build, f"{name}.mlp", config.width, gate_up, bias=config.mlp_bias)
        self._after_mlp = norm("post_feedforward_layernorm") if config.sandwich else None

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: tuple[Tensor, Tensor],
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
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        prefix = next((name for name in _PREFIXES if f"{name}embed_tokens.weight" in weights), _PREFIXES[0])
        self._embedding = weights.take(f"{prefix}embed_tokens.weight", (config.vocab_size, config.hidden))
        self._scale = config.embedding_scale
        if self._scale != 1:
            # As in training, the factor is rounded to the compute dtype.
            self._scale = torch.tensor(self._scale, dtype=weights.dtype).item()
        self._blocks = []
        for i in range(config.layers):
            self._blocks.append((Block(config, build, f"{prefix}layers.{i}", i), config.layer_ropes[i]))
            # Old checkpoints store this buffer, which is computed here.
            weights.ignore(f"{prefix}layers.{i}.self_attn.rotary_emb.inv_freq")
        self.kv_shape = KVShape(config.layers, tp.divide(config.kv_heads, "KV heads"), config.head_dim)
        self._norm = _norm(config, weights, f"{prefix}norm")
        self._head = _head(config, build, prefix, self._embedding)
        self._softcap = config.logit_softcap
        length = min(length or self.max_positions, self.max_positions)
        self._tables = [RotaryTable(rope, length, weights.device, weights.dtype) for rope in config.ropes]

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
        if self._softcap is None:
            return logits
        return logits.div_(self._softcap).tanh_().mul_(self._softcap)


def _norm(config: DecoderConfig, weights: WeightLoader, name: str) -> RMSNorm:
    weight = weights.take(f"{name}.weight", (config.hidden,))
    return RMSNorm(weight, config.eps, offset=config.norm_offset)


def _mlp(
    config: DecoderConfig,
    build: LayerBuilder,
    name: str,
    width: int,
    gate_up: Sequence[str],
    down: str = "down_proj",
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
    weights = build.weights
    heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
    if config.fused:
        parts = {f"{name}.qkv_proj": (heads + 2 * kv_heads) * dim}
    else:
        parts = {
            f"{name}.q_proj": heads * dim,
            f"{name}.k_proj": kv_heads * dim,
            f"{name}.v_proj": kv_heads * dim,
        }
    # This rank's heads.
    local_heads, local_kv_heads = weights.tp.divide(heads, "heads"), weights.tp.divide(kv_heads, "KV heads")
    norm = None
    if config.head_norm:
        query, key = (weights.take(f"{name}.{part}_norm.weight", (dim,)) for part in "qk")
        norm = HeadNorm(query, key, local_heads, local_kv_heads, config.eps, config.norm_offset)
    return PagedAttention(
        build.linear(parts, config.hidden, bias=config.qkv_bias, split="out"),
        build.linear({f"{name}.o_proj": config.hidden}, heads * dim, bias=config.out_bias, split="in"),
        local_heads,
        local_kv_heads,
        dim,
        scale=config.scale,
        norm=norm,
        window=config.windows[layer],
        softcap=config.softcap,
    )


def _mixture(config: DecoderConfig, experts: Experts, build: LayerBuilder, name: str) -> MixtureMLP:
    name = f"{name}.{experts.name}"
    # The router is small, and sensitive to rounding: it is never quantized.
    router = build.weights.take(f"{name}.gate.weight", (experts.count, config.hidden))
    mlps = (
        _mlp(config, build, f"{name}.experts.{i}", experts.width, experts.gate_up, experts.down)
        for i in range(experts.count)
    )
    return MixtureMLP(router, mlps, experts.top_k, experts.normalise, invariant=build.invariant)


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
