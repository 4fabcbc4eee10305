"""A tiny model's files with its layers in AWQ's or GPTQ's layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from engine.quantizer.grid import rounded
from engine.weights.pack import awq, gptq


def write(folder: Path, target: Path, method: str, size: int) -> None:
    """The model in ``folder``, its layers rounded to nearest."""
    for path in folder.glob("*.json"):
        shutil.copy(path, target / path.name)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": method,
        "bits": 4,
        "group_size": size,
        **({"version": "gemm"} if method == "awq" else {"checkpoint_format": "gptq", "desc_act": False}),
    }
    (target / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        found = rounded(tensor.float(), 4, size)
        parts = found.codes.int(), found.zero, found.scale
        layer = name.removesuffix(".weight")
        stored = awq(*parts) if method == "awq" else gptq(*parts, found.group)
        tensors |= {f"{layer}.{end}": value for end, value in stored.items()}
    save_file(tensors, target / "model.safetensors")
