"""GGUF files made from Hugging Face folders as llama.cpp's converter makes them; names by the gguf package's map."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file
from torch import Tensor

ARCHITECTURES = {
    "Llama": "llama",
    "Mistral": "llama",
    "Mixtral": "llama",
    "Qwen2": "qwen2",
    "Qwen3": "qwen3",
    "Qwen3Moe": "qwen3moe",
    "Phi3": "phi3",
    "Gemma2": "gemma2",
    "Gemma3": "gemma3",
    "Gemma": "gemma",
    "SmolLM3": "smollm3",
    "Olmo2": "olmo2",
    "Granite": "granite",
    "Glm4": "glm4",
    "Cohere": "command-r",
    "Cohere2": "cohere2",
    "Starcoder2": "starcoder2",
    "Ernie4_5": "ernie4_5",
}
_STACKED = re.compile(r"(model\.layers\.\d+\.(?:mlp|block_sparse_moe)\.experts)\.(\d+)\.(\w+)\.weight")
_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
Keep = Callable[[str], Type]


def floats(name: str) -> Type:
    return Type.F32


def write(
    path: Path,
    folder: Path,
    kind: Keep = floats,
    *,
    extra: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    change: Callable[[Tensor], Tensor] | None = None,
    unstacked: bool = False,
    parts: int = 1,
    **metadata: Any,
) -> Path:
    """``kind``: the type of each matrix by its name in the file. ``extra``: metadata by their full name; ``tensors``:
    more of them; ``change``: done to each matrix; ``unstacked``: experts apart; ``metadata``: values of the
    architecture, with ``__`` for a dot."""
    config = json.loads((folder / "config.json").read_text())
    family = config["architectures"][0].removesuffix("ForCausalLM")
    architecture = ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=20 if parts > 1 else 0)
    values = {key: config.get(name) for key, name in _KEYS.items()}
    values["expert_count"] = config.get("num_experts") or config.get("num_local_experts")
    values["attention.layer_norm_epsilon"] = config.get("layer_norm_eps") or config.get("norm_epsilon")
    values["logit_scale"] = config.get("logit_scale") or config.get("logits_scaling")
    if not config.get("use_sliding_window", True):
        del values["attention.sliding_window"]
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta")}
    if "full_attention" in rope:
        values["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    values["rope.freq_base"] = rope["rope_theta"]
    values |= {key.replace("__", "."): value for key, value in metadata.items()}
    for key, value in values.items():
        if value is not None:
            add(writer, f"{architecture}.{key}", value)
    for key, value in (extra or {}).items():
        add(writer, key, value)
    weights = {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}
    found = renamed(weights, config, architecture)
    if unstacked:
        for name in [name for name in found if "_exps" in name]:
            for i, expert in enumerate(found.pop(name)):
                found[name.replace("_exps", f".{i}")] = expert
    for name, tensor in (found | dict(tensors or {})).items():
        if change and tensor.dim() > 1:
            tensor = change(tensor)
        if tensor.dim() < 2 or kind(name) == Type.F32:
            writer.add_tensor(name, tensor.float().contiguous().numpy())
        else:
            data = gguf.quants.quantize(tensor.float().contiguous().numpy(), kind(name))
            writer.add_tensor(name, data, raw_dtype=kind(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def renamed(tensors: Mapping[str, Tensor], config: Mapping[str, Any], architecture: str) -> dict[str, Tensor]:
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    stacks: dict[str, dict[int, Tensor]] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if expert := _STACKED.fullmatch(name):
            stacks.setdefault(f"{expert[1]}.{expert[3]}.weight", {})[int(expert[2])] = tensor
            continue
        if architecture in ("llama", "granite", "smollm3") and re.search(r"\.[qk]_proj\.", name):
            tensor = permuted(tensor, heads if ".q_" in name else kv_heads or heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        found[name] = tensor
    found |= {name: torch.stack([parts[i] for i in sorted(parts)]) for name, parts in stacks.items()}
    return {names.get_name(name, (".weight", ".bias")): tensor for name, tensor in found.items()}


def permuted(weight: Tensor, heads: int) -> Tensor:
    """Rows i and i + dim / 2 of a head, which turn together, side by side."""
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    ways = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{ways[type(value)]}")(key, value)


def random_blocks(kind: Type, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Bytes that are a matrix of that type, its scales aside, which are small: for types gguf cannot write."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(seed)
    return random.integers(0, 60, (rows, columns // block * size), dtype=np.uint8)
