"""Decoders of the published layouts, number by number, that share no code with the engine.

GPTQ: AutoGPTQ's and GPTQModel's ``QuantLinear``. AWQ: AutoAWQ's ``WQLinear_GEMM``. INT8: compressed-tensors'
``int-quantized``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Arrays = dict[str, np.ndarray]


def read(folder: Path) -> tuple[Arrays, dict[str, Any]]:
    """Plain weights by name, and the ``quantization_config``."""
    names = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    stored: Arrays = {}
    for file in set(names.values()):
        stored |= load_file(folder / file)
    assert stored.keys() == names.keys()
    settings = json.loads((folder / "config.json").read_text()).get("quantization_config", {})
    decode = {"gptq": gptq, "awq": awq, "compressed-tensors": int8, None: dict}[settings.get("quant_method")]
    return decode(stored) if decode is not gptq else gptq(stored, settings["bits"]), settings


def gptq(stored: Arrays, bits: int) -> Arrays:
    plain = {}
    mask, a_word = 2**bits - 1, 32 // bits
    for name, value in stored.items():
        layer, _, end = name.rpartition(".")
        if end in ("qzeros", "scales", "g_idx"):
            continue
        if end != "qweight":
            plain[name] = value
            continue
        words, zeros = value.view(np.uint32), stored[f"{layer}.qzeros"].view(np.uint32)
        scales, groups = stored[f"{layer}.scales"].astype(np.float32), stored[f"{layer}.g_idx"]
        weight = np.empty((scales.shape[1], len(groups)), np.float32)
        for i, group in enumerate(groups):
            codes = (words[i // a_word] >> np.uint32(bits * (i % a_word))) & np.uint32(mask)
            outputs = np.arange(scales.shape[1])
            zero = (
                zeros[group, outputs // a_word] >> (bits * (outputs % a_word)).astype(np.uint32)
            ) & np.uint32(mask)
            # Without cutting the sum to its bits, as the first readers did.
            weight[:, i] = (codes.astype(np.int64) - (zero.astype(np.int64) + 1)) * scales[group]
        plain[f"{layer}.weight"] = weight
    return plain


def awq(stored: Arrays) -> Arrays:
    plain = {}
    for name, value in stored.items():
        layer, _, end = name.rpartition(".")
        if end in ("qzeros", "scales"):
            continue
        if end != "qweight":
            plain[name] = value
            continue
        scales = stored[f"{layer}.scales"].astype(np.float32)
        zeros = stored[f"{layer}.qzeros"]
        inputs, outputs = len(value), scales.shape[1]
        size = inputs // len(scales)
        weight = np.empty((outputs, inputs), np.float32)
        for output in range(outputs):
            # AutoAWQ packs outputs 0 2 4 6 1 3 5 7 of eight from the lowest nibble on.
            shift = np.uint32(4 * [0, 2, 4, 6, 1, 3, 5, 7].index(output % 8))
            codes = (value.view(np.uint32)[:, output // 8] >> shift) & np.uint32(15)
            zero = (zeros.view(np.uint32)[:, output // 8] >> shift) & np.uint32(15)
            steps = codes.astype(np.int64) - np.repeat(zero.astype(np.int64), size)
            weight[output] = steps * np.repeat(scales[:, output], size)
        plain[f"{layer}.weight"] = weight
    return plain


def int8(stored: Arrays) -> Arrays:
    plain = {}
    for name, value in stored.items():
        if name.endswith(".weight_scale"):
            continue
        scale = stored.get(f"{name}_scale")
        plain[name] = value if scale is None else value.astype(np.float32) * scale
    return plain
