"""The folder that is written: a file of tensors a block, with the model's configuration and tokenizer."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.errors import StartupError, UnsupportedModel
from engine.quantizer.blocks import Tensors
from engine.quantizer.grid import Codes
from engine.quantizer.recipe import Recipe
from engine.weights import pack
from engine.weights.quantize import ChannelWeight

_COPIED = ("*.json", "*.jinja", "tokenizer.model")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write to, which becomes ``target`` once all is written. Raises ``StartupError`` if that holds
    something already, or cannot be made."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StartupError(f"--out {target} is there already: name a new or empty folder.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise StartupError(f"--out {target} cannot be written: {error}.") from error
    try:
        yield scratch
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class CheckpointWriter:
    def __init__(
        self, source: Path, target: Path, config: Mapping[str, Any], recipe: Recipe, dtype: torch.dtype
    ) -> None:
        for pattern in _COPIED:
            for path in source.glob(pattern):
                if not path.name.endswith(".index.json"):
                    shutil.copyfile(path, target / path.name)
        self._target = target
        self._config = dict(config)
        self._recipe = recipe
        self._dtype = dtype
        self._files: dict[str, str] = {}
        self._bytes = 0

    def write(self, tensors: Tensors, codes: Mapping[str, Codes | ChannelWeight]) -> None:
        """A file of ``tensors``; those of ``codes``, by layer, are stored in the method's layout."""
        stored: Tensors = {}
        for name, tensor in tensors.items():
            layer = name.removesuffix(".weight")
            if name.endswith(".weight") and (coded := codes.get(layer)) is not None:
                stored |= {f"{layer}.{end}": part for end, part in self._layout(coded).items()}
            else:
                stored[name] = self._narrowed(name, tensor)
        file = f"model-{len(set(self._files.values())) + 1:05}.safetensors"
        save_file(
            {name: tensor.contiguous() for name, tensor in stored.items()},
            self._target / file,
            {"format": "pt"},
        )
        self._files |= dict.fromkeys(stored, file)
        self._bytes += sum(tensor.nbytes for tensor in stored.values())

    def finish(self) -> None:
        index = {"metadata": {"total_size": self._bytes}, "weight_map": self._files}
        (self._target / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
        self._config.pop("torch_dtype", None)
        self._config["dtype"] = str(self._dtype).removeprefix("torch.")
        if settings := _settings(self._recipe):
            self._config["quantization_config"] = settings
        (self._target / "config.json").write_text(json.dumps(self._config, indent=1, ensure_ascii=False))

    def _layout(self, coded: Codes | ChannelWeight) -> Tensors:
        if isinstance(coded, ChannelWeight):
            return {"weight": coded.codes, "weight_scale": coded.scale[:, None]}
        codes = coded.codes.int()
        if self._recipe.method == "awq":
            return pack.awq(codes, coded.zero, coded.scale)
        return pack.gptq(codes, coded.zero, coded.scale, coded.group, self._recipe.bits)

    def _narrowed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        narrow = tensor.to(self._dtype)
        if not bool(narrow.isfinite().all()):
            raise UnsupportedModel(f"{name} has values beyond {self._dtype}: give --dtype bfloat16.")
        return narrow


def _settings(recipe: Recipe) -> dict[str, Any]:
    """The ``quantization_config`` by which AutoGPTQ, AutoAWQ and llm-compressor describe what they write."""
    if recipe.method == "plain":
        return {}
    if recipe.method == "smoothquant":
        common = {"num_bits": 8, "type": "int", "symmetric": True}
        group = {
            "targets": ["Linear"],
            "weights": {**common, "strategy": "channel", "dynamic": False},
            "input_activations": {**common, "strategy": "token", "dynamic": True},
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
        }
    common = {"bits": recipe.bits, "group_size": recipe.size}
    if recipe.method == "awq":
        return {
            "quant_method": "awq",
            **common,
            "zero_point": True,
            "version": "gemm",
            "modules_to_not_convert": None,
        }
    return {
        "quant_method": "gptq",
        **common,
        "sym": recipe.symmetric,
        "desc_act": recipe.method == "gptq",
        "static_groups": False,
        "lm_head": False,
        "checkpoint_format": "gptq",
    }
