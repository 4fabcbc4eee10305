"""Command R (https://docs.cohere.com/docs/command-r) and Command A and R7B (Cohere 2, https://arxiv.org/abs/2504.00698).

Layer norms without a bias, attention and MLP in parallel, pairs of the rotation side by side. Cohere 2 has layers with
a sliding window; the others are not rotated.
"""

from __future__ import annotations

from typing import Any

from engine.errors import UnsupportedModel
from engine.models.config import BlockNorms, DecoderConfig, Raw, read, typed_windows
from engine.models.olmo import periodic

_DEFAULTS: Raw = {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": True}


def cohere(raw: Raw) -> DecoderConfig:
    if raw.get("use_qk_norm"):
        raise UnsupportedModel(
            "use_qk_norm (Command R+) is not supported: each head has a layer norm of its own."
        )
    return _cohere({"rope_theta": 500_000.0, **raw})


def cohere2(raw: Raw) -> DecoderConfig:
    raw = {"sliding_window": 4096, **raw}
    windows = typed_windows(raw, periodic(raw, int(raw.get("sliding_window_pattern") or 4)))
    return _cohere(
        raw, windows=windows, layer_ropes=tuple(None if window is None else 0 for window in windows)
    )


def _cohere(raw: Raw, **options: Any) -> DecoderConfig:
    raw = {**_DEFAULTS, **raw}
    bias = bool(raw.get("attention_bias"))
    return read(
        raw,
        qkv_bias=bias,
        out_bias=bias,
        eps=float(raw["layer_norm_eps"]),
        layer_norm=True,
        norms=BlockNorms("input_layernorm", None, None, None),
        parallel=True,
        interleaved=True,
        logit_scale=float(raw["logit_scale"]),
        **options,
    )
