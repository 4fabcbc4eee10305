"""A LoRA adapter of random numbers for any model whose linear layers have the usual names."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.weights.safetensors import open_file

_RANK = 8
_TARGETS = ("q_proj", "v_proj", "o_proj", "down_proj")


def write_random(folder: Path, model: Path, seed: int) -> Path:
    """In PEFT's layout, large enough to change the model's output."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for file in sorted(model.glob("*.safetensors")):
        with open_file(file) as weights:
            for name in weights.keys():  # noqa: SIM118 -- it is no dict
                module = name.removesuffix(".weight")
                if module == name or module.rpartition(".")[2] not in _TARGETS or "experts" in module:
                    continue
                out, inputs = weights.get_slice(name).get_shape()
                for part, shape in (("A", (_RANK, inputs)), ("B", (out, _RANK))):
                    numbers = torch.randn(shape, generator=generator) * (0.5 / shape[1] ** 0.5)
                    tensors[f"base_model.model.{module}.lora_{part}.weight"] = numbers
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": _RANK, "lora_alpha": _RANK, "target_modules": list(_TARGETS)}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "bias": "none"}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
