"""One block's layers, quantized."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.models.config import DecoderConfig
from engine.quantizer.awq import clipped, search_scale
from engine.quantizer.blocks import BlockPass, OpenBlock, Tensors
from engine.quantizer.folding import can_fold, fold, tied
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
        _scale_inputs(tensors, block, recipe, config, models)
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


def _scale_inputs(
    tensors: Tensors, block: OpenBlock, recipe: Recipe, config: DecoderConfig, models: BlockPass
) -> None:
    smooth = recipe.method == "smoothquant"
    for layer in block.layers:
        parts = list(layer.parts)
        if not can_fold(tensors, block.name, parts, config, norms_only=smooth):
            continue
        if smooth:
            weight = torch.cat([tensors[f"{part}.weight"] for part in parts])
            factor = smoothing(weight, layer.largest)
        else:
            factor = _searched(layer, block, recipe, config, models)
        fold(tensors, block.name, parts, factor, config)
        layer.scale_by(1 / factor)


def _searched(
    layer: ObservedLayer, block: OpenBlock, recipe: Recipe, config: DecoderConfig, models: BlockPass
) -> Tensor:
    weights = {f"{part}.weight": block.tensors[f"{part}.weight"] for part in layer.parts}
    wanted = models.outputs(block.layer, layer, block.tensors)
    sizes = _sizes(wanted)

    def error(changed: Tensors) -> float:
        found = models.outputs(block.layer, layer, {**block.tensors, **changed})
        return float(((found - wanted) / sizes).square().sum())

    first = next(iter(layer.parts))
    size = _size(recipe, first, len(layer.largest))
    alike = partial(tied, part=first, config=config)
    return search_scale(weights, layer.magnitude, recipe.bits, size, error, alike)


def _sizes(outputs: Tensor) -> Tensor:
    """Of each token's outputs, float32 [rows, 1]. Errors are told relative to them: those of a text's first token are
    hundreds of times the others' in some layers, and would decide alone."""
    return outputs.norm(dim=1, keepdim=True).clamp_min_(1e-6)


def _layer(
    layer: ObservedLayer, tensors: Tensors, recipe: Recipe, config: DecoderConfig
) -> dict[str, Codes | ChannelWeight]:
    weights = {part: tensors[f"{part}.weight"] for part in layer.parts}
    if recipe.method == "smoothquant":
        return {part: to_int8(weight) for part, weight in weights.items()}
    found: dict[str, Codes | ChannelWeight] = {}
    if recipe.method == "awq":
        sample = layer.sample / _sizes(layer.sample @ torch.cat(list(weights.values())).t())
    for part, weight in weights.items():
        if weight.shape[0] % 8:
            raise UnsupportedModel(f"{part} has {weight.shape[0]} outputs, which are no whole words of 8.")
        size = _size(recipe, part, weight.shape[1])
        if recipe.method == "gptq":
            continue
        if recipe.method == "awq" and part.rpartition(".")[2] not in config.qkv[:2]:
            # Clipped queries and keys would err where attention is sharpest.
            weight = clipped(weight, sample, recipe.bits, size)
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
