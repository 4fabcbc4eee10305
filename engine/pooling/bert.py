"""BERT (https://arxiv.org/abs/1810.04805), RoBERTa (https://arxiv.org/abs/1907.11692) and XLM-R
(https://arxiv.org/abs/1911.02116): post-norm blocks over learnt positions."""

from __future__ import annotations

from torch import Tensor

from engine.errors import UnsupportedModel
from engine.models.builder import LayerBuilder
from engine.models.config import Raw, count_layers, integer
from engine.pooling.attention import attend
from engine.pooling.parts import LayerNorm, activation, prefix_of
from engine.pooling.texts import Texts


class Bert:
    """``first``: the position of a text's first token. Raises ``UnsupportedModel`` if the weights do not fit."""

    def __init__(self, raw: Raw, build: LayerBuilder, *, first: int = 0) -> None:
        weights = build.weights
        if raw.get("position_embedding_type") not in (None, "absolute"):
            raise UnsupportedModel(
                f"position_embedding_type {raw['position_embedding_type']!r} is not supported: 'absolute' is."
            )
        if raw.get("is_decoder"):
            raise UnsupportedModel("An encoder that is a decoder (is_decoder) is not supported.")
        self.width, self.vocab_size = integer(raw, "hidden_size"), integer(raw, "vocab_size")
        positions = integer(raw, "max_position_embeddings")
        self.max_positions = positions - first
        prefix = self.prefix = prefix_of(
            weights, "embeddings.word_embeddings.weight", "", "bert.", "roberta."
        )
        at = f"{prefix}embeddings"
        eps = float(raw.get("layer_norm_eps") or 1e-12)
        self._types = integer(raw, "type_vocab_size") if raw.get("type_vocab_size") is not None else 2
        self._words = weights.take(f"{at}.word_embeddings.weight", (self.vocab_size, self.width))
        self._places = weights.take(f"{at}.position_embeddings.weight", (positions, self.width))[first:]
        self._kinds = weights.take(f"{at}.token_type_embeddings.weight", (self._types, self.width))
        self._norm = LayerNorm(weights, f"{at}.LayerNorm", self.width, eps)
        self._blocks = [
            _Block(raw, build, f"{prefix}encoder.layer.{i}", self.width, eps)
            for i in range(count_layers(raw))
        ]
        for unused in (f"{at}.position_ids", f"{at}.token_type_ids"):
            weights.ignore(unused)

    def forward(self, texts: Texts) -> Tensor:
        kinds = self._kinds[texts.types] if self._types > 1 else self._kinds[0]
        x = self._norm(self._words[texts.tokens] + self._places[texts.positions] + kinds)
        for block in self._blocks:
            x = block(x, texts)
        return x


class _Block:
    def __init__(self, raw: Raw, build: LayerBuilder, name: str, width: int, eps: float) -> None:
        self._heads = integer(raw, "num_attention_heads")
        if width % self._heads:
            raise UnsupportedModel(
                f"hidden_size ({width}) is no multiple of num_attention_heads ({self._heads})."
            )
        wide = integer(raw, "intermediate_size")
        qkv = {f"{name}.attention.self.{part}": width for part in ("query", "key", "value")}
        self._qkv = build.linear(qkv, width, bias=True)
        self._out = build.linear({f"{name}.attention.output.dense": width}, width, bias=True)
        self._attention_norm = LayerNorm(build.weights, f"{name}.attention.output.LayerNorm", width, eps)
        self._up = build.linear({f"{name}.intermediate.dense": wide}, width, bias=True)
        self._activation = activation(raw, "hidden_act")
        self._down = build.linear({f"{name}.output.dense": width}, wide, bias=True)
        self._norm = LayerNorm(build.weights, f"{name}.output.LayerNorm", width, eps)

    def __call__(self, x: Tensor, texts: Texts) -> Tensor:
        tokens, width = x.shape
        dim = width // self._heads
        query, key, value = self._qkv(x).view(tokens, 3, self._heads, dim).unbind(1)
        attended = attend(query, key, value, texts, scale=dim**-0.5)
        x = self._attention_norm(x + self._out(attended.reshape(tokens, width)))
        return self._norm(x + self._down(self._activation(self._up(x))))


def bert(raw: Raw, build: LayerBuilder) -> Bert:
    return Bert(raw, build)


def roberta(raw: Raw, build: LayerBuilder) -> Bert:
    """Positions count from the one behind the padding token's."""
    padding = raw.get("pad_token_id")
    return Bert(raw, build, first=(1 if padding is None else int(padding)) + 1)
