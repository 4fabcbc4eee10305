"""Qwen3-0.6B's shape with random weights, as a Hugging Face folder and as GGUF files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import gguf
import torch
from safetensors import safe_open

from engine.bench.shapes import QWEN3_06B
from engine.bench.shapes import prompt as random_prompt
from engine.bench.shapes import write_folder as write_random

SHAPE = QWEN3_06B
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
    return write_random(folder, SHAPE, layers)


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
    return random_prompt(length, SHAPE["vocab_size"])


def _gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_GGUF[part]}.weight"
