"""Factors on a layer's inputs, and their inverses on the outputs of what produces these."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.models.config import DecoderConfig
from engine.quantizer.blocks import Tensors


def can_fold(
    tensors: Tensors, block: str, parts: Sequence[str], config: DecoderConfig, *, norms_only: bool
) -> bool:
    """Whether the inputs of the layers ``parts`` can be scaled: not where an activation or a second reader is in
    between."""
    target = _producer(tensors, block, parts[0].rpartition(".")[2], config)
    return target is not None and not (norms_only and target[1] is None)


def tied(factor: Tensor, part: str, config: DecoderConfig) -> Tensor:
    """``factor`` [in] of the inputs of ``part``, alike where several are made of one value: as keys' heads are fewer
    than queries', heads of the output projection's inputs share one."""
    if part.rpartition(".")[2] != config.out or config.heads == config.kv_heads:
        return factor
    heads = factor.view(config.kv_heads, -1, config.head_dim)
    return heads.log().mean(1, keepdim=True).exp().expand_as(heads).flatten()


def fold(tensors: Tensors, block: str, parts: Sequence[str], factor: Tensor, config: DecoderConfig) -> None:
    """Multiplies the inputs of the layers ``parts`` in ``tensors`` by ``factor``, float32 [in], which is ``tied``;
    ``can_fold`` must hold."""
    end = parts[0].rpartition(".")[2]
    target = _producer(tensors, block, end, config)
    if target is None:
        raise ValueError(f"the inputs of {parts[0]} cannot be scaled")
    name, offset = target
    if offset is not None:
        tensors[name] = (tensors[name] + offset) / factor - offset
        shift = f"{name.removesuffix('weight')}bias"
        if shift in tensors:
            tensors[shift] = tensors[shift] / factor
    else:
        made = factor
        if end == config.out:
            made = factor.view(config.kv_heads, -1, config.head_dim)[:, 0].flatten()
        for kind in ("weight", "bias"):
            if (found := tensors.get(f"{name}.{kind}")) is not None:
                # The last outputs: of a fused layer those that are not gated.
                scaled = found.clone()
                scaled[-len(made) :] /= made.view(-1, *[1] * (found.dim() - 1))
                tensors[f"{name}.{kind}"] = scaled
    for part in parts:
        tensors[f"{part}.weight"] = tensors[f"{part}.weight"] * factor


def _producer(
    tensors: Tensors, block: str, end: str, config: DecoderConfig
) -> tuple[str, float | None] | None:
    """The norm's tensor with what is added to it, or the layer whose outputs are the inputs of a layer so named."""
    if end in config.qkv and config.latent:
        # The latent reads it, too.
        return None
    if end in config.qkv or end in config.gate_up:
        part = config.norms.attention if end in config.qkv else config.norms.mlp
        norm = f"{block}.{part}.weight"
        # Where attention and MLP read the same, neither can have it scaled alone.
        return (norm, config.norm_offset) if part and norm in tensors and not config.parallel else None
    name = None
    if end == config.down and config.gated:
        name = f"{block}.{config.mlp}.{config.gate_up[-1]}"
    elif end == config.out and len(config.qkv) == 3 and not config.latent:
        name = f"{block}.self_attn.{config.qkv[-1]}"
    return (name, None) if name and f"{name}.weight" in tensors else None
