"""The parts of a decoder, as its configuration says: norms, attention, MLPs and mixtures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from engine.layers.attention import PagedAttention
from engine.layers.key_smoothing import smoothed
from engine.layers.latent_attention import HeadProducts, LatentAttention
from engine.layers.mlp import PLAIN_ACTIVATIONS, GatedMLP, PlainMLP, Xielu
from engine.layers.moe import Choice, MixtureMLP, SharedMixture
from engine.layers.norm import HeadNorm, JointHeadNorm, LayerNorm, RMSNorm, RotatedHeadNorm
from engine.layers.product import Product
from engine.layers.rope import ScaledRotation
from engine.layers.scattered_mixture import ScatteredMixture
from engine.models.builder import LayerBuilder
from engine.models.config import DecoderConfig, Experts, Latent
from engine.weights.weight_loader import WeightLoader
from kernels.rope import rope as rope_kernel
from kernels.route import CorrectedRouting, GroupRouting, SigmoidRouting, SparseMixer, TopSigmoid, route

Norm = RMSNorm | LayerNorm


def norm(config: DecoderConfig, weights: WeightLoader, name: str) -> Norm:
    weight = weights.take(f"{name}.weight", (config.hidden,))
    if config.layer_norm:
        bias = weights.take(f"{name}.bias", (config.hidden,)) if config.norm_bias else None
        return LayerNorm(weight, config.eps, bias=bias)
    return RMSNorm(weight, config.eps, offset=config.norm_offset)


def mlp(config: DecoderConfig, build: LayerBuilder, name: str) -> Product:
    """Without experts."""
    if config.gated:
        return gated(config, build, name, config.width, config.gate_up, config.down, bias=config.mlp_bias)
    up = {f"{name}.{part}": config.width for part in config.gate_up}
    return PlainMLP(
        build.linear(up, config.hidden, bias=config.mlp_bias, split="out"),
        build.linear(
            {f"{name}.{config.down}": config.hidden}, config.width, bias=config.mlp_bias, split="in"
        ),
        PLAIN_ACTIVATIONS[config.activation] or _xielu(build.weights, f"{name}.act_fn"),
    )


def _xielu(weights: WeightLoader, name: str) -> Xielu:
    above, below = (weights.take(f"{name}.alpha_{side}", (1,)).item() for side in "pn")
    # The checkpoint has these in a shape of their own: no dimension at all.
    beta, eps = (weights.take(f"{name}.{part}", ()).item() for part in ("beta", "eps"))
    return Xielu(above, below, beta, eps)


def gated(
    config: DecoderConfig,
    build: LayerBuilder,
    name: str,
    width: int,
    gate_up: Sequence[str],
    down: str,
    *,
    bias: bool = False,
    activation: Callable[[Tensor], Tensor] | None = None,
    whole: bool = False,
) -> GatedMLP:
    """``gate_up``: the names of the gate's and the other layer, or one for both. ``whole``: this rank has all of it."""
    parts = {f"{name}.{part}": 2 * width // len(gate_up) for part in gate_up}
    return GatedMLP(
        build.linear(parts, config.hidden, bias=bias, split=None if whole else "out"),
        build.linear({f"{name}.{down}": config.hidden}, width, bias=bias, split=None if whole else "in"),
        activation or config.activation,
    )


def attention(
    config: DecoderConfig, build: LayerBuilder, name: str, layer: int
) -> PagedAttention | LatentAttention:
    if config.latent is not None:
        return _latent_attention(config, config.latent, build, name)
    tp = build.weights.tp
    heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
    # This rank's heads.
    copies = tp.copies(kv_heads)
    local_heads, local_kv_heads = tp.divide(heads, "heads"), tp.sharing(copies).divide(kv_heads, "KV heads")
    queries = heads * (1 + config.gated_attention)
    counts = (queries, kv_heads, kv_heads) if len(config.qkv) > 1 else (heads + 2 * kv_heads,)
    parts = {f"{name}.{part}": count * dim for part, count in zip(config.qkv, counts, strict=True)}
    same = dict.fromkeys(list(parts)[1:], copies) if copies > 1 else None
    rows = None
    rope = config.ropes[config.layer_ropes[layer] or 0]
    if config.interleaved and config.layer_ropes[layer] is not None:
        # Queries and keys are turned in halves; that their rows have changed places alike changes no score.
        halves = _halves(dim, rope.dim)
        rows = {
            part: (torch.arange(count)[:, None] * dim + halves).flatten()
            for part, count in zip(parts, (local_heads, local_kv_heads), strict=False)
        }
    if config.gated_attention:
        # All gates before all queries: queries, keys and values then follow one another.
        pairs = torch.arange(2 * local_heads * dim).view(local_heads, 2, dim)
        rows = {f"{name}.{config.qkv[0]}": torch.cat([pairs[:, 1].flatten(), pairs[:, 0].flatten()])}
    rotate = _rotation(config, build.weights, name, local_heads, local_kv_heads, layer)
    turned = config.layer_ropes[layer] is not None
    smooth = None
    key = f"{name}.{config.qkv[1]}" if len(config.qkv) > 1 else None
    if build.keys and key and config.qkv_bias and config.head_norm is None:
        bias = build.weights.bias(key, parts[key], "out", copies)
        if rows and key in rows:
            bias = bias[rows[key].to(bias.device)]
        bias = bias.view(local_kv_heads, dim)
        shifts = config.softcap is None and not config.sinks
        smooth = smoothed(bias, local_heads, rope if turned else None, build.keys, shifts=shifts)
    if smooth is not None:
        rotate = smooth
    sinks = None
    if config.sinks:
        sinks = tp.shard(build.weights.exact(f"{name}.sinks", (heads,)), 0, "heads").float()
    if rope.query_growth or (config.unrotated_growth and not turned):
        rotate = ScaledRotation(rotate, local_heads)
    return PagedAttention(
        build.linear(
            parts,
            config.hidden,
            bias=config.qkv_bias,
            split="out",
            rows=rows,
            copies=same,
            unbiased=key if smooth else None,
        ),
        build.linear({f"{name}.{config.out}": config.hidden}, heads * dim, bias=config.out_bias, split="in"),
        local_heads,
        local_kv_heads,
        dim,
        scale=config.scale,
        rotate=rotate,
        # Chunks are sequences of their own.
        window=None if config.chunked else config.windows[layer],
        softcap=config.softcap,
        sinks=sinks,
        gated=config.gated_attention,
        invariant=build.invariant,
    )


def _latent_attention(
    config: DecoderConfig, latent: Latent, build: LayerBuilder, name: str
) -> LatentAttention:
    weights, tp = build.weights, build.weights.tp
    rank, rotary, heads = latent.rank, config.head_dim, tp.divide(config.heads, "heads")
    size = latent.plain + rotary
    turned = _halves(rotary, rotary) if config.interleaved else torch.arange(rotary)
    # What is turned comes first in a head here, and last in checkpoints.
    order = torch.cat([turned + latent.plain, torch.arange(latent.plain)])
    low = {f"{name}.kv_a_proj_with_mqa": rank + rotary}
    rows = {f"{name}.kv_a_proj_with_mqa": torch.cat([torch.arange(rank), turned + rank])}
    query, inputs, query_norm = f"{name}.q_proj", config.hidden, None
    if latent.query_rank is not None:
        query, inputs = f"{name}.q_b_proj", latent.query_rank
        low = {f"{name}.q_a_proj": inputs, **low}
        query_norm = RMSNorm(weights.take(f"{name}.q_a_layernorm.weight", (inputs,)), latent.eps)
    # Plain, however it is stored: it multiplies queries and what they attend to, by heads, and never the latents.
    up = weights.take(f"{name}.kv_b_proj.weight", (config.heads * (latent.plain + latent.value), rank))
    up = tp.shard(up, 0, "heads").unflatten(0, (heads, -1))
    return LatentAttention(
        build.linear(low, config.hidden, bias=latent.bias, split="each", rows=rows),
        build.linear(
            {query: config.heads * size},
            inputs,
            split="out",
            rows={query: (torch.arange(heads)[:, None] * size + order).flatten()},
        ),
        query_norm,
        RMSNorm(weights.take(f"{name}.kv_a_layernorm.weight", (rank,)), latent.eps),
        HeadProducts(up[:, : latent.plain].mT, invariant=build.invariant),
        HeadProducts(up[:, latent.plain :], invariant=build.invariant),
        build.linear(
            {f"{name}.o_proj": config.hidden}, config.heads * latent.value, bias=config.out_bias, split="in"
        ),
        rank=rank,
        rotary=rotary,
        scale=config.scale,
    )


def _halves(dim: int, rotary: int) -> Tensor:
    """The order of a head's dimensions in which pairs that lay side by side lie half the rotary dimensions apart."""
    return torch.cat([torch.arange(0, rotary, 2), torch.arange(1, rotary, 2), torch.arange(rotary, dim)])


def _rotation(
    config: DecoderConfig, weights: WeightLoader, name: str, heads: int, kv_heads: int, layer: int
) -> Callable[..., Tensor]:
    """``heads`` and ``kv_heads``: this rank's."""
    norms = config.head_norm
    if norms is None or not (norms.weights or config.layer_ropes[layer] is not None):
        return rope_kernel
    names = (f"{name}.{norms.query}.weight", f"{name}.{norms.key}.weight")
    if norms.joint:
        sizes = (heads * config.head_dim, kv_heads * config.head_dim)
        query, key = (weights.take(part, (size,)) for part, size in zip(names, sizes, strict=True))
        return JointHeadNorm(query, key, heads, config.eps)
    if norms.weights:
        query, key = (weights.take(part, (config.head_dim,)) for part in names)
    else:
        query = key = torch.ones(config.head_dim, dtype=weights.dtype, device=weights.device)
    kind = RotatedHeadNorm if norms.rotated else HeadNorm
    return kind(query, key, heads, kv_heads, config.eps, config.norm_offset)


def mixture(config: DecoderConfig, experts: Experts, build: LayerBuilder, name: str) -> Product:
    weights, name = build.weights, f"{name}.{experts.name}"
    # The router is small, and sensitive to rounding: it is never quantized.
    take = weights.exact if experts.exact_router else weights.take
    router = take(f"{name}.{experts.router}.weight", (experts.count, config.hidden))
    choose: Choice = route
    match experts.routing:
        case SparseMixer() | GroupRouting() | TopSigmoid():
            choose = experts.routing
        case SigmoidRouting() | CorrectedRouting():
            shape = (1, experts.count) if experts.bias_rows else (experts.count,)
            bias = torch.zeros(shape, device=weights.device)
            if experts.bias:
                bias = weights.exact(f"{name}.{experts.bias}", shape)
            choose = partial(_choose, experts.routing, bias.flatten().float())
    if experts.bias or experts.exact_router:
        # Scores and bias are in float32, as in training: differences between experts are small.
        router = router.float()
    divided, tp = build.part.experts and weights.tp.size > 1, weights.tp
    own = range(experts.count)
    if divided:
        each = tp.divide(experts.count, "experts")
        own = range(tp.rank * each, (tp.rank + 1) * each)
        weights.ignore_others(f"{name}.experts.", own)
    mlps = (
        gated(
            config,
            build,
            f"{name}.experts.{i}",
            experts.width,
            experts.gate_up,
            experts.down,
            bias=experts.biases,
            activation=experts.activation,
            whole=divided,
        )
        for i in own
    )
    router_bias = None
    if experts.router_bias:
        router_bias = take(f"{name}.{experts.router}.bias", (experts.count,)).to(router.dtype)
    kind = partial(ScatteredMixture, tp=tp) if divided else MixtureMLP
    routed: Product = kind(
        router,
        mlps,
        experts.top_k,
        experts.normalise,
        choose=choose,
        router_bias=router_bias,
        scaled_inputs=experts.scaled_inputs,
        invariant=build.invariant,
    )
    if not experts.shared:
        return routed
    shared_name = f"{name}.{experts.shared_name}"
    shared = gated(
        config, build, shared_name, experts.shared, experts.gate_up, experts.down, bias=config.mlp_bias
    )
    gate = weights.take(f"{shared_name}_gate.weight", (1, config.hidden)) if experts.shared_gate else None
    return SharedMixture(routed, shared, gate, invariant=build.invariant)


def _choose(
    routing: SigmoidRouting | CorrectedRouting, bias: Tensor, scores: Tensor, top_k: int, normalise: bool
) -> tuple[Tensor, Tensor]:
    return routing(scores, bias, top_k, normalise)
