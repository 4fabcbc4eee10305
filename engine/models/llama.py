"""Llama: pre-norm blocks of rotary grouped-query attention and a gated MLP (https://arxiv.org/abs/2407.21783)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.layers.attend import AttentionInput
from engine.layers.attention import PagedAttention
from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.norm import RMSNorm
from engine.layers.rope import RotaryTable, frequencies
from engine.weights.loader import Loader
from engine.worker.kv_cache import KVCache, KVLayer, KVShape


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The part of config.json that shapes the computation."""

    vocab_size: int
    hidden: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    rope_scaling: Mapping[str, Any]
    max_positions: int
    tied: bool
    attention_bias: bool
    mlp_bias: bool

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> LlamaConfig:
        """Raises ``UnsupportedModel`` if a value is missing, or is one that this class would ignore."""
        if (activation := raw.get("hidden_act", "silu")) != "silu":
            raise UnsupportedModel(f"hidden_act {activation!r} is not supported; 'silu' is.")
        # Newer checkpoints keep theta and the scaling together in rope_parameters.
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        try:
            heads = int(raw["num_attention_heads"])
            hidden = int(raw["hidden_size"])
            return cls(
                vocab_size=int(raw["vocab_size"]),
                hidden=hidden,
                width=int(raw["intermediate_size"]),
                layers=int(raw["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=int(raw.get("head_dim") or hidden // heads),
                eps=float(raw.get("rms_norm_eps", 1e-6)),
                theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
                rope_scaling=rope,
                max_positions=int(raw["max_position_embeddings"]),
                tied=bool(raw.get("tie_word_embeddings", False)),
                attention_bias=bool(raw.get("attention_bias", False)),
                mlp_bias=bool(raw.get("mlp_bias", False)),
            )
        except KeyError as error:
            raise UnsupportedModel(f"config.json lacks {error}.") from error


class LlamaBlock:
    def __init__(self, config: LlamaConfig, weights: Loader, name: str) -> None:
        self._attention_norm = RMSNorm.load(weights, f"{name}.input_layernorm", config.hidden, config.eps)
        self._attention = PagedAttention.load(
            weights,
            f"{name}.self_attn",
            hidden=config.hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            qkv_bias=config.attention_bias,
            out_bias=config.attention_bias,
        )
        self._mlp_norm = RMSNorm.load(weights, f"{name}.post_attention_layernorm", config.hidden, config.eps)
        self._mlp = GatedMLP.load(weights, f"{name}.mlp", config.hidden, config.width, bias=config.mlp_bias)

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: tuple[Tensor, Tensor],
        batch: AttentionInput,
        cache: KVLayer,
    ) -> tuple[Tensor, Tensor]:
        x, residual = self._attention_norm(x, residual)
        x = self._attention(x, rotation, batch, cache)
        x, residual = self._mlp_norm(x, residual)
        return self._mlp(x), residual


class LlamaModel:
    def __init__(self, config: LlamaConfig, weights: Loader) -> None:
        self.vocab_size = config.vocab_size
        self.max_positions = config.max_positions
        self.kv_shape = KVShape(config.layers, config.kv_heads, config.head_dim)
        self._embedding = weights.take("model.embed_tokens.weight", (config.vocab_size, config.hidden))
        self._blocks = []
        for i in range(config.layers):
            self._blocks.append(LlamaBlock(config, weights, f"model.layers.{i}"))
            # Old checkpoints store what can be computed.
            weights.ignore(f"model.layers.{i}.self_attn.rotary_emb.inv_freq")
        self._norm = RMSNorm.load(weights, "model.norm", config.hidden, config.eps)
        if config.tied:
            weights.ignore("lm_head.weight")
            self._head = Linear(self._embedding)
        else:
            self._head = weights.linear({"lm_head": config.vocab_size}, config.hidden)
        self._rotary = RotaryTable(
            frequencies(config.head_dim, config.theta, config.rope_scaling),
            config.max_positions,
            self._embedding.device,
            self._embedding.dtype,
        )

    @classmethod
    def load(cls, config: Mapping[str, Any], weights: Loader) -> LlamaModel:
        return cls(LlamaConfig.read(config), weights)

    def forward(self, tokens: Tensor, positions: Tensor, batch: AttentionInput, cache: KVCache) -> Tensor:
        x = torch.nn.functional.embedding(tokens, self._embedding)
        rotation = self._rotary(positions)
        residual: Tensor | None = None
        for block, layer in zip(self._blocks, cache.layers, strict=True):
            x, residual = block(x, residual, rotation, batch, layer)
        return self._norm(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(hidden)
