"""GGUF metadata as the config.json that model families read.

Which keys there are: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Values that are built into llama.cpp
rather than written, such as which of Gemma's layers have a sliding window, are here, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from engine.errors import UnsupportedModel
from engine.weights.gguf import Gguf
from engine.weights.gguf_families import FURTHER, MISSING, READ

_REFUSED = (
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.temperature_length",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "expert_shared_count",
    "expert_weights_scale",
    "rope.scaling.yarn_log_multiplier",
)
"""Keys that are not supported, and must not be ignored."""
_TYPES = {"Gemma3ForCausalLM": "gemma3_text", "Qwen3MoeForCausalLM": "qwen3_moe"}
"""transformers' types of models, where they are not the architecture's name."""
_GEMMA2_27B, _GEMMA3_27B = 46, 62
"""Numbers of layers of the models that scale attention scores differently."""


def config_json(file: Gguf) -> dict[str, Any]:
    """Raises ``UnsupportedModel`` if no family runs this architecture, or a value is missing or would be ignored."""
    if lacking := MISSING.get(file.architecture):
        raise UnsupportedModel(
            f"{file.path} holds a model of the architecture {file.architecture!r}, which is not supported: it needs "
            f"{lacking}."
        )
    if file.architecture not in _FAMILIES:
        raise UnsupportedModel(
            f"{file.path} holds a model of the architecture {file.architecture!r}, which is not supported; these are: "
            f"{', '.join(_FAMILIES)}."
        )
    for key in _REFUSED:
        if file.value(key) and key not in READ.get(file.architecture, ()):
            raise UnsupportedModel(f"{file.path} sets {key} to {file.value(key)}, which is not supported.")
    common = _common(file)
    config = common | _FAMILIES[file.architecture](file, common)
    (name,) = config["architectures"]
    # transformers does not read a folder without it.
    return config | {"model_type": _TYPES.get(name, name.removesuffix("ForCausalLM").lower())}


def number(file: Gguf, key: str, default: int | None = None) -> int:
    """A value that is the same for all layers. Raises ``UnsupportedModel`` if it is not, or missing."""
    value = file.value(key, default)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise UnsupportedModel(
                f"{file.path} has another {file.architecture}.{key} for each layer, which is not supported."
            )
        value = value[0]
    if value is None:
        raise UnsupportedModel(f"{file.path} lacks {file.architecture}.{key}: it cannot be run without.")
    if not isinstance(value, int) or (value < 1 and value != default):
        raise UnsupportedModel(
            f"{file.path} has {file.architecture}.{key} {value!r}: an integer above 0 is expected."
        )
    return value


def _common(file: Gguf) -> dict[str, Any]:
    if "token_embd.weight" not in file.tensors:
        raise UnsupportedModel(f"{file.path} lacks the tensor token_embd.weight: it holds no language model.")
    hidden, heads = number(file, "embedding_length"), number(file, "attention.head_count")
    head_dim = number(file, "attention.key_length", hidden // heads or None)
    if number(file, "attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{file.path} has values longer than its keys, which is not supported.")
    if (blocks := number(file, "block_count")) > len(file.tensors):
        raise UnsupportedModel(
            f"{file.path} has {blocks} blocks and {len(file.tensors)} tensors: it is damaged."
        )
    plain = all(tensor.type == Type.F32 for tensor in file.tensors.values())
    return {
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": number(file, "feed_forward_length"),
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "num_key_value_heads": number(file, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": number(file, "context_length"),
        "rms_norm_eps": file.value("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_parameters": _rope(file, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "sliding_window": file.value("attention.sliding_window") or None,
        # float16 is what files are written in, seldom what models were trained in.
        "dtype": "float32" if plain else "bfloat16",
    }


def _rope(file: Gguf, head_dim: int) -> dict[str, Any]:
    rotary = number(file, "rope.dimension_count", head_dim)
    rope: dict[str, Any] = {
        "rope_theta": file.value("rope.freq_base", 10000.0),
        "partial_rotary_factor": rotary / head_dim,
    }
    # Early files have a factor without a type. With the type "none" a factor is ignored.
    kind = file.value("rope.scaling.type", "linear")
    magnitude = float(file.value("rope.scaling.attn_factor") or 1.0)
    factor = file.value("rope.scaling.factor") or file.value("rope.scale_linear") or 1.0
    if original := file.value("rope.scaling.original_context_length"):
        rope["original_max_position_embeddings"] = original
    if "rope_freqs.weight" in file.tensors:
        # Llama 3's scaling, precomputed: the divisor of each frequency.
        factors = _factors(file, "rope_freqs.weight")
        rope |= {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": magnitude,
        }
        rope.pop("original_max_position_embeddings", None)
    elif "rope_factors_long.weight" in file.tensors:
        rope |= {
            "rope_type": "longrope",
            "short_factor": _factors(file, "rope_factors_short.weight"),
            "long_factor": _factors(file, "rope_factors_long.weight"),
        }
        if file.value("rope.scaling.attn_factor"):
            rope["attention_factor"] = magnitude
    elif kind == "yarn":
        rope |= {"rope_type": "yarn", "factor": factor}
        if magnitude != 1:
            rope["attention_factor"] = magnitude * (0.1 * math.log(factor) + 1 if factor > 1 else 1)
        for ours in ("beta_fast", "beta_slow"):
            if value := file.value(f"rope.scaling.yarn_{ours}"):
                rope[ours] = value
    elif kind in ("linear", "none") and magnitude != 1:
        raise UnsupportedModel(
            f"{file.path} sets rope.scaling.attn_factor to {magnitude:g} for a rotation of type {kind!r}, which is not "
            "supported."
        )
    elif kind == "linear" and factor != 1:
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind in ("linear", "none"):
        rope["rope_type"] = "default"
    else:
        raise UnsupportedModel(
            f"{file.path} scales its rotation by {kind!r}, which is not supported, or lacks its tensor of factors."
        )
    return rope


def _factors(file: Gguf, name: str) -> list[float]:
    stored = file.tensors.get(name)
    if stored is None or stored.type != Type.F32:
        raise UnsupportedModel(f"{file.path} lacks the tensor {name}, or has it in another type than F32.")
    factors: list[float] = stored.data.view(np.float32).tolist()
    return factors


def _llama(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    """Llama, Mistral and Mixtral have the same architecture name."""
    if count := number(file, "expert_count", 0):
        experts = {"num_local_experts": count, "num_experts_per_tok": number(file, "expert_used_count")}
        return {"architectures": ["MixtralForCausalLM"], **experts}
    if common["sliding_window"]:
        return {"architectures": ["MistralForCausalLM"]}
    bias = "blk.0.ffn_gate.bias" in file.tensors
    return {"architectures": ["LlamaForCausalLM"], "mlp_bias": bias}


def _qwen(architecture: str) -> Callable[[Gguf, Mapping[str, Any]], dict[str, Any]]:
    def build(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
        if common["sliding_window"]:
            raise UnsupportedModel(
                f"{file.path} has layers with a sliding window, and does not say which: take the model's own folder."
            )
        return {"architectures": [architecture]}

    return build


def _qwen3_moe(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    layers = range(common["num_hidden_layers"])
    return _qwen("Qwen3MoeForCausalLM")(file, common) | {
        "num_experts": number(file, "expert_count"),
        "num_experts_per_tok": number(file, "expert_used_count"),
        "moe_intermediate_size": number(file, "expert_feed_forward_length"),
        "norm_topk_prob": bool(file.value("expert_weights_norm", True)),
        "mlp_only_layers": [i for i in layers if f"blk.{i}.ffn_gate_inp.weight" not in file.tensors],
    }


def _phi3(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    original = file.value("rope.scaling.original_context_length")
    return {
        "architectures": ["Phi3ForCausalLM"],
        "original_max_position_embeddings": original or common["max_position_embeddings"],
    }


def _gemma2(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return {
        "architectures": ["Gemma2ForCausalLM"],
        # Early files leave it out.
        "sliding_window": common["sliding_window"] or 4096,
        "query_pre_attn_scalar": _scalar(common, _GEMMA2_27B),
        "layer_types": _layer_types(file, common, 2),
        **{cap: file.value(cap) for cap in caps if file.value(cap)},
    }


def _gemma3(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    sliding = {"rope_type": "default", "rope_theta": file.value("rope.freq_base_swa", 10000.0)}
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "query_pre_attn_scalar": _scalar(common, _GEMMA3_27B),
        "layer_types": _layer_types(file, common, 6),
        "rope_parameters": {"full_attention": common["rope_parameters"], "sliding_attention": sliding},
        "final_logit_softcapping": file.value("final_logit_softcapping"),
    }


def _scalar(common: Mapping[str, Any], largest: int) -> int:
    if common["num_hidden_layers"] == largest:
        return int(common["hidden_size"] // common["num_attention_heads"])
    return int(common["head_dim"])


def _layer_types(file: Gguf, common: Mapping[str, Any], period: int) -> list[str]:
    pattern = file.value("attention.sliding_window_pattern", period)
    if isinstance(pattern, int):
        pattern = [bool((i + 1) % pattern) for i in range(common["num_hidden_layers"])]
    return ["sliding_attention" if slides else "full_attention" for slides in pattern]


_FAMILIES: Mapping[str, Callable[[Gguf, Mapping[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen("Qwen2ForCausalLM"),
    "qwen3": _qwen("Qwen3ForCausalLM"),
    "qwen3moe": _qwen3_moe,
    "phi3": _phi3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    **FURTHER,
}
