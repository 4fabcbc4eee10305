"""``python -m engine quantize``: a model's plain weights into a quantized checkpoint."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from engine.errors import StartupError, UnsupportedModel
from engine.models.registry import FAMILIES, read_config, read_family
from engine.quantizer import calibration
from engine.quantizer.blocks import BlockPass
from engine.quantizer.checkpoint import CheckpointWriter, new_folder
from engine.quantizer.layers import quantized
from engine.quantizer.recipe import CALIBRATED, Recipe, checked
from engine.weights.safetensors import SafetensorsReader
from engine.weights.source import gguf_file, locate


def run(options: dict[str, Any]) -> int:
    """Raises ``StartupError``."""
    recipe = checked(options["method"], options["bits"], options["group_size"], options["symmetric"])
    length, tokens = options["length"], options["tokens"]
    if length < 2 or tokens < length:
        raise StartupError("--length must be at least 2, and --tokens at least --length.")
    folder = locate(options["model"])
    texts: list[list[int]] = []
    if recipe.method in CALIBRATED:
        if options["calibration"] is None:
            raise StartupError(
                f"--method {recipe.method} looks at activations: give --calibration texts.jsonl."
            )
        texts = calibration.read(options["calibration"], folder / "tokenizer.json", length, tokens)
    dtype = getattr(torch, options["dtype"])
    with new_folder(options["out"]) as target:
        quantize(folder, target, recipe, texts, dtype=dtype, report=_report)
    return 0


@torch.inference_mode()
def quantize(
    folder: Path,
    target: Path,
    recipe: Recipe,
    texts: list[list[int]],
    *,
    dtype: torch.dtype = torch.float16,
    report: Any = None,
) -> None:
    """``dtype``: of what stays plain. Raises ``StartupError``."""
    raw = read_config(folder)
    family = next((name for name in raw.get("architectures") or [] if name in FAMILIES), None)
    if family is None:
        raise UnsupportedModel(f"The architecture {raw.get('architectures')} is not supported.")
    if raw.get("quantization_config"):
        raise UnsupportedModel("The weights are quantized already: take the plain checkpoint.")
    config = read_family(family, raw)
    if config.altup:
        raise UnsupportedModel(
            f"{family} is not quantized into a checkpoint yet: serve it with --quantization."
        )
    if config.experts and config.experts.stacked:
        raise UnsupportedModel(
            f"{family} has all experts of a layer in one tensor, which is not written yet: serve it with "
            "--quantization."
        )
    checkpoint = _reader(folder)
    writer = CheckpointWriter(folder, target, raw, recipe, dtype)
    models = BlockPass(config, checkpoint, texts)
    writer.write(models.trunk, {})
    models.trunk.clear()
    began = time.monotonic()
    for block in models.blocks(hessian=recipe.method == "gptq"):
        tensors, codes = (
            (block.tensors, {}) if recipe.method == "plain" else quantized(block, recipe, config, models)
        )
        writer.write(tensors, codes)
        block.advance(tensors)
        if report:
            report(block.layer + 1, config.layers, time.monotonic() - began)
    writer.finish()


def _reader(folder: Path) -> Any:
    cpu = torch.device("cpu")
    if file := gguf_file(folder):
        # Imported lazily: only GGUF needs it.
        from engine.weights.gguf_checkpoint import GgufCheckpoint

        return GgufCheckpoint(file, cpu, torch.float32)
    return SafetensorsReader(folder, cpu, torch.float32)


def _report(done: int, layers: int, seconds: float) -> None:
    sys.stderr.write(f"block {done} of {layers}, {seconds:.0f} s\n")
    sys.stderr.flush()
