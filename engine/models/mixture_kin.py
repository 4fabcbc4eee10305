"""Mixtures of experts whose decoders are those of dense families: OLMoE (https://arxiv.org/abs/2409.02060), Phi-3.5-MoE
(https://arxiv.org/abs/2404.14219), ERNIE 4.5 (https://ernie.baidu.com/blog/publication/ERNIE_Technical_Report.pdf) and
HunYuan-A13B (https://github.com/Tencent-Hunyuan/Hunyuan-A13B).
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
    uniform_windows,
)
from engine.models.llama_kin import ernie, hunyuan
from engine.models.mixture import top_k_of
from kernels.route import CorrectedRouting, SparseMixer


def olmoe(raw: Raw) -> DecoderConfig:
    """All heads of the queries are normalised together, and all of the keys."""
    raw = {"num_experts": 64, "num_experts_per_tok": 8, "rms_norm_eps": 1e-5, **raw}
    if raw.get("clip_qkv") is not None:
        raise UnsupportedModel("clip_qkv is not supported: queries, keys and values would be clipped.")
    # transformers 5 may write the other name.
    count = integer(raw, "num_local_experts" if raw.get("num_local_experts") else "num_experts")
    bias = bool(raw.get("attention_bias"))
    experts = Experts(
        count,
        top_k_of(raw, count),
        integer(raw, "intermediate_size"),
        bool(raw.get("norm_topk_prob")),
        frozenset(range(count_layers(raw))),
    )
    return read(raw, qkv_bias=bias, out_bias=bias, head_norm=HeadNorms(joint=True), experts=experts)


def phimoe(raw: Raw) -> DecoderConfig:
    """Layer norms and a head with a bias; two experts, each chosen among those that are left (SparseMixer)."""
    raw = {"num_local_experts": 16, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6, **raw}
    count = integer(raw, "num_local_experts")
    if top_k_of(raw, count) != 2:
        raise UnsupportedModel(
            f"num_experts_per_tok is {raw['num_experts_per_tok']}: Phi-MoE's routing chooses 2."
        )
    jitter = raw.get("router_jitter_noise")
    bias = bool(raw.get("attention_bias"))
    config = read(
        raw,
        qkv_bias=bias,
        out_bias=bias,
        head_bias=bool(raw.get("lm_head_bias")),
        layer_norm=True,
        norm_bias=True,
        windows=uniform_windows(raw),
        experts=Experts(
            count,
            2,
            integer(raw, "intermediate_size"),
            False,
            frozenset(range(count_layers(raw))),
            name="block_sparse_moe",
            gate_up=("w1", "w3"),
            down="w2",
            routing=SparseMixer(0.01 if jitter is None else float(jitter)),
        ),
    )
    (rope,) = config.ropes
    if rope.kind not in ("default", "longrope"):
        raise UnsupportedModel(
            f"rope_scaling of type {rope.kind!r} is not supported for Phi-MoE; longrope is."
        )
    return config


def ernie_moe(raw: Raw) -> DecoderConfig:
    """Experts are chosen with a correction by a bias; some layers may have none."""
    raw = {"moe_num_experts": 64, "moe_k": 6, "moe_num_shared_experts": 2, "moe_layer_start_index": 1, **raw}
    # Unlike the dense models, these have no size of their heads by default.
    config = ernie({"head_dim": None, **raw})
    count, width = integer(raw, "moe_num_experts"), integer(raw, "moe_intermediate_size")
    end, step = raw.get("moe_layer_end_index"), int(raw.get("moe_layer_interval") or 1)
    last = config.layers - 1 if end in (None, -1) else int(end)
    first = int(raw["moe_layer_start_index"] or 0)
    experts = Experts(
        count,
        top_k_of({"num_experts_per_tok": raw["moe_k"]}, count),
        width,
        True,
        frozenset(layer for layer in range(first, min(last + 1, config.layers)) if (layer + 1) % step == 0),
        shared=width * int(raw["moe_num_shared_experts"] or 0),
        shared_name="shared_experts",
        exact_router=True,
        routing=CorrectedRouting(float(raw.get("moe_norm_min") or 1e-12)),
        bias="moe_statics.e_score_correction_bias",
        bias_rows=True,
    )
    return replace(config, experts=experts, head_bias=bool(raw.get("use_bias")))


def hunyuan_moe(raw: Raw) -> DecoderConfig:
    """Every layer has experts, and an MLP that every token goes through besides."""
    raw = {"num_experts": 1, "moe_topk": 1, **raw}
    for key in ("use_mla", "moe_layer_num_skipped"):
        if raw.get(key):
            raise UnsupportedModel(f"{key} is not supported: all layers of a HunYuan mixture are alike.")
    count, shared = _same(raw, "num_experts"), _same(raw, "num_shared_expert") or 1
    wide = integer(raw, "intermediate_size")
    experts = Experts(
        count,
        top_k_of({"num_experts_per_tok": _same(raw, "moe_topk")}, count),
        _same(raw, "moe_intermediate_size") or wide,
        True,
        frozenset(range(count_layers(raw))),
        shared=wide * shared,
        shared_name="shared_mlp",
        router="gate.wg",
        exact_router=True,
    )
    return replace(hunyuan(raw), experts=experts)


def _same(raw: Raw, key: str) -> int:
    """A number, or one for each layer, which must then be the same; 0 where it is missing."""
    value = raw.get(key)
    values = set(value) if isinstance(value, list) else {value}
    if len(values) != 1:
        raise UnsupportedModel(f"{key} differs between layers, which is not supported.")
    (one,) = values
    return 0 if one is None else integer({key: one}, key)
