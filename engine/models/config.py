"""A decoder's configuration: each model family reads its config.json into a ``DecoderConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import UnsupportedModel
from engine.layers.mlp import ACTIVATIONS, PLAIN_ACTIVATIONS, ClampedSwiGLU
from engine.layers.rope import Growth, Rope
from engine.models.mixers import Mixer
from engine.weights.stacked_experts import Stacking
from kernels.route import CorrectedRouting, GroupRouting, SigmoidRouting, SparseMixer, TopSigmoid

_MAX_LAYERS = 10_000

Raw = Mapping[str, Any]
"""A config.json. null counts as missing where a number is expected."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts in place of a layer's MLP. Names are those of tensors, relative to the layer."""

    count: int
    top_k: int
    """Experts of a token."""
    width: int
    normalise: bool
    """Whether the weights of a token's experts are normalised to sum to one."""
    layers: frozenset[int]
    """The layers that have experts."""
    name: str = "mlp"
    gate_up: tuple[str, str] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    shared: int = 0
    """The width of an MLP that every token goes through besides; 0: there is none."""
    shared_name: str = "shared_expert"
    shared_gate: bool = False
    """Whether its output is multiplied by a sigmoid of the token."""
    router: str = "gate"
    exact_router: bool = False
    """Whether scores are computed in float32, as in training; with a ``bias`` they always are."""
    routing: SigmoidRouting | CorrectedRouting | GroupRouting | SparseMixer | TopSigmoid | None = None
    """``None``: experts are chosen by softmax."""
    bias: str | None = None
    """What is added to chances where experts are chosen, and not to their weights."""
    bias_rows: bool = False
    """Whether the checkpoint has the bias as a matrix with one row."""
    router_bias: bool = False
    """Whether the router's scores have a bias, of which weights are made, too."""
    stacked: Stacking | None = None
    """How gate and up projection share a tensor, where the checkpoint has all experts of a layer in one."""
    biases: bool = False
    """Whether experts have them."""
    scaled_inputs: bool = False
    """Whether experts' weights are factors on what they read, not on what they write."""
    activation: ClampedSwiGLU | None = None
    """``None``: that of the model's MLPs."""


@dataclass(frozen=True, slots=True)
class BlockNorms:
    """The names of a block's norms, relative to the layer; ``None`` where it has none. The default is pre-norm."""

    attention: str | None = "input_layernorm"
    """Of what attention reads."""
    after_attention: str | None = None
    """Of what it adds to the residual."""
    mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


SANDWICH = BlockNorms(
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
)
POST_NORM = BlockNorms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """The norms of queries and keys: of each head, before the rotation, unless something else is said."""

    query: str = "q_norm"
    key: str = "k_norm"
    joint: bool = False
    """All heads of a token are normalised together."""
    rotated: bool = False
    """After the rotation."""
    weights: bool = True
    """``False``: they have none, and layers without a rotation have no norm."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: keys and values of all heads come from one vector a token, which is what is cached,
    with one key for all heads that carries the rotation."""

    rank: int
    """Of that vector."""
    plain: int
    """Dimensions of a head's query and key that are not rotated; the configuration's ``head_dim`` are."""
    value: int
    """Of a head's value."""
    query_rank: int | None = None
    """Of the vector that queries come from; ``None``: they come from what attention reads."""
    bias: bool = False
    """Whether the projections to both vectors have one."""
    eps: float = 1e-6
    """Of both vectors' norms, whatever that of the others is."""


@dataclass(frozen=True, slots=True)
class AltUp:
    """What makes Gemma 3n's decoder another one: see ``altup.py``. Tuples have an entry a layer."""

    streams: int
    active: int
    """The stream that layers compute."""
    scaled: bool
    """Whether it is multiplied by weights before embeddings of the layer are joined with it."""
    laurel_rank: int
    layer_size: int
    """Of a token's embeddings for each layer,"""
    layer_vocab: int
    """and how many tokens have them."""
    widths: tuple[int, ...]
    """Of MLPs."""
    sparsity: tuple[float, ...]
    """The share of an MLP's gate that is zero; 0: as it comes."""
    sources: tuple[int, ...]
    """The layer whose keys and values are read: its own, or an earlier one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    vocab_size: int
    hidden: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    max_positions: int
    tied: bool
    activation: str
    windows: tuple[int | None, ...]
    """Each layer's sliding window: how many tokens a token sees, itself included; ``None``: all before it."""
    chunked: bool = False
    """Whether the windows are chunks of the context: a token sees what is before it in its own."""
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int | None, ...]
    """Each layer's index in ``ropes``; ``None``: its queries and keys are not rotated (NoPE)."""
    unrotated_growth: Growth | None = None
    """By how much the queries of layers without a rotation grow with their position."""
    scale: float
    """The factor on attention scores."""
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """The names of queries, keys and values, or one for all, if the checkpoint has them in one tensor."""
    out: str = "o_proj"
    """The name of attention's output."""
    gated_attention: bool = False
    """Whether attention's output has a gate: ``q_proj`` makes it, beside each head's query."""
    mixers: tuple[Mixer | None, ...] = ()
    """What each layer has in place of attention; ``None``: it has attention. Empty: all have."""
    mixer_eps: float | None = None
    """Of the norms within these, if not ``eps``."""
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    """The names of gate and up projection, or one for both; without a gate the up projection's."""
    down: str = "down_proj"
    mlp: str = "mlp"
    gated: bool = True
    """Whether the MLP has a gate."""
    interleaved: bool = False
    """Whether the pairs that are rotated lie side by side in a head, not half of it apart."""
    head_norm: HeadNorms | None = None
    norms: BlockNorms = BlockNorms()
    final_norm: str = "norm"
    parallel: bool = False
    """Whether the MLP reads what attention reads, not what it wrote: a block then has one norm."""
    layer_norm: bool = False
    """Whether norms subtract the mean, too."""
    norm_bias: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    rounded_scale: bool = False
    """Whether that factor is rounded to the compute dtype, as in training."""
    softcap: float | None = None
    """On attention scores."""
    sinks: bool = False
    """Whether each head has a score that takes weight and has no value (``self_attn.sinks``)."""
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    latent: Latent | None = None
    experts: Experts | None = None
    altup: AltUp | None = None
    predictors: int = 0
    """Layers after the last that predict further tokens (MTP), and are not used."""

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def fused(self) -> bool:
        """Whether one tensor holds what ranks would have to shard separately."""
        return len(self.qkv) == 1 or (self.gated and len(self.gate_up) == 1)


def read(raw: Raw, *, activation: str = "hidden_act", gated: bool = True, **options: Any) -> DecoderConfig:
    """The settings that families have in common, overridden by a family's ``options``.

    Raises ``UnsupportedModel`` if a value is missing, or would be ignored.
    """
    name, known = raw.get(activation) or "silu", ACTIVATIONS if gated else PLAIN_ACTIVATIONS
    if name not in known:
        raise UnsupportedModel(f"{activation} {name!r} is not supported; these are: {', '.join(known)}.")
    if raw.get("use_bidirectional_attention"):
        raise UnsupportedModel("use_bidirectional_attention is not supported: this engine generates text.")
    heads, hidden, layers = (
        integer(raw, "num_attention_heads"),
        integer(raw, "hidden_size"),
        count_layers(raw),
    )
    head_dim = int(raw.get("head_dim") or hidden // heads)
    kv_heads = int(raw.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise UnsupportedModel(
            f"num_attention_heads ({heads}) is no multiple of num_key_value_heads ({kv_heads})."
        )
    rope = read_rope(raw, head_dim)
    common = {
        "vocab_size": integer(raw, "vocab_size"),
        "hidden": hidden,
        "width": integer(raw, "intermediate_size"),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "eps": float(raw.get("rms_norm_eps") or 1e-6),
        "max_positions": max_context(rope),
        "tied": bool(raw.get("tie_word_embeddings", False)),
        "activation": name,
        "gated": gated,
        "windows": (None,) * layers,
        "ropes": (rope,),
        "layer_ropes": (0,) * layers,
        "scale": head_dim**-0.5,
    }
    config = DecoderConfig(**{**common, **options})
    _check_layer_types(raw, config)
    return config


def integer(raw: Raw, key: str) -> int:
    if raw.get(key) is None:
        raise UnsupportedModel(f"config.json lacks {key!r}.")
    value = raw[key]
    if not isinstance(value, int | float) or value != int(value) or not 0 < value < 2**31:
        raise UnsupportedModel(f"config.json has {key!r} {value!r}: an integer above 0 is expected.")
    return int(value)


def count_layers(raw: Raw) -> int:
    layers = integer(raw, "num_hidden_layers")
    if layers > _MAX_LAYERS:
        raise UnsupportedModel(f"config.json has 'num_hidden_layers' {layers}: no model has that many.")
    return layers


def read_rope(raw: Raw, head_dim: int, kind: str | None = None, theta: float | None = None) -> Rope:
    """``kind``: the layer type, where layer types have different rotations. ``theta``: the default base.

    Newer checkpoints have theta and the scaling in ``rope_parameters``, with an entry for each layer type where they
    differ; older ones have ``rope_theta`` and ``rope_scaling``.
    """
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise UnsupportedModel(f"rope_scaling {given!r} is not supported: an object with a rope_type is.")
    given = given.get(kind, given) if kind else given
    if (factor := given.get("factor")) is not None and not float(factor) > 0:
        raise UnsupportedModel(f"rope_scaling.factor is {factor}: a number above 0 is expected.")
    positions = integer(raw, "max_position_embeddings")
    rotary = next(
        (float(part) for at in (given, raw) if (part := at.get("partial_rotary_factor")) is not None), 1.0
    )
    if not 0 < rotary <= 1 or int(head_dim * rotary) < 2 or int(head_dim * rotary) % 2:
        raise UnsupportedModel(
            f"partial_rotary_factor is {rotary:g}: of the {head_dim} dimensions of a head, an even number must turn."
        )
    trained = raw.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
    base = given.get("rope_theta") or theta or raw.get("rope_theta") or 10000.0
    return Rope(int(head_dim * rotary), float(base), positions, int(trained or positions), given)


def max_context(rope: Rope) -> int:
    """The longest context. Older YaRN checkpoints have the original one in ``max_position_embeddings``."""
    if rope.kind != "yarn":
        return rope.positions
    return max(rope.positions, int(rope.original_positions * float(rope.scaling.get("factor") or 1)))


def window_of(raw: Raw) -> int | None:
    """The sliding window. Files have null, 0 or -1 where there is none."""
    if raw.get("sliding_window") in (None, 0, -1):
        return None
    return integer(raw, "sliding_window")


def uniform_windows(raw: Raw) -> tuple[int | None, ...]:
    """For families in which either all layers have a window, or none."""
    return (window_of(raw),) * count_layers(raw)


def typed_windows(raw: Raw, default: list[str]) -> tuple[int | None, ...]:
    """By ``layer_types``, or by ``default`` if there are none."""
    types = layer_types(raw, default)
    window = window_of(raw)
    if window is None and "sliding_attention" in types:
        raise UnsupportedModel("layer_types has 'sliding_attention', but sliding_window is not set.")
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def layer_types(raw: Raw, default: list[str]) -> list[str]:
    types = raw.get("layer_types") or default
    if len(types) != count_layers(raw):
        raise UnsupportedModel(f"layer_types names {len(types)} layers of {count_layers(raw)}.")
    if unknown := set(types) - {"full_attention", "sliding_attention"}:
        raise UnsupportedModel(f"layer_types {', '.join(sorted(unknown))} are not supported.")
    return list(types)


def _check_layer_types(raw: Raw, config: DecoderConfig) -> None:
    """A family that does not read ``layer_types`` accepts them if they match its windows."""
    computed = ["full_attention" if window is None else "sliding_attention" for window in config.windows]
    if layer_types(raw, computed) != computed:
        raise UnsupportedModel("layer_types do not agree with sliding_window in this model family.")
