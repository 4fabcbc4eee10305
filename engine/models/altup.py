"""Gemma 3n's decoder (https://ai.google.dev/gemma/docs/gemma-3n): several streams in place of one residual.

AltUp (https://arxiv.org/abs/2301.13310): a layer predicts all streams, computes the active one, and corrects the others
by how far that was off. LAuReL (https://arxiv.org/abs/2411.07501): beside attention, a product of low rank. Each layer
has embeddings of the tokens of its own, and the last layers attend to the keys and values of an earlier one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata
from engine.errors import UnsupportedModel
from engine.kv_cache import KVCache, KVShape
from engine.layers.attention import PagedAttention, SharedAttention
from engine.layers.linear import Linear
from engine.layers.mlp import SparseGeGLU
from engine.layers.norm import HeadNorm, RMSNorm
from engine.models import parts
from engine.models.builder import LayerBuilder
from engine.models.config import AltUp, DecoderConfig
from engine.models.decoder import Decoder
from engine.models.hidden_states import HiddenStates

_LANES = 32
"""As many outputs as torch's tanh takes at a time: its results do not depend on a row's position then."""


class Streams:
    """How the streams [streams, tokens, hidden] are predicted before a layer, and corrected after it."""

    def __init__(self, config: DecoderConfig, altup: AltUp, build: LayerBuilder, name: str) -> None:
        count, weights = altup.streams, build.weights

        def small(part: str, outputs: int, inputs: int, *, padded: int = 0) -> Linear:
            weight = weights.take(f"{name}.{part}.weight", (outputs, inputs))
            return Linear(functional.pad(weight, (0, 0, 0, padded)), invariant=build.invariant)

        self._count, self._active = count, altup.active
        self._norm = RMSNorm(weights.take(f"{name}.router_norm.weight", (config.hidden,)), config.eps)
        self._router = small("modality_router", count, config.hidden, padded=-count % _LANES)
        self._predict = small("prediction_coefs", count * count, count)
        self._correct = small("correction_coefs", count, count)
        self._hidden = config.hidden
        scale = weights.take(f"{name}.correct_output_scale", (config.hidden,))
        self._scale = scale if altup.scaled else None

    def _modalities(self, x: Tensor) -> Tensor:
        routed = self._router(self._norm(x)[0] * self._hidden**-1.0)
        return routed.float().tanh_()[:, : self._count].to(x.dtype)

    def predict(self, streams: Tensor) -> Tensor:
        shares = self._predict(self._modalities(streams[self._active])).view(-1, self._count, self._count)
        predicted = streams.clone()
        for i, stream in enumerate(streams):
            predicted += shares[:, :, i].T[..., None] * stream
        return predicted

    def correct(self, predicted: Tensor, computed: Tensor) -> Tensor:
        shares = self._correct(self._modalities(computed)) + 1.0
        return predicted + shares.T[..., None] * (computed - predicted[self._active])

    def active(self, streams: Tensor) -> Tensor:
        """What embeddings of the layer are joined with."""
        x = streams[self._active]
        return x if self._scale is None else x * self._scale


class AltUpBlock:
    def __init__(
        self, config: DecoderConfig, altup: AltUp, build: LayerBuilder, name: str, layer: int
    ) -> None:
        def norm(part: str) -> parts.Norm:
            return parts.norm(config, build.weights, f"{name}.{part}")

        hidden, size = config.hidden, altup.layer_size
        self._active = altup.active
        self._streams = Streams(config, altup, build, f"{name}.altup")
        self._attention_norm = norm("input_layernorm")
        self._after_attention = norm("post_attention_layernorm")
        self._mlp_norm = norm("pre_feedforward_layernorm")
        self._after_mlp = norm("post_feedforward_layernorm")
        self._laurel_norm = norm("laurel.post_laurel_norm")
        self._down = build.linear({f"{name}.laurel.linear_left": altup.laurel_rank}, hidden)
        self._up = build.linear({f"{name}.laurel.linear_right": hidden}, altup.laurel_rank)
        self._attention = _attention(config, altup, build, f"{name}.self_attn", layer)
        activation = SparseGeGLU(altup.sparsity[layer]) if altup.sparsity[layer] else None
        width, down = altup.widths[layer], config.down
        self._mlp = parts.gated(
            config, build, f"{name}.mlp", width, config.gate_up, down, activation=activation
        )
        self._gate = build.linear({f"{name}.per_layer_input_gate": size}, hidden)
        self._join = build.linear({f"{name}.per_layer_projection": hidden}, size)
        self._after_join = norm("post_per_layer_input_norm")

    def __call__(
        self,
        streams: Tensor,
        embedded: Tensor,
        rotation: tuple[Tensor, ...],
        batch: AttentionMetadata,
        cache: KVLayer,
    ) -> Tensor:
        """``embedded`` [tokens, layer_size]: the layer's own embeddings."""
        predicted = self._streams.predict(streams)
        active = predicted[self._active]
        x, _ = self._attention_norm(active)
        laurel = x + self._laurel_norm(self._up(self._down(x)))[0]
        attended, _ = self._after_attention(self._attention(x, rotation, batch, cache))
        x = (active + attended + laurel) / math.sqrt(2)
        x = x + self._after_mlp(self._mlp(self._mlp_norm(x)[0]))[0]
        corrected = self._streams.correct(predicted, x)
        gate = functional.gelu(self._gate(self._streams.active(corrected)), approximate="tanh")
        corrected[1:] += self._after_join(self._join(gate * embedded))[0]
        return corrected


def _attention(
    config: DecoderConfig, altup: AltUp, build: LayerBuilder, name: str, layer: int
) -> PagedAttention | SharedAttention:
    heads, kv_heads, dim, weights = config.heads, config.kv_heads, config.head_dim, build.weights
    out = build.linear({f"{name}.o_proj": config.hidden}, heads * dim, bias=config.out_bias, split="in")
    query = weights.take(f"{name}.q_norm.weight", (dim,))
    if altup.sources[layer] != layer:
        # Older checkpoints have them, and transformers drops them, too.
        for part in ("k_proj", "v_proj", "k_norm", "v_norm"):
            weights.ignore(f"{name}.{part}.")
        project = build.linear(
            {f"{name}.q_proj": heads * dim}, config.hidden, bias=config.qkv_bias, split="out"
        )
        rotate = HeadNorm(query, query, heads, 0, config.eps, 0.0)
        return SharedAttention(
            project, out, heads, dim, scale=config.scale, rotate=rotate, window=config.windows[layer]
        )
    sizes = {"q_proj": heads * dim, "k_proj": kv_heads * dim, "v_proj": kv_heads * dim}
    projected = {f"{name}.{part}": size for part, size in sizes.items()}
    key = weights.take(f"{name}.k_norm.weight", (dim,))
    return PagedAttention(
        build.linear(projected, config.hidden, bias=config.qkv_bias, split="out"),
        out,
        heads,
        kv_heads,
        dim,
        scale=config.scale,
        rotate=HeadNorm(query, key, heads, kv_heads, config.eps, 0.0),
        value_norm=RMSNorm(torch.ones_like(key), config.eps),
        window=config.windows[layer],
    )


class AltUpDecoder(Decoder):
    """As ``Decoder``, for a configuration with ``altup``."""

    def __init__(
        self,
        config: DecoderConfig,
        altup: AltUp,
        build: LayerBuilder,
        length: int | None = None,
        *,
        head: bool = True,
    ) -> None:
        if build.weights.tp.size > 1:
            raise UnsupportedModel(
                "Gemma 3n does not support tensor parallelism, as its sparse MLPs look at whole rows: leave out "
                "--tensor-parallel."
            )
        if build.part.stage.count > 1:
            raise UnsupportedModel(
                "Gemma 3n does not support pipeline parallelism, as its layers share keys and values: leave out "
                "--pipeline-parallel."
            )
        self._config, self._altup = config, altup
        super().__init__(config, build, length, head=head)
        own = [layer for layer, source in enumerate(altup.sources) if source == layer]
        self._places = [own.index(source) for source in altup.sources]
        """Of each layer's keys and values in the cache."""
        windows = tuple(config.windows[layer] for layer in own)
        self.kv_shape = KVShape(len(own), config.kv_heads, config.head_dim, windows)
        prefix, hidden, size = self._prefix, config.hidden, altup.layer_size
        self._layer_embedding = build.embedding(
            f"{prefix}embed_tokens_per_layer", altup.layer_vocab, config.layers * size
        )
        projected = {f"{prefix}per_layer_model_projection": config.layers * size}
        self._project = build.linear(projected, hidden)
        weight = build.weights.take(f"{prefix}per_layer_projection_norm.weight", (size,))
        self._project_norm = RMSNorm(weight, config.eps)
        self._widen, self._narrow = (
            [build.linear({f"{prefix}{name}.{i}": hidden}, hidden) for i in range(altup.streams - 1)]
            for name in ("altup_projections", "altup_unembed_projections")
        )
        self._layer_scale = torch.tensor(size**0.5, dtype=build.weights.dtype).item()

    def _block(self, config: DecoderConfig, build: LayerBuilder, name: str, layer: int) -> AltUpBlock:
        return AltUpBlock(config, self._altup, build, name, layer)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        batch: AttentionMetadata,
        cache: KVCache,
        states: HiddenStates | None = None,
    ) -> Tensor:
        x, rotations = self.embed(tokens), self.rotations(positions)
        embedded = self._embedded(tokens, x)
        streams = torch.stack([x, *(_as_large(project(x), x) for project in self._widen)])
        layers = list(cache.by_layer(batch))
        for number, ((block, rope), place) in enumerate(zip(self._blocks, self._places, strict=True)):
            if states is not None:
                states.keep(number, streams[self._altup.active], None)
            layer, own = layers[place]
            streams = block(streams, embedded[:, number], rotations[rope], own, layer)
        if states is not None:
            states.keep(len(self._blocks), streams[self._altup.active], None)
        narrow = zip(self._narrow, streams[1:], strict=True)
        joined = torch.stack([streams[0], *(_as_large(project(one), streams[0]) for project, one in narrow)])
        return self._norm(joined.mean(0))[0]

    def _embedded(self, tokens: Tensor, x: Tensor) -> Tensor:
        """[tokens, layers, layer_size]"""
        shape = len(tokens), self._config.layers, self._altup.layer_size
        known = torch.where(tokens < self._altup.layer_vocab, tokens, 0)
        own = (self._layer_embedding(known) * self._layer_scale).view(shape)
        projected = self._project(x) * self._config.hidden**-0.5
        projected, _ = self._project_norm(projected.reshape(-1, shape[2]))
        return (projected.view(shape) + own) * 2**-0.5


def _as_large(x: Tensor, target: Tensor) -> Tensor:
    """``x`` with the root mean square of ``target``."""
    size = (target**2).mean(-1, keepdim=True) ** 0.5
    return x * size / (x**2).mean(-1, keepdim=True).clamp(min=1e-5).sqrt()
