"""Mixtures of experts: Mixtral (https://arxiv.org/abs/2401.04088), Qwen2-MoE (https://arxiv.org/abs/2407.10671),
Qwen3-MoE (https://arxiv.org/abs/2505.09388) and GLM-4.5 (https://arxiv.org/abs/2508.06471).

Several MLPs (experts) in place of one, of which each token uses a few; in Qwen2-MoE and GLM-4.5 also one that every
token uses.
"""

from __future__ import annotations

from dataclasses import replace

from engine.errors import UnsupportedModel
from engine.models.config import (
    DecoderConfig,
    Experts,
    HeadNorms,
    Raw,
    count_layers,
    integer,
    read,
    typed_windows,
    uniform_windows,
    window_of,
)
from kernels.route import SigmoidRouting


def mixtral(raw: Raw) -> DecoderConfig:
    raw = {"num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6, **raw}
    experts = Experts(
        count=integer(raw, "num_local_experts"),
        top_k=top_k_of(raw, integer(raw, "num_local_experts")),
        width=integer(raw, "intermediate_size"),
        normalise=True,
        layers=frozenset(range(count_layers(raw))),
        name="block_sparse_moe",
        gate_up=("w1", "w3"),
        down="w2",
    )
    return read(raw, windows=uniform_windows(raw), experts=experts)


def qwen2_moe(raw: Raw) -> DecoderConfig:
    raw = {"num_experts_per_tok": 4, "max_window_layers": 28, "sliding_window": 4096, **raw}
    if not raw.get("use_sliding_window"):
        raw = {**raw, "sliding_window": None}
    slides = window_of(raw) is not None
    kinds = [
        "sliding_attention"
        if slides and not layer % 2 and layer < int(raw["max_window_layers"])
        else "full_attention"
        for layer in range(count_layers(raw))
    ]
    experts = sparse_experts(raw, 60)
    if experts:
        experts = replace(experts, shared=integer(raw, "shared_expert_intermediate_size"), shared_gate=True)
    return read(
        raw, qkv_bias=bool(raw.get("qkv_bias", True)), windows=typed_windows(raw, kinds), experts=experts
    )


def qwen3_moe(raw: Raw) -> DecoderConfig:
    """All layers have a window, or none."""
    raw = {"num_experts_per_tok": 8, **raw}
    if not raw.get("use_sliding_window"):
        raw = {**raw, "sliding_window": None}
    bias = bool(raw.get("attention_bias"))
    return read(
        raw,
        qkv_bias=bias,
        out_bias=bias,
        head_norm=HeadNorms(),
        windows=uniform_windows(raw),
        experts=sparse_experts(raw, 128),
    )


def glm4_moe(raw: Raw) -> DecoderConfig:
    """The first layers have no experts."""
    raw = {"num_experts_per_tok": 8, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, **raw}
    first = int(raw.get("first_k_dense_replace", 1))
    return read(
        raw,
        qkv_bias=bool(raw.get("attention_bias")),
        head_norm=HeadNorms() if raw.get("use_qk_norm") else None,
        experts=sigmoid_experts(raw, frozenset(range(first, count_layers(raw)))),
        predictors=predictors(raw),
    )


def sigmoid_experts(raw: Raw, layers: frozenset[int]) -> Experts:
    """Chosen as DeepSeek-V3 does it, in ``layers``."""
    count, width = integer(raw, "n_routed_experts"), integer(raw, "moe_intermediate_size")
    if (scoring := raw.get("scoring_func", "sigmoid")) != "sigmoid":
        raise UnsupportedModel(f"scoring_func {scoring!r} is not supported here; 'sigmoid' is.")
    groups, top_groups = expert_groups(raw, count)
    return Experts(
        count,
        top_k_of(raw, count * top_groups // groups),
        width,
        bool(raw.get("norm_topk_prob", True)),
        layers,
        shared=width * int(raw.get("n_shared_experts") or 0),
        shared_name="shared_experts",
        routing=SigmoidRouting(groups, top_groups, float(raw.get("routed_scaling_factor") or 1.0)),
        bias="gate.e_score_correction_bias",
    )


def expert_groups(raw: Raw, count: int) -> tuple[int, int]:
    """Into how many groups ``count`` experts are divided, and of how many a token's are chosen."""
    groups, top_groups = int(raw.get("n_group") or 1), int(raw.get("topk_group") or 1)
    if not 1 <= top_groups <= groups or count % groups or (groups > 1 and count < 2 * groups):
        raise UnsupportedModel(f"n_group is {groups} and topk_group {top_groups}, for {count} experts.")
    return groups, top_groups


def predictors(raw: Raw) -> int:
    """Layers after the last (MTP)."""
    return int(raw.get("num_nextn_predict_layers", raw.get("num_mtp_layers")) or 0)


def sparse_experts(raw: Raw, default: int) -> Experts | None:
    """Every ``decoder_sparse_step``-th layer has experts, except ``mlp_only_layers``. ``default``: their number."""
    step = int(raw.get("decoder_sparse_step") or 1)
    plain = set(raw.get("mlp_only_layers") or ())
    sparse = [layer for layer in range(count_layers(raw)) if layer not in plain and (layer + 1) % step == 0]
    # transformers 5 writes the other name.
    count = int(raw.get("num_experts", raw.get("num_local_experts", default)) or 0)
    if not count or not sparse:
        return None
    width = integer(raw, "moe_intermediate_size")
    return Experts(count, top_k_of(raw, count), width, bool(raw.get("norm_topk_prob")), frozenset(sparse))


def top_k_of(raw: Raw, count: int) -> int:
    top_k = integer(raw, "num_experts_per_tok")
    if not 1 <= top_k <= count:
        raise UnsupportedModel(f"num_experts_per_tok is {top_k}; the model has {count} experts.")
    return top_k
