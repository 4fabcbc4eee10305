"""One block's layers, quantized."""

from __future__ import annotations

import torch

from engine.errors import UnsupportedModel
from engine.models.config import DecoderConfig
from engine.quantizer.awq import clipped, search_scale
from engine.quantizer.blocks import BlockPass, OpenBlock, Tensors
from engine.quantizer.folding import fold
from engine.quantizer.gptq import gptq
from engine.quantizer.grid import Codes, rounded
from engine.quantizer.inputs import ObservedLayer
from engine.quantizer.recipe import Recipe
from engine.quantizer.smoothquant import smoothing
from engine.weights.quantize import ChannelWeight, to_int8

_SAME = 1e-3
"""By how much a block's outputs may change when factors go from one of its tensors to another."""


def quantized(
    block: OpenBlock, recipe: Recipe, config: DecoderConfig, models: BlockPass
) -> tuple[Tensors, dict[str, Codes | ChannelWeight]]:
    """The block's tensors as they are computed with, and the codes of its layers by name.

    Raises ``UnsupportedModel``.
    """
    tensors = dict(block.tensors)
    if recipe.method in ("awq", "smoothquant"):
        _scale_inputs(tensors, block, recipe, config)
        if models.deviation(block.layer, block.tensors, tensors) > _SAME:
            raise UnsupportedModel(
                f"{block.name} computes something else once its inputs are scaled, as --method {recipe.method} does: "
                "this family is wired in another way. Take --method gptq."
            )
    codes: dict[str, Codes | ChannelWeight] = {}
    for layer in block.layers:
        codes |= _layer(layer, tensors, recipe, config)
    for name, stored in codes.items():
        tensors[f"{name}.weight"] = stored.weight()
    return tensors, codes


def _scale_inputs(tensors: Tensors, block: OpenBlock, recipe: Recipe, config: DecoderConfig) -> None:
    for layer in block.layers:
        parts = list(layer.parts)
        weight = torch.cat([tensors[f"{part}.weight"] for part in parts])
        smooth = recipe.method == "smoothquant"
        if smooth:
            factor = smoothing(weight, layer.largest)
        else:
            size = _size(recipe, parts[0], weight.shape[1])
            factor = search_scale(weight, layer.sample, layer.magnitude, recipe.bits, size)
        if fold(tensors, block.name, parts, factor, config, norms_only=smooth):
            layer.scale_by(1 / factor)


def _layer(
    layer: ObservedLayer, tensors: Tensors, recipe: Recipe, config: DecoderConfig
) -> dict[str, Codes | ChannelWeight]:
    weights = {part: tensors[f"{part}.weight"] for part in layer.parts}
    if recipe.method == "smoothquant":
        return {part: to_int8(weight) for part, weight in weights.items()}
    found: dict[str, Codes | ChannelWeight] = {}
    for part, weight in weights.items():
        if weight.shape[0] % 8:
            raise UnsupportedModel(f"{part} has {weight.shape[0]} outputs, which are no whole words of 8.")
        size = _size(recipe, part, weight.shape[1])
        if recipe.method == "gptq":
            continue
        if recipe.method == "awq" and part.rpartition(".")[2] not in config.qkv[:2]:
            # Clipped queries and keys would err where attention is sharpest.
            weight = clipped(weight, layer.sample, recipe.bits, size)
        found[part] = rounded(weight, recipe.bits, size, recipe.symmetric)
    if recipe.method == "gptq":
        # What has one input has one Hessian, and one order of inputs.
        assert layer.hessian is not None, "asked for"
        codes = gptq(torch.cat(list(weights.values())), layer.hessian, recipe.bits, size, recipe.symmetric)
        start = 0
        for part, weight in weights.items():
            found[part] = codes.rows(start, start + len(weight))
            start += len(weight)
    return found


def _size(recipe: Recipe, name: str, in_features: int) -> int:
    size = in_features if recipe.size == -1 else recipe.size
    if in_features % size or in_features % 32:
        raise UnsupportedModel(
            f"{name} has {in_features} inputs, which are no whole groups of {size}: choose another --group-size."
        )
    return size
