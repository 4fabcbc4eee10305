"""ModernBERT (https://arxiv.org/abs/2412.13663): pre-norm blocks of rotary attention, most of them within a window."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from engine.errors import UnsupportedModel
from engine.layers.rope import RotaryTable
from engine.models.builder import LayerBuilder
from engine.models.config import Raw, count_layers, integer, layer_types, read_rope
from engine.pooling.attention import attend
from engine.pooling.parts import LayerNorm, activation, prefix_of
from engine.pooling.texts import Texts
from kernels.rope import rope

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


class ModernBert:
    """``length``: the longest text. Raises ``UnsupportedModel`` if the weights do not fit."""

    def __init__(self, raw: Raw, build: LayerBuilder, length: int | None = None) -> None:
        weights = build.weights
        self.width, self.vocab_size = integer(raw, "hidden_size"), integer(raw, "vocab_size")
        self.max_positions = integer(raw, "max_position_embeddings")
        heads = integer(raw, "num_attention_heads")
        if self.width % heads:
            raise UnsupportedModel(
                f"hidden_size ({self.width}) is no multiple of num_attention_heads ({heads})."
            )
        prefix = self.prefix = prefix_of(weights, "embeddings.tok_embeddings.weight", "", "model.")
        self._words = weights.take(f"{prefix}embeddings.tok_embeddings.weight", (self.vocab_size, self.width))
        self._norm = norm_of(raw, build, f"{prefix}embeddings.norm")
        every = int(raw.get("global_attn_every_n_layers") or 3)
        types = layer_types(raw, [_LOCAL if i % every else _GLOBAL for i in range(count_layers(raw))])
        self._blocks = [
            (kind, _Block(raw, build, f"{prefix}layers.{i}", heads, kind, first=not i))
            for i, kind in enumerate(types)
        ]
        self._final = norm_of(raw, build, f"{prefix}final_norm")
        length = min(length or self.max_positions, self.max_positions)
        self._tables = {
            kind: RotaryTable(
                read_rope(raw, self.width // heads, kind, theta), length, weights.device, weights.dtype
            )
            for kind, theta in _thetas(raw).items()
            if kind in types
        }

    def forward(self, texts: Texts) -> Tensor:
        rotations = {kind: table(texts.positions) for kind, table in self._tables.items()}
        x = self._norm(self._words[texts.tokens])
        for kind, block in self._blocks:
            x = block(x, rotations[kind], texts)
        return self._final(x)


class _Block:
    def __init__(
        self, raw: Raw, build: LayerBuilder, name: str, heads: int, kind: str, *, first: bool
    ) -> None:
        width, wide = integer(raw, "hidden_size"), integer(raw, "intermediate_size")
        biased, mlp_biased = bool(raw.get("attention_bias")), bool(raw.get("mlp_bias"))
        self._heads = heads
        # local_attention is the whole window, both sides of the token.
        self._window = int(raw.get("local_attention") or 128) // 2 + 1 if kind == _LOCAL else None
        self._attention_norm = None if first else norm_of(raw, build, f"{name}.attn_norm")
        self._qkv = build.linear({f"{name}.attn.Wqkv": 3 * width}, width, bias=biased)
        self._out = build.linear({f"{name}.attn.Wo": width}, width, bias=biased)
        self._mlp_norm = norm_of(raw, build, f"{name}.mlp_norm")
        self._up = build.linear({f"{name}.mlp.Wi": 2 * wide}, width, bias=mlp_biased)
        self._activation = activation(raw, "hidden_activation")
        self._down = build.linear({f"{name}.mlp.Wo": width}, wide, bias=mlp_biased)

    def __call__(self, x: Tensor, rotation: tuple[Tensor, Tensor], texts: Texts) -> Tensor:
        tokens, width = x.shape
        heads, dim = self._heads, width // self._heads
        normed = x if self._attention_norm is None else self._attention_norm(x)
        qkv = self._qkv(normed).view(tokens, 3 * heads, dim)
        rotated = rope(qkv[:, : 2 * heads], *rotation)
        attended = attend(
            rotated[:, :heads],
            rotated[:, heads:],
            qkv[:, 2 * heads :],
            texts,
            scale=dim**-0.5,
            window=self._window,
        )
        x = x + self._out(attended.reshape(tokens, width))
        turned, gate = self._up(self._mlp_norm(x)).chunk(2, -1)
        return x + self._down(self._activation(turned) * gate)


def norm_of(raw: Raw, build: LayerBuilder, name: str) -> LayerNorm:
    eps = float(raw.get("norm_eps") or 1e-5)
    return LayerNorm(build.weights, name, integer(raw, "hidden_size"), eps, bias=bool(raw.get("norm_bias")))


def _thetas(raw: Raw) -> Mapping[str, float]:
    """The base of the rotation by type of layer, where ``rope_parameters`` has none."""
    return {
        _GLOBAL: float(raw.get("global_rope_theta") or 160_000.0),
        _LOCAL: float(raw.get("local_rope_theta") or 10_000.0),
    }
