"""Multi-head latent attention: DeepSeek-V2 (https://arxiv.org/abs/2405.04434), DeepSeek-V3
(https://arxiv.org/abs/2412.19437) and Kimi K2, GLM-4.7-Flash (https://github.com/zai-org/GLM-4.5), MiniCPM3
(https://github.com/OpenBMB/MiniCPM) and Youtu-LLM (https://github.com/TencentCloudADP/youtu-tip).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from engine.errors import UnsupportedModel
from engine.models.config import DecoderConfig, Experts, Latent, Raw, count_layers, integer, read
from engine.models.mixture import expert_groups, predictors, sigmoid_experts, top_k_of
from kernels.route import GroupRouting

_SIZES: Raw = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_interleave": True,
}


def deepseek_v2(raw: Raw) -> DecoderConfig:
    """Experts are chosen by softmax, among all or in groups."""
    raw = {**_SIZES, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407, **raw}
    method = raw.get("topk_method") or "greedy"
    if method not in ("greedy", "group_limited_greedy"):
        raise UnsupportedModel(f"topk_method {method!r} is not supported.")
    if (scoring := raw.get("scoring_func", "softmax")) != "softmax":
        raise UnsupportedModel(f"scoring_func {scoring!r} is not supported with topk_method {method!r}.")
    if raw.get("norm_topk_prob"):
        raise UnsupportedModel("norm_topk_prob is not supported with DeepSeek-V2's choice of experts.")
    if method == "greedy":
        raw = {**raw, "n_group": 1, "topk_group": 1}
    return _latent(raw, experts=_softmax_experts(raw), mlp_bias=bool(raw.get("mlp_bias")))


def deepseek_v3(raw: Raw) -> DecoderConfig:
    raw = {
        **_SIZES,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        **raw,
    }
    return _latent(raw, experts=sigmoid_experts(raw, _sparse(raw, 3)))


def glm4_moe_lite(raw: Raw) -> DecoderConfig:
    """As DeepSeek-V3, with other defaults."""
    sizes = {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "moe_intermediate_size": 1536}
    experts = {
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.8,
    }
    raw = {**_SIZES, **sizes, **experts, "rms_norm_eps": 1e-5, **raw}
    kinds = raw.get("mlp_layer_types")
    layers = _sparse(raw, 1)
    if kinds:
        if len(kinds) != count_layers(raw) or not {*kinds} <= {"dense", "sparse"}:
            raise UnsupportedModel(
                f"mlp_layer_types {kinds} are not one of 'dense' and 'sparse' for each layer."
            )
        layers = frozenset(layer for layer, kind in enumerate(kinds) if kind == "sparse")
    return _latent(raw, experts=sigmoid_experts(raw, layers))


def minicpm3(raw: Raw) -> DecoderConfig:
    """Dense, with factors on embeddings, on what each layer adds, and before the head."""
    hidden, layers = integer(raw, "hidden_size"), count_layers(raw)
    sizes = {"kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32}
    factors = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
    raw = {
        **_SIZES,
        **sizes,
        **factors,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        **raw,
        "rope_interleave": False,
        "v_head_dim": raw.get("v_head_dim") or hidden // integer(raw, "num_attention_heads"),
    }
    # As in granite.py: all before is divided by a layer's factor, and eps with it.
    part = 1.0 if raw["scale_depth"] is None else float(raw["scale_depth"]) / math.sqrt(layers)
    return _latent(
        raw,
        eps=float(raw["rms_norm_eps"]) / part**2,
        embedding_scale=float(raw["scale_emb"]) / part,
        logit_scale=float(raw["dim_model_base"] or hidden) / hidden,
        mlp_bias=bool(raw.get("mlp_bias")),
    )


def youtu(raw: Raw) -> DecoderConfig:
    """DeepSeek-V3 without experts."""
    return _latent({**_SIZES, "tie_word_embeddings": True, **raw})


def _latent(raw: Raw, **options: Any) -> DecoderConfig:
    """The settings that these families have in common."""
    plain, rotary = integer(raw, "qk_nope_head_dim"), integer(raw, "qk_rope_head_dim")
    bias = bool(raw.get("attention_bias"))
    heads = integer(raw, "num_attention_heads")
    config = read(
        {**raw, "head_dim": rotary, "num_key_value_heads": heads},
        out_bias=bias,
        interleaved=bool(raw["rope_interleave"]),
        latent=Latent(
            integer(raw, "kv_lora_rank"),
            plain,
            integer(raw, "v_head_dim"),
            None if raw["q_lora_rank"] is None else integer(raw, "q_lora_rank"),
            bias,
        ),
        predictors=predictors(raw),
        **options,
    )
    (rope,) = config.ropes
    if rope.query_growth:
        raise UnsupportedModel("llama_4_scaling_beta is not supported with latent attention.")
    return replace(config, scale=(plain + rotary) ** -0.5 * rope.score_scaling())


def _softmax_experts(raw: Raw) -> Experts:
    count, width = integer(raw, "n_routed_experts"), integer(raw, "moe_intermediate_size")
    groups, top_groups = expert_groups(raw, count)
    scaling = float(raw.get("routed_scaling_factor") or 1.0)
    return Experts(
        count,
        top_k_of(raw, count * top_groups // groups),
        width,
        False,
        _sparse(raw, 0),
        shared=width * int(raw.get("n_shared_experts") or 0),
        shared_name="shared_experts",
        exact_router=True,
        routing=None if groups == 1 and scaling == 1 else GroupRouting(groups, top_groups, scaling),
    )


def _sparse(raw: Raw, first: int) -> frozenset[int]:
    """The layers that have experts. ``first``: the default of how many there are before them."""
    given = raw.get("first_k_dense_replace")
    step = int(raw.get("moe_layer_freq") or 1)
    return frozenset(
        layer
        for layer in range(first if given is None else int(given), count_layers(raw))
        if layer % step == 0
    )
