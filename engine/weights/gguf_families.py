"""What GGUF files of further families hold as their config.json: beside gguf_config.py.

Where llama.cpp builds values into its code, such as which layers are rotated, they are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import UnsupportedModel
from engine.weights.gguf import Gguf

Build = Callable[[Gguf, Mapping[str, Any]], dict[str, Any]]


def _named(architecture: str) -> Build:
    return lambda file, common: {"architectures": [architecture]}


def _granite(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["GraniteForCausalLM"],
        "embedding_multiplier": file.value("embedding_scale"),
        "residual_multiplier": file.value("residual_scale"),
        "attention_multiplier": file.value("attention.scale"),
        "logits_scaling": file.value("logit_scale"),
    }


def _olmo2(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    if common["sliding_window"]:
        raise UnsupportedModel(
            f"{file.path} has layers with a sliding window (OLMo 3), and does not say how the others are rotated: take "
            "the model's own folder."
        )
    return {"architectures": ["Olmo2ForCausalLM"]}


def _starcoder2(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["Starcoder2ForCausalLM"],
        "norm_epsilon": _epsilon(file),
        "use_bias": "blk.0.attn_q.bias" in file.tensors,
        # Files leave it out.
        "sliding_window": common["sliding_window"] or 4096,
    }


def _cohere(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["CohereForCausalLM"],
        "layer_norm_eps": _epsilon(file),
        "logit_scale": file.value("logit_scale", 0.0625),
    }


def _cohere2(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    period = 4
    kinds = [
        "sliding_attention" if (i + 1) % period else "full_attention"
        for i in range(common["num_hidden_layers"])
    ]
    return _cohere(file, common) | {"architectures": ["Cohere2ForCausalLM"], "layer_types": kinds}


def _ernie(file: Gguf, common: Mapping[str, Any]) -> dict[str, Any]:
    return {"architectures": ["Ernie4_5ForCausalLM"], "use_bias": common["attention_bias"]}


def _epsilon(file: Gguf) -> float:
    return float(file.value("attention.layer_norm_epsilon", 1e-5))


FURTHER: Mapping[str, Build] = {
    "gemma": _named("GemmaForCausalLM"),
    "smollm3": _named("SmolLM3ForCausalLM"),
    "olmo2": _olmo2,
    "granite": _granite,
    "glm4": _named("Glm4ForCausalLM"),
    "command-r": _cohere,
    "cohere2": _cohere2,
    "starcoder2": _starcoder2,
    "ernie4_5": _ernie,
}

READ: Mapping[str, tuple[str, ...]] = {
    "granite": ("attention.scale", "embedding_scale", "residual_scale", "logit_scale"),
    "command-r": ("logit_scale",),
    "cohere2": ("logit_scale",),
}
"""Keys that only some families have."""

_LATENT = "latent attention's tensors, which are read from the model's own folder (safetensors) alone"
_LAYERS = "a cache of another kind for each layer"
_TENSORS = "tensors that are not read from GGUF files yet: take the safetensors files"
MISSING: Mapping[str, str] = {
    "deepseek2": _LATENT,
    "minicpm3": _LATENT,
    "qwen3next": f"linear attention, and with it {_LAYERS}",
    "qwen35": f"linear attention, and with it {_LAYERS}",
    "qwen35moe": f"linear attention, and with it {_LAYERS}",
    "lfm2": f"short convolutions, and with them {_LAYERS}",
    "lfm2moe": f"short convolutions, and with them {_LAYERS}",
    "granitehybrid": f"Mamba layers, and with them {_LAYERS}",
    "jamba": f"Mamba layers, and with them {_LAYERS}",
    "falcon-h1": f"Mamba layers, and with them {_LAYERS}",
    "nemotron_h": f"Mamba layers, and with them {_LAYERS}",
    "gpt-oss": _TENSORS,
    "llama4": _TENSORS,
    "gemma3n": _TENSORS,
}
"""Architectures that are known and not run, with what the engine lacks for them."""
