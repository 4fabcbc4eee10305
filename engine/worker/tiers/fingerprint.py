"""What KV blocks on disk depend on: with another model, dtype or layout they would be wrong, and no one would see."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from engine.config import EngineConfig

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
_PIECES, _PIECE, _APART = 4096, 4096, 2**20
"""Of each file of weights its header is hashed, and pieces: one a mebibyte, so that each matrix of a layer has some,
or so many where that would be more. Hashing all takes half a second a gigabyte."""
_HEADER = 2**20


def fingerprint(config: EngineConfig, dtype: str, tensors: Sequence[Tensor]) -> dict[str, object]:
    """By name, as they are told to who gives another. ``tensors``: of all layers of the KV cache."""
    # What releases before did not do with keys (engine/layers/key_smoothing.py).
    smoothed = (
        {} if dtype == "float32" and config.kv_cache_dtype not in ("int8", "fp8") else {"keys": "smoothed"}
    )
    return {
        "model": model_digest(config.model),
        "quantization": config.quantization or "",
        "dtype": dtype,
        "kv_cache_dtype": config.kv_cache_dtype,
        "block_size": config.block_size,
        "max_model_len": config.max_model_len or 0,
        "layout": _layout(tensors),
        **smoothed,
    }


def _layout(tensors: Sequence[Tensor]) -> str:
    """Of all layers' tensors; as a hash, as there may be hundreds."""
    shapes = [f"{tensor.dtype}{list(tensor.shape[1:])}" for tensor in tensors]
    return blake2b("\n".join(shapes).encode(), digest_size=16).hexdigest()


def model_digest(model: Path) -> str:
    """Of the names, sizes and contents of a model's files, sampled where they are large: other weights, a fine-tuned
    model's too, differ all over."""
    # A GGUF file in parts is a folder that links to them all.
    files = sorted(model.iterdir()) if model.is_dir() else [model]
    digest = blake2b(digest_size=16)
    for path in files:
        if path.suffix in _WEIGHTS or path.name == "config.json":
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                digest.update(file.read(_HEADER))
                pieces = max(2, min(_PIECES, size // _APART))
                for number in range(pieces):
                    file.seek(max(0, size - _PIECE) * number // (pieces - 1), os.SEEK_SET)
                    digest.update(file.read(_PIECE))
    return digest.hexdigest()
