"""gpt-oss (https://arxiv.org/abs/2508.10925): a mixture of experts whose heads have an attention sink, and whose layers
have a sliding window and full attention in turns.

Experts have biases, and their gate and what it multiplies are clamped (``ClampedSwiGLU``). Checkpoints have them in one
tensor a layer, in bfloat16 or, as published, in MXFP4 (see ``weights/mxfp4.py``).
"""

from __future__ import annotations

from engine.layers.mlp import ClampedSwiGLU
from engine.models.config import DecoderConfig, Experts, Raw, count_layers, integer, read, typed_windows
from engine.models.mixture import top_k_of

_DEFAULTS: Raw = {
    "head_dim": 64,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "sliding_window": 128,
    "attention_bias": True,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
}


def gpt_oss(raw: Raw) -> DecoderConfig:
    raw = {**_DEFAULTS, **raw}
    layers, bias = count_layers(raw), bool(raw["attention_bias"])
    count = integer(raw, "num_local_experts")
    return read(
        raw,
        qkv_bias=bias,
        out_bias=bias,
        sinks=True,
        windows=typed_windows(raw, (["sliding_attention", "full_attention"] * layers)[:layers]),
        experts=Experts(
            count,
            top_k_of(raw, count),
            integer(raw, "intermediate_size"),
            # Softmax over those that were chosen: the same as one over all, normalised.
            True,
            frozenset(range(layers)),
            stacked="turns",
            biases=True,
            activation=ClampedSwiGLU(float(raw["swiglu_alpha"]), float(raw["swiglu_limit"])),
            router="router",
            router_bias=True,
            exact_router=True,
        ),
    )
