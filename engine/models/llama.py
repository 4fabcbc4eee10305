"""Llama and those that differ from it in details: Mistral, Qwen2, Qwen3 and Phi-3.

Pre-norm blocks of rotary grouped-query attention and a gated MLP. The papers: Llama 3
(https://arxiv.org/abs/2407.21783), Mistral (https://arxiv.org/abs/2310.06825), Qwen2
(https://arxiv.org/abs/2407.10671), Qwen3 (https://arxiv.org/abs/2505.09388), Phi-3
(https://arxiv.org/abs/2404.14219). Defaults are those of transformers, for what a config.json leaves out.
"""

from __future__ import annotations

from engine.models.config import (
    DecoderConfig,
    HeadNorms,
    Raw,
    count_layers,
    read,
    typed_windows,
    uniform_windows,
    window_of,
)


def llama(raw: Raw) -> DecoderConfig:
    attention_bias = bool(raw.get("attention_bias"))
    return read(raw, qkv_bias=attention_bias, out_bias=attention_bias, mlp_bias=bool(raw.get("mlp_bias")))


def mistral(raw: Raw) -> DecoderConfig:
    """All layers have a sliding window, or none."""
    return read(raw, windows=uniform_windows({"sliding_window": 4096, **raw}))


def qwen2(raw: Raw) -> DecoderConfig:
    """Queries, keys and values have a bias. Layers from ``max_window_layers`` on may have a sliding window."""
    return read(raw, qkv_bias=True, windows=_upper_windows(raw))


def qwen3(raw: Raw) -> DecoderConfig:
    raw = {"head_dim": 128, **raw}
    bias = bool(raw.get("attention_bias"))
    return read(raw, qkv_bias=bias, out_bias=bias, head_norm=HeadNorms(), windows=_upper_windows(raw))


def phi3(raw: Raw) -> DecoderConfig:
    """Fused projections, and long contexts by longrope: see ``Rope``."""
    raw = {"rms_norm_eps": 1e-5, **raw}
    return read(raw, qkv=("qkv_proj",), gate_up=("gate_up_proj",), windows=uniform_windows(raw))


def _upper_windows(raw: Raw) -> tuple[int | None, ...]:
    raw = {"sliding_window": 4096, **raw}
    if not raw.get("use_sliding_window"):
        raw = {**raw, "sliding_window": None}
    first = int(raw.get("max_window_layers", 28)) if window_of(raw) else count_layers(raw)
    kinds = [
        "sliding_attention" if layer >= first else "full_attention" for layer in range(count_layers(raw))
    ]
    return typed_windows(raw, kinds)
