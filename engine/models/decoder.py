"""The decoder that all families are: blocks of rotary grouped-query attention and an MLP, as ``DecoderConfig`` says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine.attention.metadata import AttentionMetadata
from engine.errors import UnsupportedModel
from engine.kv_cache import KVCache, KVShape
from engine.layers.embedding import Embedding
from engine.layers.norm import NoNorm
from engine.layers.product import Product
from engine.layers.rope import GrowingNoRotation, NoRotation, RotaryTable, ScalingRotaryTable
from engine.layers.row_parallel import GatheredLinear
from engine.models import parts, state_parts
from engine.models.builder import LayerBuilder
from engine.models.config import DecoderConfig
from engine.models.hidden_states import HiddenStates
from engine.state_cache import StateShape
from engine.weights.weight_loader import WeightLoader

log = logging.getLogger("engine.models")

PREFIXES = ("model.", "language_model.model.", "model.language_model.", "")
"""Prefixes of the decoder's tensors: two are those of multimodal checkpoints, none is that of embedding models."""
_UNUSED = (
    *(
        f"{prefix}{name}."
        for prefix in ("", "model.")
        for name in (
            *("vision_tower", "vision_model", "multi_modal_projector"),
            *("audio_tower", "embed_vision", "embed_audio"),
        )
    ),
    *("model.visual.", "mtp."),
)
"""What sees and hears, and what predicts further tokens."""


class Block:
    def __init__(self, config: DecoderConfig, build: LayerBuilder, name: str, layer: int) -> None:
        def norm(part: str | None) -> parts.Norm | None:
            return parts.norm(config, build.weights, f"{name}.{part}") if part else None

        norms = config.norms
        self._attention_norm = norm(norms.attention) or NoNorm()
        mixer = config.mixers[layer] if config.mixers else None
        self._attention: Callable[..., Tensor] = (
            state_parts.mixer(config, mixer, build, name)
            if mixer
            else parts.attention(config, build, f"{name}.self_attn", layer)
        )
        self._after_attention = norm(norms.after_attention)
        self._mlp_norm = norm(norms.mlp) or NoNorm()
        if config.experts and layer in config.experts.layers:
            self._mlp: Product = parts.mixture(config, config.experts, build, name)
        else:
            self._mlp = parts.mlp(config, build, f"{name}.{config.mlp}")
        self._after_mlp = norm(norms.after_mlp)

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        rotation: tuple[Tensor, ...],
        batch: Any,
        cache: Any,
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
        batch: Any,
        cache: Any,
    ) -> tuple[Tensor, Tensor]:
        x, residual = self._attention_norm(x, residual)
        return self._attention(x, rotation, batch, cache) + self._mlp(x), residual


class Decoder:
    """``length``: the longest context to be served; ``None``: the longest that the model supports. Without ``head``
    there are no logits.

    Raises ``UnsupportedModel`` if the weights do not fit.
    """

    def __init__(
        self, config: DecoderConfig, build: LayerBuilder, length: int | None = None, *, head: bool = True
    ) -> None:
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
        if any(config.mixers) and tp.size > 1:
            raise UnsupportedModel(
                "Models with layers that keep a state in place of keys and values do not support tensor parallelism: "
                "leave out --tensor-parallel."
            )
        self.stage = stage = build.part.stage
        """Which of the layers it has."""
        if stage.count > max(1, config.layers):
            raise UnsupportedModel(
                f"The model has {config.layers} layers, too few for {stage.count} stages: lower --pipeline-parallel."
            )
        if any(config.mixers) and stage.count > 1:
            raise UnsupportedModel(
                "Models with layers that keep a state in place of keys and values do not support pipeline "
                "parallelism: leave out --pipeline-parallel."
            )
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden
        self.max_positions = config.max_positions
        prefix = next((name for name in PREFIXES if f"{name}embed_tokens.weight" in weights), PREFIXES[0])
        self._prefix = prefix
        if stage.first:
            self.embedding = build.embedding(f"{prefix}embed_tokens", config.vocab_size, config.hidden)
        self._scale = config.embedding_scale
        if config.rounded_scale:
            self._scale = torch.tensor(self._scale, dtype=weights.dtype).item()
        self._blocks: list[tuple[Any, int]] = []
        for i, rope in enumerate(config.layer_ropes):
            if i not in stage.layers(config.layers):
                weights.ignore(f"{prefix}layers.{i}.")
                continue
            block = self._block(config, build, f"{prefix}layers.{i}", i)
            # Layers without a rotation take the last table.
            self._blocks.append((block, len(config.ropes) if rope is None else rope))
            # Old checkpoints store this buffer, which is computed here.
            weights.ignore(f"{prefix}layers.{i}.self_attn.rotary_emb.inv_freq")
        for i in range(config.predictors):
            weights.ignore(f"{prefix}layers.{config.layers + i}.")
        kept = {layer: mixer.state for layer, mixer in enumerate(config.mixers) if mixer}
        self.state_shape = StateShape(kept) if kept else None
        windows = tuple(config.windows[layer] for layer in stage.layers(config.layers) if layer not in kept)
        # A latent is for all heads: every rank has it.
        kv_heads = 1 if config.latent else config.kv_heads * tp.copies(config.kv_heads) // tp.size
        latent = config.latent.rank if config.latent else None
        self.kv_shape = KVShape(len(windows), kv_heads, config.head_dim, windows, latent, config.chunked)
        if stage.first:
            self._norm = parts.norm(config, weights, f"{prefix}{config.final_norm}")
        else:
            _ignore_ends(config, weights, prefix)
        if head and stage.first:
            self._head = _head(config, build, prefix, self.embedding)
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
            dim, growth = config.ropes[0].dim, config.unrotated_growth
            self._tables.append(
                GrowingNoRotation(dim, growth, length, weights.device, weights.dtype)
                if growth
                else NoRotation(dim, weights.device, weights.dtype)
            )

    def _block(self, config: DecoderConfig, build: LayerBuilder, name: str, layer: int) -> Any:
        return (ParallelBlock if config.parallel else Block)(config, build, name, layer)

    @property
    def shares_head(self) -> bool:
        return isinstance(self._head, GatheredLinear)

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return x * self._scale if self._scale != 1 else x

    def rotations(self, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of each of the configuration's ropes."""
        return [table(positions) for table in self._tables]

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionMetadata,
        cache: KVCache,
        states: HiddenStates | None = None,
    ) -> Tensor:
        return self._norm(*self._layers(self.embed(tokens), positions, batch, cache, states))[0]

    def through(self, x: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache) -> Tensor:
        x, residual = self._layers(x, positions, batch, cache)
        return x if residual is None else x + residual

    def normed(self, x: Tensor) -> Tensor:
        return self._norm(x, None)[0]

    def _layers(
        self,
        x: Tensor,
        positions: Tensor,
        batch: AttentionMetadata,
        cache: KVCache,
        states: HiddenStates | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Of this stage: what they add to the residual last, and the residual."""
        rotations = self.rotations(positions)
        residual: Tensor | None = None
        for number, ((block, rope), (layer, own)) in enumerate(
            zip(self._blocks, cache.by_layer(batch), strict=True)
        ):
            if states is not None:
                states.keep(number, x, residual)
            x, residual = block(x, residual, rotations[rope], own, layer)
        if states is not None:
            states.keep(len(self._blocks), x, residual)
        return x, residual

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._head(hidden)
        if self._logit_scale != 1:
            logits = logits.mul_(self._logit_scale)
        if self._softcap is None:
            return logits
        return logits.div_(self._softcap).tanh_().mul_(self._softcap)


def _ignore_ends(config: DecoderConfig, weights: WeightLoader, prefix: str) -> None:
    """What the first stage has of a decoder beside its layers."""
    for name in (*_UNUSED, f"{prefix}embed_tokens.", f"{prefix}{config.final_norm}.", "lm_head."):
        weights.ignore(name)
    weights.ignore("language_model.lm_head.")


def _head(config: DecoderConfig, build: LayerBuilder, prefix: str, embedding: Embedding) -> Product:
    weights = build.weights
    for name in _UNUSED:
        weights.ignore(name)
    # Next to the decoder, or to the module that contains it.
    name = "language_model.lm_head" if prefix == "language_model.model." else "lm_head"
    if config.tied:
        if not build.unties(f"{name}.weight", embedding):
            weights.ignore(f"{name}.weight")
            bias = weights.bias(name, config.vocab_size) if config.head_bias else None
            return build.tied(f"{prefix}embed_tokens", embedding, bias)
        log.warning(
            "config.json says that the head is the embedding (tie_word_embeddings), but the weights hold another one, "
            "%s.weight: it is used. Correct config.json to silence this warning.",
            name,
        )
    return build.head(name, config.vocab_size, config.hidden, bias=config.head_bias)
