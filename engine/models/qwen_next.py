"""Qwen3-Next (https://qwenlm.github.io/blog/qwen3_next) and Qwen3.5: three of four layers are gated delta nets.

The others have attention whose outputs have a gate. Defaults are those of transformers, for what a config.json leaves
out. Of checkpoints that see, only the text model is used, whose three-dimensional positions are then all one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.errors import UnsupportedModel
from engine.models.config import DecoderConfig, Experts, HeadNorms, Raw, count_layers, integer, read
from engine.models.mixers import GatedDeltaMixer
from engine.models.mixture import sparse_experts, top_k_of

_DEFAULTS = {
    "num_key_value_heads": 2,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}


def qwen3_next(raw: Raw) -> DecoderConfig:
    raw = {"num_experts_per_tok": 10, "moe_intermediate_size": 512, "norm_topk_prob": True, **raw}
    experts = sparse_experts(raw, 512)
    if experts:
        width = integer({"shared_expert_intermediate_size": 512, **raw}, "shared_expert_intermediate_size")
        experts = replace(experts, shared=width, shared_gate=True)
    return _hybrid(raw, joint=True, experts=experts)


def qwen3_5(raw: Raw) -> DecoderConfig:
    return _hybrid({"num_key_value_heads": 4, **_text(raw)}, joint=False)


def qwen3_5_moe(raw: Raw) -> DecoderConfig:
    raw = {"num_experts_per_tok": 8, "moe_intermediate_size": 512, "num_experts": 256, **_text(raw)}
    layers, count = count_layers(raw), integer(raw, "num_experts")
    experts = Experts(
        count,
        top_k_of(raw, count),
        integer(raw, "moe_intermediate_size"),
        True,
        frozenset(range(layers)),
        shared=integer({"shared_expert_intermediate_size": 512, **raw}, "shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return _hybrid({"intermediate_size": 1, **raw}, joint=False, experts=experts)


def _hybrid(raw: Raw, *, joint: bool, **options: Any) -> DecoderConfig:
    raw = {**_DEFAULTS, **raw}
    layers, every = count_layers(raw), int(raw.get("full_attention_interval") or 4)
    kinds = raw.get("layer_types") or [
        "linear_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)
    ]
    known = {"full_attention", "linear_attention"}
    if len(kinds) != layers or not {"full_attention"} <= set(kinds) <= known:
        raise UnsupportedModel(
            f"layer_types must name full_attention or linear_attention for each of {layers} layers, and the former at "
            "least once."
        )
    delta = GatedDeltaMixer(
        kernel=integer(raw, "linear_conv_kernel_dim"),
        key_heads=integer(raw, "linear_num_key_heads"),
        key_dim=integer(raw, "linear_key_head_dim"),
        value_heads=integer(raw, "linear_num_value_heads"),
        value_dim=integer(raw, "linear_value_head_dim"),
        joint=joint,
    )
    bias = bool(raw.get("attention_bias"))
    return read(
        {key: value for key, value in raw.items() if key != "layer_types"},
        qkv_bias=bias,
        out_bias=bias,
        head_norm=HeadNorms(),
        norm_offset=1.0,
        gated_attention=True,
        mixers=tuple(delta if kind == "linear_attention" else None for kind in kinds),
        **options,
    )


def _text(raw: Raw) -> Raw:
    """The text model's part of the configuration of a checkpoint that sees."""
    text = raw.get("text_config", raw)
    if not isinstance(text, dict):
        raise UnsupportedModel("config.json has a 'text_config' that is no object.")
    # Whether the head is the embedding is said of the whole.
    return {**text, **{key: raw[key] for key in ("tie_word_embeddings",) if key in raw}}
