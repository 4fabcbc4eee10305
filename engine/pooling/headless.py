"""A decoder as an encoder: its hidden states, without a KV cache and without a head."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from engine.errors import UnsupportedModel
from engine.models.builder import LayerBuilder
from engine.models.config import DecoderConfig
from engine.models.decoder import Decoder
from engine.pooling.attention import PassingCache, PassingLayer
from engine.pooling.texts import Texts


class HeadlessDecoder:
    def __init__(self, config: DecoderConfig, build: LayerBuilder, length: int | None) -> None:
        stacked = config.experts and config.experts.stacked
        if config.sinks or config.chunked or config.altup or stacked:
            raise UnsupportedModel(
                "Decoders with attention sinks, attention in chunks, experts in one tensor or several streams "
                "(gpt-oss, Llama 4, Gemma 3n) are not supported as embedding models."
            )
        if any(config.mixers):
            raise UnsupportedModel(
                "Models with layers that keep a state in place of keys and values are not supported for embeddings "
                "and scores."
            )
        self._decoder = Decoder(config, build, length, head=False)
        self.width, self.vocab_size = config.hidden, config.vocab_size
        self.max_positions = config.max_positions
        self._cache = PassingCache([PassingLayer() for _ in range(config.layers)])
        self.embedding = self._decoder.embedding

    def forward(self, texts: Texts) -> Tensor:
        # The decoder hands batch and cache through to attention, which here are these.
        batch, cache = cast(Any, texts), cast(Any, self._cache)
        return self._decoder.forward(texts.tokens, texts.positions, batch, cache)
