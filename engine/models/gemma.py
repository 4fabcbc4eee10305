"""Gemma (https://arxiv.org/abs/2403.08295), Gemma 2 (https://arxiv.org/abs/2408.00118) and the text parts of Gemma 3
(https://arxiv.org/abs/2503.19786) and Gemma 3n (https://ai.google.dev/gemma/docs/gemma-3n).

The weights of norms are stored minus one; embeddings are scaled by √hidden. From Gemma 2 on there are norms before and
after attention and MLP, and layers with a sliding window alternate with full attention. Gemma 2 has softcaps on scores
and logits; Gemma 3 normalises heads instead, and its sliding layers have a rotary base of their own.
"""

from __future__ import annotations

from typing import Any

from engine.errors import UnsupportedModel
from engine.models.config import (
    SANDWICH,
    AltUp,
    DecoderConfig,
    HeadNorms,
    Raw,
    count_layers,
    integer,
    layer_types,
    read,
    read_rope,
    typed_windows,
)

_COMMON: Raw = {
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_GEMMA2: Raw = {**_COMMON, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA3N: Raw = {
    "vocab_size": 262_400,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32_768,
    "sliding_window": 512,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
    "altup_num_inputs": 4,
    "altup_active_idx": 0,
    "altup_correct_scale": True,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
}
_GEMMA3: Raw = {**_COMMON, "vocab_size": 262_208, "max_position_embeddings": 131_072}


def gemma(raw: Raw) -> DecoderConfig:
    raw = {"head_dim": 256, "tie_word_embeddings": True, **raw}
    # The first checkpoints say "gelu", and mean its approximation.
    kind = raw.get("hidden_activation") or raw.get("hidden_act") or "gelu"
    kind = "gelu_pytorch_tanh" if kind == "gelu" else kind
    bias = bool(raw.get("attention_bias"))
    return read(
        {**raw, "hidden_act": kind},
        qkv_bias=bias,
        out_bias=bias,
        norm_offset=1.0,
        embedding_scale=integer(raw, "hidden_size") ** 0.5,
        rounded_scale=True,
    )


def gemma2(raw: Raw) -> DecoderConfig:
    raw = {**_GEMMA2, **raw}
    return _gemma(raw, period=2, softcap=raw["attn_logit_softcapping"])


def gemma3(raw: Raw) -> DecoderConfig:
    raw = {**_GEMMA3, **raw}
    if raw.get("attn_logit_softcapping"):
        raise UnsupportedModel(
            "attn_logit_softcapping is not supported for Gemma 3: it is not part of that model."
        )
    period = int(raw.get("sliding_window_pattern") or 6)
    return _gemma(raw, period=period, head_norm=HeadNorms(), **_ropes(raw, period))


def _ropes(raw: Raw, period: int) -> dict[str, Any]:
    dim = integer(raw, "head_dim")
    # In older checkpoints rope_theta and rope_scaling apply to the layers with full attention.
    full = read_rope(raw, dim, "full_attention", raw.get("rope_theta") or 1e6)
    plain = raw if raw.get("rope_parameters") else {**raw, "rope_scaling": None}
    sliding = read_rope(plain, dim, "sliding_attention", raw.get("rope_local_base_freq") or 10000.0)
    kinds = layer_types(raw, _alternating(raw, period))
    layer_ropes = tuple(int(kind == "sliding_attention") for kind in kinds)
    return {"ropes": (full, sliding), "layer_ropes": layer_ropes}


def gemma3n(raw: Raw) -> DecoderConfig:
    """Its norms are stored as they are, and scores are not scaled."""
    raw = {**_GEMMA3N, **raw}
    layers, kinds = count_layers(raw), layer_types(raw, _alternating(raw, 5))
    widths = _by_layer(raw, "intermediate_size", layers)
    sparse = 10 if layers > 10 else 0
    if raw.get("activation_sparsity_pattern") is None:
        raw = {**raw, "activation_sparsity_pattern": [0.95] * sparse + [0.0] * (layers - sparse)}
    sparsity = _by_layer(raw, "activation_sparsity_pattern", layers)
    if not all(0 <= share < 1 for share in sparsity):
        raise UnsupportedModel("activation_sparsity_pattern must have shares from 0 to below 1.")
    first = layers - int(raw["num_kv_shared_layers"] or 0)
    own = {kind: layer for layer, kind in enumerate(kinds[: max(first, 0)])}
    if lacking := set(kinds[max(first, 0) :]) - own.keys():
        raise UnsupportedModel(
            f"num_kv_shared_layers is {raw['num_kv_shared_layers']}: no layer of {', '.join(lacking)} is left to share."
        )
    bias = bool(raw.get("attention_bias"))
    altup = AltUp(
        integer(raw, "altup_num_inputs"),
        int(raw["altup_active_idx"]),
        bool(raw["altup_correct_scale"]),
        integer(raw, "laurel_rank"),
        integer(raw, "hidden_size_per_layer_input"),
        integer(raw, "vocab_size_per_layer_input"),
        tuple(map(int, widths)),
        tuple(map(float, sparsity)),
        tuple(own[kind] if layer >= first else layer for layer, kind in enumerate(kinds)),
    )
    if not 0 <= altup.active < altup.streams:
        raise UnsupportedModel(f"altup_active_idx is {altup.active}, of {altup.streams} streams.")
    return read(
        {**raw, "intermediate_size": altup.widths[0]},
        activation="hidden_activation",
        qkv_bias=bias,
        out_bias=bias,
        scale=1.0,
        windows=typed_windows(raw, kinds),
        embedding_scale=integer(raw, "hidden_size") ** 0.5,
        rounded_scale=True,
        logit_softcap=raw["final_logit_softcapping"],
        altup=altup,
        **_ropes(raw, 5),
    )


def _by_layer(raw: Raw, key: str, layers: int) -> list[Any]:
    """One value for all layers, or a list."""
    given = raw[key] if isinstance(raw[key], list) else [raw[key]] * layers
    if len(given) != layers:
        raise UnsupportedModel(f"{key} names {len(given)} layers of {layers}.")
    return given


def gemma3n_text(raw: Raw) -> DecoderConfig:
    """A checkpoint for pictures and sound, too, of which only the text model is used."""
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise UnsupportedModel("config.json lacks 'text_config'.")
    return gemma3n(text)


def gemma3_text(raw: Raw) -> DecoderConfig:
    """A multimodal checkpoint, of which only the text model is used."""
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise UnsupportedModel("config.json lacks 'text_config'.")
    return gemma3(text)


def _gemma(raw: Raw, *, period: int, **options: Any) -> DecoderConfig:
    raw = {**raw, "hidden_activation": raw.get("hidden_activation") or "gelu_pytorch_tanh"}
    bias = bool(raw.get("attention_bias"))
    return read(
        raw,
        activation="hidden_activation",
        qkv_bias=bias,
        out_bias=bias,
        scale=float(raw["query_pre_attn_scalar"]) ** -0.5,
        windows=typed_windows(raw, _alternating(raw, period)),
        norms=SANDWICH,
        norm_offset=1.0,
        embedding_scale=integer(raw, "hidden_size") ** 0.5,
        rounded_scale=True,
        logit_softcap=raw.get("final_logit_softcapping"),
        **options,
    )


def _alternating(raw: Raw, period: int) -> list[str]:
    """The last of each ``period`` layers has full attention."""
    return [
        "sliding_attention" if (layer + 1) % period else "full_attention"
        for layer in range(count_layers(raw))
    ]
