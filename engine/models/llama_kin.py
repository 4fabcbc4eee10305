"""Families that are Llama but for details, beside those of llama.py.

SmolLM3 (https://huggingface.co/blog/smollm3), Ministral (https://mistral.ai/news/ministraux, and
https://arxiv.org/abs/2601.08584 for Ministral 3), Seed-OSS (https://github.com/ByteDance-Seed/seed-oss), ERNIE 4.5
(https://ernie.baidu.com/blog/publication/ERNIE_Technical_Report.pdf), HunYuan (https://github.com/Tencent-Hunyuan),
Apertus (https://arxiv.org/abs/2509.14233), StarCoder2 (https://arxiv.org/abs/2402.19173).
"""

from __future__ import annotations

from dataclasses import replace

from engine.errors import UnsupportedModel
from engine.models.config import (
    BlockNorms,
    DecoderConfig,
    HeadNorms,
    Raw,
    count_layers,
    read,
    typed_windows,
    uniform_windows,
    window_of,
)
from engine.models.llama import mistral


def smollm3(raw: Raw) -> DecoderConfig:
    """Every fourth layer is not rotated; those layers may have a sliding window."""
    raw = {"tie_word_embeddings": True, "rope_theta": 2_000_000.0, "num_key_value_heads": 4, **raw}
    layers, period = count_layers(raw), int(raw.get("no_rope_layer_interval") or 4)
    turned = raw.get("no_rope_layers") or [int((layer + 1) % period != 0) for layer in range(layers)]
    if len(turned) != layers:
        raise UnsupportedModel(f"no_rope_layers names {len(turned)} layers of {layers}.")
    if not raw.get("use_sliding_window"):
        raw = {**raw, "sliding_window": None}
    slides = window_of(raw) is not None
    kinds = ["sliding_attention" if slides and not has else "full_attention" for has in turned]
    bias = bool(raw.get("attention_bias"))
    return read(
        raw,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bool(raw.get("mlp_bias")),
        windows=typed_windows(raw, kinds),
        layer_ropes=tuple(0 if has else None for has in turned),
    )


def ministral(raw: Raw) -> DecoderConfig:
    raw = {"sliding_window": 4096, **raw}
    kind = "full_attention" if window_of(raw) is None else "sliding_attention"
    return read(raw, windows=typed_windows(raw, [kind] * count_layers(raw)))


def ministral3(raw: Raw) -> DecoderConfig:
    """Queries grow with the context: see ``Rope.query_growth``."""
    return read({"head_dim": 128, "rms_norm_eps": 1e-5, **raw}, windows=uniform_windows(raw))


def mistral3(raw: Raw) -> DecoderConfig:
    """A multimodal checkpoint of Mistral or Ministral 3, of which only the text model is used."""
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise UnsupportedModel("config.json lacks 'text_config'.")
    family = {"mistral": mistral, "ministral": ministral, "ministral3": ministral3}.get(
        str(text.get("model_type", "mistral"))
    )
    if family is None:
        raise UnsupportedModel(f"text_config of type {text.get('model_type')!r} is not supported.")
    return family({"tie_word_embeddings": bool(raw.get("tie_word_embeddings")), **text})


def seed_oss(raw: Raw) -> DecoderConfig:
    raw = {"head_dim": 128, "num_key_value_heads": 8, "attention_bias": True, **raw}
    return read(
        raw,
        qkv_bias=bool(raw["attention_bias"]),
        out_bias=bool(raw.get("attention_out_bias")),
        mlp_bias=bool(raw.get("mlp_bias")),
    )


def ernie(raw: Raw) -> DecoderConfig:
    """Pairs of the rotation lie side by side."""
    raw = {"head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": True, **raw}
    bias = bool(raw.get("use_bias"))
    return read(raw, qkv_bias=bias, out_bias=bias, mlp_bias=bias, interleaved=True)


def hunyuan(raw: Raw) -> DecoderConfig:
    """Heads are normalised after the rotation, whose base is stretched once and for all (``alpha``)."""
    if raw.get("use_cla"):
        raise UnsupportedModel("use_cla is not supported: layers would share keys and values.")
    bias = bool(raw.get("attention_bias"))
    config = read(
        {"rms_norm_eps": 1e-5, **raw},
        qkv_bias=bias,
        out_bias=bias,
        head_norm=HeadNorms("query_layernorm", "key_layernorm", rotated=True),
    )
    (rope,) = config.ropes
    if rope.kind == "dynamic" and (alpha := rope.scaling.get("alpha")):
        stretched = replace(rope, theta=rope.theta * float(alpha) ** (rope.dim / (rope.dim - 2)))
        return replace(config, ropes=(stretched,))
    return config


def apertus(raw: Raw) -> DecoderConfig:
    """An MLP without a gate; its activation (xIELU) has weights."""
    scaling = {"factor": 8.0, "original_max_position_embeddings": 8192}
    scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    default = {"rope_type": "llama3", "rope_theta": 12e6, **scaling}
    raw = {"hidden_act": "xielu", "rms_norm_eps": 1e-5, "rope_theta": 12e6, **raw}
    if not (raw.get("rope_parameters") or raw.get("rope_scaling")):
        raw["rope_parameters"] = default
    bias = bool(raw.get("attention_bias"))
    return read(
        raw,
        gated=False,
        gate_up=("up_proj",),
        qkv_bias=bias,
        out_bias=bias,
        head_norm=HeadNorms(),
        norms=BlockNorms("attention_layernorm", None, "feedforward_layernorm"),
    )


def starcoder2(raw: Raw) -> DecoderConfig:
    """Layer norms with a bias, an MLP without a gate, biases everywhere."""
    raw = {
        "norm_epsilon": 1e-5,
        "use_bias": True,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        **raw,
    }
    raw = {"hidden_act": "gelu_pytorch_tanh", **raw}
    bias = bool(raw["use_bias"])
    return read(
        raw,
        gated=False,
        gate_up=("c_fc",),
        down="c_proj",
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        eps=float(raw["norm_epsilon"]),
        layer_norm=True,
        norm_bias=True,
        windows=uniform_windows(raw),
    )
