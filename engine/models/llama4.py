"""Llama 4, its text part (https://ai.meta.com/blog/llama-4-multimodal-intelligence): a mixture of experts in all layers
or every other one.

Most layers attend in chunks of the context, with a rotation and heads of length one; every fourth sees all, is not
rotated (NoPE), and its queries grow with their position (https://arxiv.org/abs/2501.19399). A token's experts read it
multiplied by the sigmoid of their scores.
"""

from __future__ import annotations

from engine.errors import UnsupportedModel
from engine.models.config import DecoderConfig, Experts, Growth, HeadNorms, Raw, count_layers, integer, read
from engine.models.mixture import top_k_of
from kernels.route import TopSigmoid

_DEFAULTS: Raw = {
    "head_dim": 128,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "no_rope_layer_interval": 4,
    "interleave_moe_layer_step": 1,
    "attention_chunk_size": 8192,
    "use_qk_norm": True,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
}


def llama4(raw: Raw) -> DecoderConfig:
    raw = {**_DEFAULTS, **raw}
    layers, bias = count_layers(raw), bool(raw.get("attention_bias"))
    period, step = integer(raw, "no_rope_layer_interval"), integer(raw, "interleave_moe_layer_step")
    turned = raw.get("no_rope_layers") or [(layer + 1) % period != 0 for layer in range(layers)]
    if len(turned) < layers:
        raise UnsupportedModel(f"no_rope_layers names {len(turned)} layers of {layers}.")
    kinds = raw.get("layer_types") or ["chunked_attention" if has else "full_attention" for has in turned]
    if len(kinds) < layers or set(kinds) - {"chunked_attention", "full_attention"}:
        raise UnsupportedModel(
            f"layer_types {', '.join(kinds)} are not supported for {layers} layers of Llama 4."
        )
    sparse = raw.get("moe_layers")
    if sparse is None:
        sparse = range(step - 1, layers, step)
    count, width = integer(raw, "num_local_experts"), integer(raw, "intermediate_size")
    growth = Growth(float(raw["attn_scale"]), integer(raw, "floor_scale"))
    chunk = integer(raw, "attention_chunk_size") if "chunked_attention" in kinds[:layers] else None
    return read(
        {**raw, "intermediate_size": raw["intermediate_size_mlp"], "layer_types": None},
        qkv_bias=bias,
        out_bias=bias,
        mlp="feed_forward",
        interleaved=True,
        head_norm=HeadNorms(rotated=True, weights=False) if raw["use_qk_norm"] else None,
        layer_ropes=tuple(0 if has else None for has in turned[:layers]),
        unrotated_growth=growth if raw["attn_temperature_tuning"] else None,
        windows=tuple(chunk if kind == "chunked_attention" else None for kind in kinds[:layers]),
        chunked=True,
        experts=Experts(
            count,
            top_k_of(raw, count),
            width,
            False,
            frozenset(sparse),
            name="feed_forward",
            stacked="halves",
            shared=width,
            router="router",
            routing=TopSigmoid(),
            scaled_inputs=True,
        ),
    )


def llama4_text(raw: Raw) -> DecoderConfig:
    """A multimodal checkpoint, of which only the text model is used."""
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise UnsupportedModel("config.json lacks 'text_config'.")
    return llama4(text)
