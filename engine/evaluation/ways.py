"""Ways to keep a model, and what it predicts so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.core.plan import Plan, ScheduledRequest
from engine.evaluation.samples import Sample
from engine.kv_cache import KVCache
from engine.layers.float8 import Float8Linear
from engine.layers.linear import Linear
from engine.layers.native import Int6Linear
from engine.layers.quantized import Fp8Linear, Int4Linear, Int8Linear
from engine.models.registry import Model, load_model
from engine.state_cache import StateCache
from engine.weights.quantize import METHODS
from engine.worker.batch import BatchBuilder

_CPU = torch.device("cpu")
_BLOCK = 16
_ROWS = 64
"""Rows of logits at a time: with a large vocabulary a whole text's take more memory than the model."""


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    dtype: torch.dtype = torch.float32
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    folder: Path | None = None
    """Of a checkpoint of its own; ``None``: the reference's."""

    def load(self, folder: Path) -> Model:
        """Raises ``StartupError``."""
        return load_model(
            self.folder or folder,
            _CPU,
            self.dtype,
            quantization=self.quantization,
            kv_cache_dtype=self.kv_cache_dtype,
        )


FULL = Way("float32")
WAYS = (
    FULL,
    Way("bfloat16", torch.bfloat16),
    *(Way(name, quantization=name) for name in METHODS if name != "fp8"),
    Way("KV cache int8", kv_cache_dtype="int8"),
    Way("KV cache fp8", kv_cache_dtype="fp8"),
    Way("KV cache int4", kv_cache_dtype="int4"),
    Way("int4 and KV cache int8", quantization="int4", kv_cache_dtype="int8"),
)


@torch.inference_mode()
def predict(model: Model, samples: Sequence[Sample], way: Way) -> Iterator[Iterator[Tensor]]:
    """Of each sample the logits of its tokens but the first, float32 [rows, vocab], some rows at a time."""
    blocks = -(-max(len(sample.tokens) for sample in samples) // _BLOCK)
    # Each text begins in the same slot, with nothing of the one before.
    states = StateCache(model.state_shape, 1, _CPU, way.dtype) if model.state_shape else None
    cache = KVCache(model.kv_shape, blocks, _BLOCK, _CPU, way.dtype, way.kv_cache_dtype, states=states)
    builder = BatchBuilder(cache, _CPU)
    for sample in samples:
        scheduled = ScheduledRequest(0, sample.tokens[:-1], 0, list(range(blocks)), None, False)
        batch = builder.build(Plan([scheduled]))
        hidden = model.forward(batch.tokens, batch.positions, batch.attention, cache)
        yield (model.logits(rows).float() for rows in hidden.split(_ROWS))


def weight_bytes(model: object) -> int:
    """Memory of a model's weights and tables."""
    seen: set[int] = set()
    total = 0
    stack: list[Any] = [model]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, (Linear, Int8Linear, Int6Linear, Int4Linear, Fp8Linear, Float8Linear)):
            # Packed weights have no storage that could be asked.
            total += item.nbytes
        elif isinstance(item, Tensor):
            total += item.untyped_storage().nbytes()
        elif isinstance(item, (list, tuple)):
            stack += item
        elif isinstance(item, dict):
            stack += item.values()
        elif type(item).__module__.startswith("engine."):
            stack += getattr(item, "__dict__", {}).values()
    return total
