"""EAGLE-3 heads (https://arxiv.org/abs/2503.01840): one decoder layer that drafts from the target's hidden states.

The layout is that of the published checkpoints: ``fc`` fuses the hidden states of three layers, ``midlayer`` reads an
embedding beside a hidden state, and ``lm_head`` has a reduced vocabulary, of which token ``i`` is the target's token
``i + d2t[i]``. Where a checkpoint has no embedding, the target's is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.attention.metadata import AttentionMetadata
from engine.errors import UnsupportedModel
from engine.kv_cache import KVCache, KVShape
from engine.layers.attention import PagedAttention
from engine.layers.rope import RotaryTable
from engine.models import parts
from engine.models.builder import LayerBuilder
from engine.models.config import Raw
from engine.models.llama import llama
from engine.models.registry import Model, read_config
from engine.weights.weight_loader import WeightLoader


class EagleHead:
    def __init__(self, folder: Path, target: Model, build: LayerBuilder) -> None:
        """Raises ``ModelUnavailable`` or ``UnsupportedModel``."""
        raw = flat(read_config(folder))
        config = llama(raw)
        if config.layers != 1:
            raise UnsupportedModel(f"An EAGLE-3 head of {config.layers} layers is not supported: one is.")
        weights = build.weights
        device, dtype = weights.device, weights.dtype
        self.layers = tapped(raw, target.kv_shape.layers)
        self.max_positions = config.max_positions
        self.kv_shape = KVShape(1, config.kv_heads, config.head_dim)
        hidden, wide = config.hidden, target.embed(torch.zeros(1, dtype=torch.int64, device=device)).shape[-1]
        own = "embed_tokens.weight" in weights
        if not own and hidden != wide:
            raise UnsupportedModel(
                f"The head has hidden states of {hidden}, the model of {wide}, and the head brings no embedding: it "
                "was trained for another model."
            )
        self.embed = build.embedding("embed_tokens", target.vocab_size, hidden) if own else target.embed
        self._fuse = build.linear({"fc": hidden}, len(self.layers) * wide)
        name = "midlayer" if "midlayer.hidden_norm.weight" in weights else "layers.0"
        self._embedding_norm = parts.norm(config, weights, f"{name}.input_layernorm")
        self._hidden_norm = parts.norm(config, weights, f"{name}.hidden_norm")
        self._normalised = bool(raw.get("norm_before_residual"))
        attention = f"{name}.self_attn"
        counts = (config.heads, config.kv_heads, config.kv_heads)
        qkv = {f"{attention}.{part}": n * config.head_dim for part, n in zip(config.qkv, counts, strict=True)}
        self._attention = PagedAttention(
            build.linear(qkv, 2 * hidden, bias=config.qkv_bias),
            build.linear(
                {f"{attention}.o_proj": hidden}, config.heads * config.head_dim, bias=config.out_bias
            ),
            config.heads,
            config.kv_heads,
            config.head_dim,
            scale=config.scale,
        )
        self._mlp_norm = parts.norm(config, weights, f"{name}.post_attention_layernorm")
        self._mlp = parts.mlp(config, build, f"{name}.mlp")
        self._norm = parts.norm(config, weights, "norm")
        self._table = RotaryTable(config.ropes[0], self.max_positions, device, dtype)
        size = int(raw.get("draft_vocab_size") or target.vocab_size)
        self._head = build.linear({"lm_head": size}, hidden)
        self.vocabulary = _vocabulary(weights, size, target.vocab_size)
        """int64 [draft tokens]: the target's token of each, or ``None`` where they are the same."""
        weights.ignore("t2d")
        weights.finish()

    def fuse(self, states: Tensor) -> Tensor:
        """Of the target's ``layers`` [tokens, layers * hidden] → [tokens, hidden]."""
        return self._fuse(states)

    def forward(
        self, embeddings: Tensor, hidden: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache
    ) -> Tensor:
        """Hidden states [tokens, hidden] in place of those that the target would have had at the next position.

        ``embeddings``: of the tokens after ``positions``. ``hidden``: ``fuse`` of the target's at ``positions``, or
        what this returned for the position before.
        """
        normed = self._hidden_norm(hidden)[0]
        residual = normed if self._normalised else hidden
        x = torch.cat([self._embedding_norm(embeddings)[0], normed], -1)
        x = self._attention(x, self._table(positions), batch, cache.layers[0])
        x, residual = self._mlp_norm(x, residual)
        return self._mlp(x) + residual

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] → [rows, draft tokens]"""
        return self._head(self._norm(hidden)[0])


def flat(raw: Raw) -> dict[str, Any]:
    """The layer's settings among the head's own, as older checkpoints have them."""
    layer = raw.get("transformer_layer_config")
    return {**layer, **raw} if isinstance(layer, Mapping) else dict(raw)


def tapped(raw: Raw, layers: int) -> tuple[int, ...]:
    """The layers of the target whose input is fused, of ``layers``.

    ``eagle_config`` has the layers whose output it is, one less; the key beside it in newer checkpoints has inputs.
    Raises ``UnsupportedModel``.
    """
    nested = raw.get("eagle_config")
    outputs = nested.get("eagle_aux_hidden_state_layer_ids") if isinstance(nested, Mapping) else None
    inputs = raw.get("eagle_aux_hidden_state_layer_ids")
    chosen: Sequence[int] = (2, layers // 2, layers - 3)
    if outputs:
        chosen = [int(layer) + 1 for layer in outputs]
    elif inputs:
        chosen = [int(layer) for layer in inputs]
    if any(not 0 <= layer <= layers for layer in chosen):
        raise UnsupportedModel(
            f"The head reads the hidden states of layers {tuple(chosen)}, but the model has {layers}: it was trained "
            "for another one."
        )
    return tuple(chosen)


def _vocabulary(weights: WeightLoader, size: int, vocab: int) -> Tensor | None:
    if "d2t" not in weights:
        if size > vocab:
            raise UnsupportedModel(f"The head has {size} tokens, the model {vocab}: it is for another model.")
        return None
    ids = weights.exact("d2t", (size,)).long()
    ids = ids + torch.arange(size, device=ids.device)
    if int(ids.min()) < 0 or int(ids.max()) >= vocab:
        raise UnsupportedModel(f"d2t names tokens that the model's vocabulary of {vocab} does not have.")
    return ids
