"""Factors on a layer's inputs, and their inverses on the outputs of what produces these."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.models.config import DecoderConfig
from engine.quantizer.blocks import Tensors


def fold(
    tensors: Tensors,
    block: str,
    parts: Sequence[str],
    factor: Tensor,
    config: DecoderConfig,
    *,
    norms_only: bool,
) -> bool:
    """Multiplies the inputs of the layers ``parts`` in ``tensors`` by ``factor``, float32 [in]; whether it could.

    It cannot where an activation or a second reader is in between, or where several of the output projection's inputs
    are made of one value, as keys' heads are fewer than queries'.
    """
    target = _producer(tensors, block, parts[0].rpartition(".")[2], config)
    if target is None or (norms_only and target[1] is None):
        return False
    name, offset = target
    if offset is not None:
        tensors[name] = (tensors[name] + offset) / factor - offset
        shift = f"{name.removesuffix('weight')}bias"
        if shift in tensors:
            tensors[shift] = tensors[shift] / factor
    else:
        for end in ("weight", "bias"):
            if (found := tensors.get(f"{name}.{end}")) is not None:
                # The last outputs: of a fused layer those that are not gated.
                scaled = found.clone()
                scaled[-len(factor) :] /= factor.view(-1, *[1] * (found.dim() - 1))
                tensors[f"{name}.{end}"] = scaled
    for part in parts:
        tensors[f"{part}.weight"] = tensors[f"{part}.weight"] * factor
    return True


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
    elif end == "o_proj" and config.heads == config.kv_heads and len(config.qkv) == 3:
        name = f"{block}.self_attn.{config.qkv[-1]}"
    return (name, None) if name and f"{name}.weight" in tensors else None
