"""Small adapters as PEFT saves them, without torch, and the two requests that upload them."""

from __future__ import annotations

import json
import struct
from random import Random
from typing import Any

import httpx

CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 4,
    "target_modules": ["q_proj"],
    "bias": "none",
}


def shapes(
    rank: int = 2, layers: tuple[str, ...] = ("model.layers.0.self_attn.q_proj",)
) -> dict[str, list[int]]:
    found = {}
    for layer in layers:
        found[f"base_model.model.{layer}.lora_A.weight"] = [rank, 8]
        found[f"base_model.model.{layer}.lora_B.weight"] = [8, rank]
    return found


def safetensors(tensors: dict[str, list[int]], *, seed: int = 1, dtype: str = "F32") -> bytes:
    """A file of random bits; all of them are numbers."""
    header, data = {}, b""
    for name, shape in tensors.items():
        size = 4
        for one in shape:
            size *= one
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += Random(f"{seed} {name}").randbytes(size // 4) * 4
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


async def upload(http: httpx.AsyncClient, data: bytes, **headers: str) -> str:
    answer = await http.post(
        "/v1/files", data={"purpose": "fine-tune"}, files={"file": ("x", data)}, headers=headers
    )
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def create(
    http: httpx.AsyncClient,
    name: str,
    *,
    model: str = "base",
    weights: bytes | None = None,
    config: bytes | None = None,
    seed: int = 1,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> httpx.Response:
    headers = headers or {}
    body = {
        "name": name,
        "model": model,
        "config_file_id": await upload(http, config or json.dumps(CONFIG).encode(), **headers),
        "weights_file_id": await upload(http, weights or safetensors(shapes(), seed=seed), **headers),
        **more,
    }
    return await http.post("/v1/adapters", json=body, headers=headers)
