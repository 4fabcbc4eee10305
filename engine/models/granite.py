"""Granite 3 (https://github.com/ibm-granite/granite-3.0-language-models) and the dense models of Granite 4.

Llama with factors on embeddings, residual sums, attention scores and logits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.errors import UnsupportedModel
from engine.models.config import DecoderConfig, Raw, count_layers, integer, read
from engine.models.mamba import mamba2_mixers


def granite(raw: Raw) -> DecoderConfig:
    return _granite(raw, mlp_bias=bool(raw.get("mlp_bias")))


def granite_hybrid(raw: Raw) -> DecoderConfig:
    """Granite 4 in general; those without experts are run."""
    layers = count_layers(raw)
    kinds = raw.get("layer_types") or raw.get("layers_block_type") or ["mamba"] * layers
    attending = [kind in ("attention", "full_attention") for kind in kinds]
    if len(kinds) != layers or not set(kinds) <= {"attention", "full_attention", "mamba", "linear_attention"}:
        raise UnsupportedModel(f"layer_types must name attention or mamba for each of {layers} layers.")
    if raw.get("num_local_experts"):
        raise UnsupportedModel("Granite 4 with experts (num_local_experts) is not supported; without, it is.")
    if raw.get("normalization_function") not in (None, "rmsnorm"):
        raise UnsupportedModel(f"normalization_function {raw['normalization_function']!r} is not supported.")
    plain = {key: value for key, value in raw.items() if key not in ("layer_types", "layers_block_type")}
    config = _granite(
        plain | {"intermediate_size": integer(raw, "shared_intermediate_size")},
        mlp="shared_mlp",
        gate_up=("input_linear",),
        down="output_linear",
        mixers=() if all(attending) else mamba2_mixers(raw, attending),
        mixer_eps=float(raw.get("rms_norm_eps") or 1e-6),
    )
    if raw.get("position_embedding_type") == "rope":
        return config
    return replace(config, layer_ropes=(None,) * config.layers)


def _granite(raw: Raw, **options: Any) -> DecoderConfig:
    # Each layer's outputs have a factor. Instead all before them is divided by it, and eps with it: as norms follow,
    # that makes no difference, and costs nothing.
    part = float(raw.get("residual_multiplier") or 1.0)
    bias = bool(raw.get("attention_bias"))
    return read(
        raw,
        qkv_bias=bias,
        out_bias=bias,
        eps=float(raw.get("rms_norm_eps") or 1e-6) / part**2,
        embedding_scale=float(raw.get("embedding_multiplier") or 1.0) / part,
        scale=float(raw.get("attention_multiplier") or 1.0),
        logit_scale=1 / float(raw.get("logits_scaling") or 1.0),
        **options,
    )
