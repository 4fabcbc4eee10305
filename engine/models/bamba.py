"""Bamba (https://github.com/foundation-model-stack/bamba): Mamba 2 beside a few layers with attention.

Defaults are those of transformers, for what a config.json leaves out.
"""

from __future__ import annotations

from engine.models.config import BlockNorms, DecoderConfig, Raw, count_layers, read
from engine.models.mamba import mamba2_mixers


def bamba(raw: Raw) -> DecoderConfig:
    raw = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, **raw}
    attending = set(raw.get("attn_layer_indices") or ())
    bias = bool(raw.get("attention_bias"))
    return read(
        raw,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bool(raw.get("mlp_bias")),
        mixers=mamba2_mixers(raw, [layer in attending for layer in range(count_layers(raw))]),
        norms=BlockNorms("input_layernorm", None, "pre_ff_layernorm"),
        mlp="feed_forward",
        final_norm="final_layernorm",
    )
