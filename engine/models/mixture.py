"""Mixtures of experts: Mixtral (https://arxiv.org/abs/2401.04088) and Qwen3-MoE (https://arxiv.org/abs/2505.09388).

Mistral and Qwen3 with several MLPs (experts) in place of one, of which each token uses a few.
"""

from __future__ import annotations

from engine.errors import UnsupportedModel
from engine.models.config import DecoderConfig, Experts, HeadNorms, Raw, count_layers, integer, read, uniform_windows


def mixtral(raw: Raw) -> DecoderConfig:
    raw = {"num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6, **raw}
    experts = Experts(
        count=integer(raw, "num_local_experts"),
        top_k=_top_k(raw, integer(raw, "num_local_experts")),
        width=integer(raw, "intermediate_size"),
        normalise=True,
        layers=frozenset(range(count_layers(raw))),
        name="block_sparse_moe",
        gate_up=("w1", "w3"),
        down="w2",
    )
    return read(raw, windows=uniform_windows(raw), experts=experts)


def qwen3_moe(raw: Raw) -> DecoderConfig:
    """Every ``decoder_sparse_step``-th layer has experts, except ``mlp_only_layers``. All layers have a window, or
    none."""
    raw = {"num_experts_per_tok": 8, **raw}
    if not raw.get("use_sliding_window"):
        raw = {**raw, "sliding_window": None}
    bias = bool(raw.get("attention_bias"))
    step = int(raw.get("decoder_sparse_step") or 1)
    plain = set(raw.get("mlp_only_layers") or ())
    sparse = [layer for layer in range(count_layers(raw)) if layer not in plain and (layer + 1) % step == 0]
    # transformers 5 writes the other name.
    count = int(raw.get("num_experts", raw.get("num_local_experts", 128)) or 0)
    experts = None
    if count and sparse:
        width = integer(raw, "moe_intermediate_size")
        normalise = bool(raw.get("norm_topk_prob"))
        experts = Experts(count, _top_k(raw, count), width, normalise, frozenset(sparse))
    return read(
        raw, qkv_bias=bias, out_bias=bias, head_norm=HeadNorms(), windows=uniform_windows(raw), experts=experts
    )


def _top_k(raw: Raw, count: int) -> int:
    top_k = integer(raw, "num_experts_per_tok")
    if not 1 <= top_k <= count:
        raise UnsupportedModel(f"num_experts_per_tok is {top_k}; the model has {count} experts.")
    return top_k
