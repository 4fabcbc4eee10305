"""Models of known shapes with random weights, as Hugging Face folders: what weights say does not change speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

QWEN3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
QWEN3_17B: dict[str, Any] = {**QWEN3_06B, "hidden_size": 2048, "intermediate_size": 6144}
LLAMA3_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

SHAPES = {"qwen3-0.6b": QWEN3_06B, "qwen3-1.7b": QWEN3_17B, "llama-3-8b": LLAMA3_8B}
_TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


def tiny(shape: dict[str, Any]) -> dict[str, Any]:
    """Of the same family, as small as it can be: to try a script."""
    return {**shape, **_TINY}


def weight_bytes(folder: Path, shape: dict[str, Any]) -> int:
    """Read in a step of one token: all but the embedding, which is looked up, unless it is the head as well."""
    size = (folder / "model.safetensors").stat().st_size
    return size if shape["tie_word_embeddings"] else size - 2 * shape["vocab_size"] * shape["hidden_size"]


def write_folder(folder: Path, shape: dict[str, Any], layers: int, device: str = "cpu") -> Path:
    """config.json and model.safetensors in bfloat16, unless they are there. ``device`` draws the numbers."""
    if (folder / "model.safetensors").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**shape, "num_hidden_layers": layers}))
    generator = torch.Generator(device).manual_seed(0)
    hidden, width, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]

    def random(out: int, size: int) -> torch.Tensor:
        weight = torch.empty(out, size, dtype=torch.bfloat16, device=device)
        return weight.normal_(0, size**-0.5, generator=generator).cpu()

    tensors = {
        "model.embed_tokens.weight": random(shape["vocab_size"], hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
    if not shape["tie_word_embeddings"]:
        tensors["lm_head.weight"] = random(shape["vocab_size"], hidden)
    for i in range(layers):
        name = f"model.layers.{i}"
        sizes = {
            "self_attn.q_proj": (heads * dim, hidden),
            "self_attn.k_proj": (kv_heads * dim, hidden),
            "self_attn.v_proj": (kv_heads * dim, hidden),
            "self_attn.o_proj": (hidden, heads * dim),
            "mlp.gate_proj": (width, hidden),
            "mlp.up_proj": (width, hidden),
            "mlp.down_proj": (hidden, width),
        }
        tensors |= {f"{name}.{part}.weight": random(*size) for part, size in sizes.items()}
        norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
        if shape["model_type"] == "qwen3":
            norms |= {"self_attn.q_norm": dim, "self_attn.k_norm": dim}
        tensors |= {
            f"{name}.{part}.weight": torch.ones(size, dtype=torch.bfloat16) for part, size in norms.items()
        }
    save_file(tensors, folder / "model.safetensors")
    return folder


def prompt(length: int, vocab_size: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(length + 1_000_003 * seed).integers(0, vocab_size, length).tolist()
