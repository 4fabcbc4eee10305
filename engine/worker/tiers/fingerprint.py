"""What KV blocks on disk depend on: with another model, dtype or layout they would be wrong, and no one would see."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from engine.config import EngineConfig

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
_PIECES, _PIECE = 256, 4096
"""Of each file of weights: its header and so many pieces are hashed, as hashing all takes half a second a gigabyte."""
_HEADER = 2**20


def fingerprint(config: EngineConfig, dtype: str, tensors: Sequence[Tensor]) -> dict[str, object]:
    """By name, as they are told to who gives another. ``tensors``: of all layers of the KV cache."""
    return {
        "model": model_digest(config.model),
        "quantization": config.quantization or "",
        "dtype": dtype,
        "kv_cache_dtype": config.kv_cache_dtype,
        "block_size": config.block_size,
        "max_model_len": config.max_model_len or 0,
        "layout": [
            f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape[1:])}" for tensor in tensors
        ],
    }


def model_digest(model: Path) -> str:
    """Of the names, sizes and contents of a model's files, sampled where they are large: other weights, a fine-tuned
    model's too, differ all over."""
    files = sorted(model.iterdir()) if model.is_dir() else [model]
    digest = blake2b(digest_size=16)
    for path in files:
        if path.suffix in _WEIGHTS or path.name == "config.json":
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                digest.update(file.read(_HEADER))
                for number in range(_PIECES):
                    file.seek(max(0, size - _PIECE) * number // (_PIECES - 1), os.SEEK_SET)
                    digest.update(file.read(_PIECE))
    return digest.hexdigest()
