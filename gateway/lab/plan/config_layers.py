"""What each layer of a config.json is: attention to all or to a window, a state, an MLP or experts."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.fields import Fields
from gateway.lab.plan.shape import Mixture

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
CONV, DELTA, MAMBA = "conv", "linear_attention", "mamba"
STATES = frozenset((CONV, DELTA, MAMBA))
"""Layers with a state in place of keys and values."""
_ALIASES = {"attention": FULL, "global": FULL, "local": SLIDING}
_SLIDING = frozenset(("ministral3", "mistral", "mistral3", "mixtral", "phi3", "phimoe", "starcoder2"))
"""Types all of whose layers have the window, where there is one."""
_PERIODS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "olmo3": 4, "exaone4": 4}
"""Types in which the last of so many layers sees everything, and the others a window."""
_WINDOWS = {"gemma2": 4096, "gemma3": 4096, "gemma3_text": 4096}
_MAMBA = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}


def kinds_of(config: Fields, kind: str, layers: int) -> Sequence[str]:
    """Of each layer. Raises ``PlanError``."""
    raw = config.raw
    named = raw.get("layer_types") or raw.get("layers_block_type")
    if named is None and (attending := raw.get("attn_layer_indices")) is not None:
        named = [FULL if layer in attending else MAMBA for layer in range(layers)]
    if named is None and (attending := raw.get("full_attn_idxs")) is not None:
        named = [FULL if layer in attending else CONV for layer in range(layers)]
    if named is None:
        return _by_type(config, kind, layers)
    if not isinstance(named, list) or len(named) != layers:
        raise PlanError(f"{config.name}: layer_types does not name each of {layers} layers")
    # Hybrids with Mamba may call its layers linear attention, as transformers 5 does.
    delta = DELTA if "linear_num_key_heads" in raw else MAMBA
    found = [delta if one == DELTA else _ALIASES.get(one, one) for one in map(str, named)]
    if unknown := sorted({*found} - {FULL, SLIDING, CHUNKED, *STATES}):
        raise PlanError(
            f"{config.name}: layer_types has {', '.join(unknown)}, which is not known here: give the model by numbers "
            "(--model params=7B,layers=32,kv_heads=8,head_dim=128)"
        )
    return found


def _by_type(config: Fields, kind: str, layers: int) -> Sequence[str]:
    raw = config.raw
    if (every := raw.get("full_attention_interval")) or kind.startswith(("qwen3_next", "qwen3_5")):
        every = int(every or 4)
        return [DELTA if (layer + 1) % every else FULL for layer in range(layers)]
    if kind == "qwen2_moe" and raw.get("use_sliding_window"):
        most = config.number("max_window_layers", default=28)
        return [FULL if layer % 2 or layer >= most else SLIDING for layer in range(layers)]
    if kind == "qwen3_moe" and raw.get("use_sliding_window"):
        return [SLIDING] * layers
    if kind.startswith("qwen"):
        first = config.number("max_window_layers", default=28) if raw.get("use_sliding_window") else layers
        return [SLIDING if layer >= first else FULL for layer in range(layers)]
    if kind == "llama4_text":
        rotated = raw.get("no_rope_layers") or [(layer + 1) % 4 for layer in range(layers)]
        return [CHUNKED if turns else FULL for turns in rotated]
    if kind in _SLIDING and raw.get("sliding_window") not in (None, 0, -1):
        return [SLIDING] * layers
    if (period := _PERIODS.get(kind)) and (kind in _WINDOWS or raw.get("sliding_window")):
        period = int(raw.get("sliding_window_pattern") or period) if kind != "exaone4" else period
        return [SLIDING if (layer + 1) % period else FULL for layer in range(layers)]
    return [FULL] * layers


def window_of(config: Fields, which: str) -> int | None:
    """Raises ``PlanError``."""
    if which == SLIDING:
        kind = str(config.raw.get("model_type") or "")
        return config.number("sliding_window", default=_WINDOWS.get(kind)) or None
    if which == CHUNKED:
        return config.number("attention_chunk_size", default=8192)
    return None


def state_of(config: Fields, kinds: Sequence[str], hidden: int) -> tuple[int, int, int]:
    """Numbers that layers keep of a request in the compute dtype, those in float32, and the parameters of these."""
    values = sums = weights = 0
    if convs := kinds.count(CONV):
        values += convs * (config.number("conv_L_cache", default=3) - 1) * hidden
        weights += convs * 4 * hidden * hidden
    if deltas := kinds.count(DELTA):
        size = {key: config.number(key, default=usual) for key, usual in _DELTA.items()}
        keys = size["linear_num_key_heads"] * size["linear_key_head_dim"]
        heads = size["linear_num_value_heads"]
        inner = heads * size["linear_value_head_dim"]
        values += deltas * (size["linear_conv_kernel_dim"] - 1) * (2 * keys + inner)
        sums += deltas * heads * size["linear_key_head_dim"] * size["linear_value_head_dim"]
        weights += deltas * hidden * (2 * keys + 3 * inner + 2 * heads)
    if mambas := kinds.count(MAMBA):
        size = {key: config.number(key, default=usual) for key, usual in _MAMBA.items()}
        heads, inner = size["mamba_n_heads"], size["mamba_expand"] * hidden
        channels = inner + 2 * size["mamba_n_groups"] * size["mamba_d_state"]
        values += mambas * (size["mamba_d_conv"] - 1) * channels
        sums += mambas * inner * size["mamba_d_state"]
        weights += mambas * hidden * (2 * inner + channels + heads)
    return values, sums, weights


def experts(config: Fields, kind: str, layers: int, hidden: int) -> tuple[Mixture | None, int, int]:
    """The mixture, the width of the MLP that all tokens take beside it, and how many layers have an MLP alone."""
    count = config.number(
        "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", default=0
    )
    if count < 2:
        return None, 0, layers
    chosen = config.number("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", default=1)
    width = config.number("moe_intermediate_size", "intermediate_size")
    if not 1 <= chosen <= count:
        raise PlanError(f"{config.name}: {chosen} of {count} experts for a token: one of the two is wrong")
    sparse = _sparse(config, kind, layers)
    shared = config.number("shared_expert_intermediate_size", default=0) or width * config.number(
        "n_shared_experts", "moe_num_shared_experts", "num_shared_experts", "num_shared_expert", default=0
    )
    if kind == "llama4_text":
        shared = config.number("intermediate_size")
    if kind.startswith("hunyuan"):
        shared = shared or width
    return Mixture(count, chosen, sparse, 3 * hidden * width), shared, layers - sparse


def _sparse(config: Fields, kind: str, layers: int) -> int:
    """How many layers have experts."""
    raw = config.raw
    if isinstance(kinds := raw.get("mlp_layer_types"), list):
        return kinds.count("sparse")
    if isinstance(named := raw.get("moe_layers"), list) and named:
        return len(named)
    if kind == "llama4_text":
        step = config.number("interleave_moe_layer_step", default=1)
        return len(range(step - 1, layers, step))
    if kind.startswith("ernie"):
        first = config.number("moe_layer_start_index", default=1)
        last = raw.get("moe_layer_end_index", -1)
        last = layers - 1 if last in (None, -1) else int(last)
        step = config.number("moe_layer_interval", default=1)
        return sum((layer + 1) % step == 0 for layer in range(first, min(last, layers - 1) + 1))
    if "decoder_sparse_step" in raw or "mlp_only_layers" in raw:
        step, alone = config.number("decoder_sparse_step", default=1), raw.get("mlp_only_layers") or ()
        return sum((layer + 1) % max(step, 1) == 0 and layer not in alone for layer in range(layers))
    dense = config.number("first_k_dense_replace", "num_dense_layers", default=0)
    every = raw.get("moe_layer_freq")
    return len(range(dense, layers, every if isinstance(every, int) and every > 0 else 1))
