"""GLM-4 (https://arxiv.org/abs/2406.12793): half of each head is rotated, in pairs that lie side by side.

The models of 2025 (GLM-4-0414) also normalise the outputs of attention and MLP.
"""

from __future__ import annotations

from typing import Any

from engine.models.config import BlockNorms, DecoderConfig, Raw, read

_DEFAULTS: Raw = {
    "head_dim": 128,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
}


def glm(raw: Raw, **options: Any) -> DecoderConfig:
    raw = {**_DEFAULTS, **raw}
    return read(
        raw, qkv_bias=bool(raw["attention_bias"]), gate_up=("gate_up_proj",), interleaved=True, **options
    )


def glm4(raw: Raw) -> DecoderConfig:
    return glm(
        raw,
        norms=BlockNorms(
            "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"
        ),
    )
