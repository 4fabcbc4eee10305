"""Qwen3-0.6B's shape with random weights, as a Hugging Face folder and as GGUF files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

SHAPE = {
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
_GGUF = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_folder(folder: Path, layers: int) -> Path:
    """config.json and model.safetensors in bfloat16. Random: speed does not depend on what the weights say."""
    if (folder / "model.safetensors").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, "num_hidden_layers": layers}))
    generator = torch.Generator().manual_seed(0)
    hidden, width, dim = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["head_dim"]
    heads, kv_heads = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"]

    def random(out: int, size: int) -> torch.Tensor:
        weight = torch.empty(out, size, dtype=torch.bfloat16)
        return weight.normal_(0, size**-0.5, generator=generator)

    tensors = {
        "model.embed_tokens.weight": random(SHAPE["vocab_size"], hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
    }
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
        norms |= {"self_attn.q_norm": dim, "self_attn.k_norm": dim}
        tensors |= {
            f"{name}.{part}.weight": torch.ones(size, dtype=torch.bfloat16) for part, size in norms.items()
        }
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_gguf(path: Path, folder: Path, layers: int) -> Path:
    """The folder's weights in float16 for llama.cpp, which reads no safetensors. There is no vocabulary in it."""
    if path.is_file():
        return path
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_key_length(SHAPE["head_dim"])
    writer.add_value_length(SHAPE["head_dim"])
    writer.add_rope_freq_base(SHAPE["rope_theta"])
    writer.add_layer_norm_rms_eps(SHAPE["rms_norm_eps"])
    writer.add_vocab_size(SHAPE["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 -- it is no dict
            tensor = file.get_tensor(name)
            writer.add_tensor(
                _gguf_name(name),
                tensor.float().numpy() if tensor.ndim == 1 else tensor.to(torch.float16).numpy(),
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantize(python: str, source: Path, path: Path, kind: str) -> Path:
    """By llama.cpp's own quantizer, as its users do: ``Q4_0`` or ``Q8_0``."""
    if not path.is_file():
        command = [
            python,
            str(Path(__file__).with_name("llama.py")),
            "quantize",
            str(source),
            str(path),
            kind,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def prompt(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, SHAPE["vocab_size"], length).tolist()


def _gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_GGUF[part]}.weight"
