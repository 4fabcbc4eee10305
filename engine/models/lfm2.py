"""LFM2 (https://arxiv.org/abs/2511.23404): most layers are short convolutions in place of attention.

Defaults are those of transformers, for what a config.json leaves out.
"""

from __future__ import annotations

from typing import Any

from engine.errors import UnsupportedModel
from engine.models.config import (
    BlockNorms,
    DecoderConfig,
    Experts,
    HeadNorms,
    Raw,
    count_layers,
    integer,
    read,
)
from engine.models.mixers import ShortConvMixer
from engine.models.mixture import top_k_of
from kernels.route import SigmoidRouting

_NAMES: dict[str, Any] = {
    "head_norm": HeadNorms("q_layernorm", "k_layernorm"),
    "out": "out_proj",
    "norms": BlockNorms("operator_norm", None, "ffn_norm"),
    "final_norm": "embedding_norm",
    "mlp": "feed_forward",
    "gate_up": ("w1", "w3"),
    "down": "w2",
}


def lfm2(raw: Raw) -> DecoderConfig:
    raw = {"num_attention_heads": 32, "num_key_value_heads": 8, "block_multiple_of": 256, **raw}
    width = int(raw.get("block_ff_dim") or integer(raw, "intermediate_size"))
    if raw.get("block_auto_adjust_ff_dim", True):
        width = 2 * width // 3
        if (factor := raw.get("block_ffn_dim_multiplier", 1.0)) is not None:
            multiple = integer(raw, "block_multiple_of")
            width = -(-int(factor * width) // multiple) * multiple
    return _lfm2({**raw, "intermediate_size": width})


def lfm2_moe(raw: Raw) -> DecoderConfig:
    """The first layers have no experts."""
    raw = {
        "intermediate_size": 7168,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792,
        **raw,
    }
    layers, count = count_layers(raw), integer(raw, "num_experts")
    experts = Experts(
        count,
        top_k_of(raw, count),
        integer(raw, "moe_intermediate_size"),
        bool(raw.get("norm_topk_prob", True)),
        frozenset(range(int(raw.get("num_dense_layers", 2)), layers)),
        name="feed_forward",
        gate_up=("w1", "w3"),
        down="w2",
        routing=SigmoidRouting(scaling=float(raw.get("routed_scaling_factor") or 1.0), least=1e-6),
        bias="expert_bias" if raw.get("use_expert_bias", True) else None,
    )
    return _lfm2(raw, experts=experts)


def _lfm2(raw: Raw, **options: Any) -> DecoderConfig:
    layers = count_layers(raw)
    attending = raw.get("full_attn_idxs")
    kinds = raw.get("layer_types") or [
        "full_attention" if attending is None or layer in attending else "conv" for layer in range(layers)
    ]
    if len(kinds) != layers or not {"full_attention"} <= set(kinds) <= {"full_attention", "conv"}:
        raise UnsupportedModel(
            f"layer_types must name full_attention or conv for each of {layers} layers, and the former at least once."
        )
    conv = ShortConvMixer(
        int(raw.get("conv_L_cache") or 3), integer(raw, "hidden_size"), bool(raw.get("conv_bias"))
    )
    plain = {key: value for key, value in raw.items() if key != "layer_types"}
    plain = {"tie_word_embeddings": raw.get("tie_embedding", True), "rope_theta": 1e6, **plain}
    plain["rms_norm_eps"] = raw.get("norm_eps") or 1e-5
    mixers = tuple(conv if kind == "conv" else None for kind in kinds)
    return read(plain, mixers=mixers, **_NAMES, **options)
