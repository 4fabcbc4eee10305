"""Builds what layers have in place of attention, by the names of their tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.layers.causal_conv import CausalConv
from engine.layers.gated_delta import GatedDeltaNet
from engine.layers.linear import Linear
from engine.layers.mamba2 import Mamba2
from engine.layers.product import Product
from engine.layers.short_conv import ShortConv
from engine.models.builder import LayerBuilder
from engine.models.config import DecoderConfig
from engine.models.mixers import GatedDeltaMixer, Mamba2Mixer, Mixer, ShortConvMixer


def mixer(config: DecoderConfig, spec: Mixer, build: LayerBuilder, name: str) -> Callable[..., Tensor]:
    """``name``: the layer's."""
    match spec:
        case ShortConvMixer():
            return _short_conv(config, spec, build, f"{name}.conv")
        case GatedDeltaMixer():
            return _gated_delta(config, spec, build, f"{name}.linear_attn")
        case Mamba2Mixer():
            return _mamba2(config, spec, build, f"{name}.mamba")


def _short_conv(config: DecoderConfig, spec: ShortConvMixer, build: LayerBuilder, name: str) -> ShortConv:
    hidden, channels, bias = config.hidden, spec.channels, spec.bias
    return ShortConv(
        build.linear({f"{name}.in_proj": 3 * channels}, hidden, bias=bias, split="out"),
        _conv(build, f"{name}.conv", channels, spec.kernel, bias=bias),
        build.linear({f"{name}.out_proj": hidden}, channels, bias=bias, split="in"),
    )


def _gated_delta(
    config: DecoderConfig, spec: GatedDeltaMixer, build: LayerBuilder, name: str
) -> GatedDeltaNet:
    weights, hidden, heads = build.weights, config.hidden, spec.value_heads
    keys, values = spec.key_heads * spec.key_dim, heads * spec.value_dim
    if spec.joint:
        part = f"{name}.in_proj_qkvz"
        shared = heads // spec.key_heads
        order = _sorted(spec.key_heads, (spec.key_dim, spec.key_dim, *2 * (shared * spec.value_dim,)))
        into = build.linear({part: 2 * (keys + values)}, hidden, split="out", rows={part: order})
        rates = weights.take(f"{name}.in_proj_ba.weight", (2 * heads, hidden))
        rates = rates[_sorted(spec.key_heads, (shared, shared)).to(rates.device)]
    else:
        parts = {f"{name}.in_proj_qkv": 2 * keys + values, f"{name}.in_proj_z": values}
        into = build.linear(parts, hidden, split="out")
        rates = torch.cat([weights.take(f"{name}.in_proj_{part}.weight", (heads, hidden)) for part in "ba"])
    return GatedDeltaNet(
        into,
        _rates(rates, build),
        _conv(build, f"{name}.conv1d", spec.channels, spec.kernel),
        build.linear({f"{name}.out_proj": hidden}, values, split="in"),
        key_heads=spec.key_heads,
        key_dim=spec.key_dim,
        value_heads=heads,
        value_dim=spec.value_dim,
        decay=-weights.exact(f"{name}.A_log", (heads,)).float().exp(),
        rate_bias=weights.exact(f"{name}.dt_bias", (heads,)).float(),
        norm=weights.take(f"{name}.norm.weight", (spec.value_dim,)),
        eps=config.eps,
        invariant=build.invariant,
    )


def _mamba2(config: DecoderConfig, spec: Mamba2Mixer, build: LayerBuilder, name: str) -> Mamba2:
    weights, heads, inner = build.weights, spec.heads, spec.heads * spec.head_dim
    made = {f"{name}.in_proj": inner + spec.channels + heads}
    return Mamba2(
        build.linear(made, config.hidden, bias=spec.bias, split="out"),
        _conv(build, f"{name}.conv1d", spec.channels, spec.kernel, bias=spec.conv_bias),
        build.linear({f"{name}.out_proj": config.hidden}, inner, bias=spec.bias, split="in"),
        heads=heads,
        head_dim=spec.head_dim,
        groups=spec.groups,
        state=spec.size,
        decay=-weights.exact(f"{name}.A_log", (heads,)).float().exp(),
        rate_bias=weights.exact(f"{name}.dt_bias", (heads,)).float(),
        skip=weights.exact(f"{name}.D", (heads,)).float(),
        norm=weights.take(f"{name}.norm.weight", (inner,)),
        eps=config.mixer_eps or config.eps,
        invariant=build.invariant,
    )


def _rates(weight: Tensor, build: LayerBuilder) -> Product:
    """They are few, and sensitive to rounding, as everything after depends on them: they are never quantized."""
    return Linear(weight, invariant=build.invariant)


def _conv(build: LayerBuilder, name: str, channels: int, kernel: int, *, bias: bool = False) -> CausalConv:
    weights = build.weights
    return CausalConv(
        weights.take(f"{name}.weight", (channels, 1, kernel))[:, 0],
        weights.take(f"{name}.bias", (channels,)) if bias else None,
    )


def _sorted(groups: int, sizes: tuple[int, ...]) -> Tensor:
    """The order of rows in which parts of ``sizes``, which each group has side by side, follow one another whole."""
    rows = torch.arange(groups * sum(sizes)).view(groups, -1)
    return torch.cat([part.flatten() for part in rows.split(sizes, 1)])
