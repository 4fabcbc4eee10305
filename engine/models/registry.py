"""Which class runs which checkpoint, by the ``architectures`` of its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import ModelUnavailable, UnsupportedModel
from engine.layers.attend import AttentionInput
from engine.models.llama import LlamaModel
from engine.weights.loader import Loader
from engine.weights.progress import progress
from engine.weights.safetensors import SafetensorsReader
from engine.worker.kv_cache import KVCache, KVShape
from engine.worker.lora import AdapterBank
from engine.worker.parallel import ALONE, Ranks


class Model(Protocol):
    vocab_size: int
    max_positions: int
    """The longest context that it was made for."""
    kv_shape: KVShape

    @classmethod
    def load(cls, config: Mapping[str, Any], weights: Loader) -> Model: ...

    def forward(self, tokens: Tensor, positions: Tensor, batch: AttentionInput, cache: KVCache) -> Tensor:
        """Hidden states [tokens, hidden] of ``tokens`` int64 [tokens] at ``positions`` int64 [tokens]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] → [rows, vocab]."""
        ...


MODELS: Mapping[str, type[Model]] = {"LlamaForCausalLM": LlamaModel}


def read_config(folder: Path) -> dict[str, Any]:
    """Raises ``ModelUnavailable``."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}.") from error
    if not isinstance(config, dict):
        raise ModelUnavailable(f"{path} is not a JSON object.")
    return config


def load_model(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    *,
    ranks: Ranks = ALONE,
    adapters: AdapterBank | None = None,
) -> Model:
    """Raises ``ModelUnavailable`` or ``UnsupportedModel``."""
    config = read_config(folder)
    names = config.get("architectures") or []
    known = next((name for name in names if name in MODELS), None)
    if known is None:
        asked = ", ".join(names) or "(config.json names none)"
        raise UnsupportedModel(f"The architecture {asked} is not supported; these are: {', '.join(MODELS)}.")
    reader = SafetensorsReader(folder, device, dtype)
    weights = Loader(reader, device, dtype, ranks=ranks, adapters=adapters)
    with progress(reader.total_bytes) as reader.on_read:
        model = MODELS[known].load(config, weights)
    weights.finish()
    return model
