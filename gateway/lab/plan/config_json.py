"""A Hugging Face ``config.json`` as a ``ModelShape``.

Families differ in the names of the same few numbers. What a file leaves out is what transformers takes for it
(https://huggingface.co/docs/transformers/model_doc/auto), as far as memory and time depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.lab.plan.config_layers import STATES, experts, kinds_of, state_of, window_of
from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.fields import Fields
from gateway.lab.plan.shape import Attention, ModelShape

_UNGATED = frozenset(
    ("apertus", "bloom", "falcon", "gpt2", "gpt_neox", "gptj", "mpt", "nemotron", "opt", "phi", "starcoder2")
)
"""Types whose MLP has two matrices, not three."""
_GATED_ATTENTION = frozenset(("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"))
"""Types whose attention has a gate, as large as the queries."""
_HEAD_DIM = {
    "gemma": 256,
    "gemma2": 256,
    "gemma3": 256,
    "gemma3_text": 256,
    "gemma3n": 256,
    "qwen3": 128,
    "qwen3_moe": 128,
}
_TIED = ("gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2", "lfm2", "lfm2_moe")
"""Types that have one matrix for embedding and head unless the file says otherwise."""
_LATENT = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


def read_config(raw: Mapping[str, Any], name: str) -> ModelShape:
    """Raises ``PlanError`` if something is missing or makes no sense."""
    whole = raw
    text = raw.get("text_config")
    if isinstance(text, Mapping):  # a model that sees: the part that writes
        raw = {
            **text,
            **{key: raw[key] for key in ("tie_word_embeddings", "quantization_config") if key in raw},
        }
    config = Fields(raw, name)
    kind = str(raw.get("model_type") or "")
    hidden, layers = (
        config.number("hidden_size", "n_embd", "d_model"),
        config.number("num_hidden_layers", "n_layer"),
    )
    vocabulary = config.number("vocab_size")
    attention = _attention(config, kind, hidden)
    kinds = kinds_of(config, kind, layers)
    shared = config.number("num_kv_shared_layers", default=0) if kind.startswith("gemma3n") else 0
    keeping = [which for which in kinds if which not in STATES][: layers - shared]
    if not keeping:
        raise PlanError(f"{name}: no layer has attention; such models are not planned for")
    values, sums, mixed = state_of(config, kinds, hidden)
    mixture, shared_width, dense_layers = experts(config, kind, layers, hidden)
    matrices = 2 if kind in _UNGATED else 3
    width = config.number(
        "intermediate_size", "n_inner", "ffn_dim", "shared_intermediate_size", default=4 * hidden
    )
    if kind == "llama4_text":
        width = config.number("intermediate_size_mlp", default=width)
    if kind.startswith("granitemoehybrid"):
        width = config.number("shared_intermediate_size", default=width)
    dense = sum(which not in STATES for which in kinds) * _attention_weights(config, kind, attention, hidden)
    dense += mixed + dense_layers * matrices * hidden * width
    if mixture:
        # The router, and the experts that all tokens take.
        dense += mixture.layers * (hidden * mixture.count + 3 * hidden * shared_width)
    tied = bool(raw.get("tie_word_embeddings", raw.get("tie_embedding", kind in _TIED)))
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        windows=tuple(window_of(config, which) for which in keeping),
        attention=attention,
        embedding=vocabulary * hidden,
        head=vocabulary * hidden,
        dense=dense,
        tied=tied,
        mixture=mixture,
        state_values=values,
        state_sums=sums,
        longest=config.number("max_position_embeddings", "n_positions", default=0),
        dtype=_dtype(raw, whole),
        stored=_stored(raw.get("quantization_config") or whole.get("quantization_config"), name),
    )


def _attention(config: Fields, kind: str, hidden: int) -> Attention:
    heads = config.number("num_attention_heads", "n_head")
    if config.raw.get("kv_lora_rank"):
        return Attention(
            heads,
            1,
            config.number("qk_rope_head_dim", default=_LATENT["qk_rope_head_dim"]),
            config.number("kv_lora_rank"),
        )
    dim = config.number("head_dim", default=_HEAD_DIM.get(kind, hidden // heads))
    kv_heads = config.number(
        "num_key_value_heads", "num_kv_heads", default=1 if config.raw.get("multi_query") else heads
    )
    if heads % kv_heads:
        raise PlanError(
            f"{config.name}: num_attention_heads ({heads}) is no multiple of num_key_value_heads ({kv_heads}): one of "
            "them is wrong"
        )
    return Attention(heads, kv_heads, dim)


def _attention_weights(config: Fields, kind: str, attention: Attention, hidden: int) -> int:
    """Parameters of one layer's attention."""
    heads, dim = attention.heads, attention.head_dim
    if attention.latent is not None:
        plain = config.number("qk_nope_head_dim", default=_LATENT["qk_nope_head_dim"])
        value = config.number("v_head_dim", default=_LATENT["v_head_dim"])
        query = config.number("q_lora_rank", default=0)
        found = query * (hidden + heads * (plain + dim)) if query else hidden * heads * (plain + dim)
        found += hidden * (attention.latent + dim) + attention.latent * heads * (plain + value)
        return found + heads * value * hidden
    queries = heads * dim * (2 if kind in _GATED_ATTENTION else 1)
    return hidden * (queries + 2 * attention.kv_heads * dim + heads * dim)


def _dtype(*configs: Mapping[str, Any]) -> str:
    for config in configs:
        if isinstance(found := config.get("dtype") or config.get("torch_dtype"), str):
            return {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}.get(found, found)
    return "bf16"


def _stored(given: Any, name: str) -> str | None:
    """The precision in which a quantized checkpoint is."""
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise PlanError(f"{name}: quantization_config is no object: take the model's own config.json")
    method = str(given.get("quant_method") or "")
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    if method == "mxfp4" or given.get("load_in_4bit"):
        return "int4"
    if given.get("load_in_8bit"):
        return "int8"
    bits = given.get("bits")
    if method == "compressed-tensors":
        groups = list((given.get("config_groups") or {}).values())
        weights = (groups[0].get("weights") or {}) if groups and isinstance(groups[0], Mapping) else {}
        bits = weights.get("num_bits")
        if bits == 8 and weights.get("type") == "float":
            return "fp8"
    if bits in (4, 8):
        return f"int{bits}"
    raise PlanError(
        f"{name}: its quantization ({method or 'unnamed'}, {bits} bits) is not known: give --quantization "
        "(fp8, int8, int4), or the config.json of the model before it was quantized"
    )
