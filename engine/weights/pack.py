"""Plain weights into AWQ's and GPTQ's files, rounded to nearest: enough to try the readers on a whole model.

Neither method's own way of choosing the codes, by what activations look like, is here.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Outputs of a word, from its lowest nibble."""


def round_to_nearest(weight: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """``weight`` [out, in] → codes int32 [out, in], zero points int32 and scales float16 [out, in / size]."""
    grouped = weight.float().view(len(weight), -1, size)
    # Zero must be one of the codes, hence within the range.
    least, most = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scale = ((most - least) / 15).clamp(min=1e-6).half()
    zero = (-least / scale).round().clamp(0, 15)
    codes = ((grouped / scale[..., None]).round() + zero[..., None]).clamp(0, 15)
    return codes.view(weight.shape).int(), zero.int(), scale


def awq(codes: Tensor, zero: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """The tensors of a layer, by the end of their name."""

    def words(columns: Tensor) -> Tensor:
        return _words(columns.view(len(columns), -1, 8)[..., list(_AWQ_ORDER)])

    return {
        "qweight": words(codes.t().contiguous()),
        "qzeros": words(zero.t().contiguous()),
        "scales": scale.t().contiguous(),
    }


def gptq(codes: Tensor, zero: Tensor, scale: Tensor, group: Tensor) -> dict[str, Tensor]:
    """As ``awq``; ``codes`` have their inputs in the checkpoint's order, and ``group`` int [in] is theirs."""
    return {
        "qweight": _words(codes.view(len(codes), -1, 8)).t().contiguous(),
        "qzeros": _words(((zero - 1) & 15).t().reshape(zero.shape[1], -1, 8)),
        "scales": scale.t().contiguous(),
        "g_idx": group.int(),
    }


def _words(nibbles: Tensor) -> Tensor:
    """[rows, words, 8] → int32 [rows, words], the first in the lowest bits."""
    word = (nibbles.long() << 4 * torch.arange(8)).sum(-1)
    return torch.where(word >= 2**31, word - 2**32, word).int()


def write(folder: Path, target: Path, method: str, size: int) -> None:
    """The model in ``folder`` with the layers of its blocks as ``method`` (``awq`` or ``gptq``) stores them."""
    for path in folder.iterdir():
        if path.suffix == ".json":
            shutil.copy(path, target / path.name)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": method,
        "bits": 4,
        "group_size": size,
        **({"version": "gemm"} if method == "awq" else {"checkpoint_format": "gptq", "desc_act": False}),
    }
    (target / "config.json").write_text(json.dumps(config))
    tensors: dict[str, Tensor] = {}
    for path in folder.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            if not name.endswith("_proj.weight"):
                tensors[name] = tensor
                continue
            parts = round_to_nearest(tensor, size)
            inputs = torch.arange(tensor.shape[1])
            stored = awq(*parts) if method == "awq" else gptq(*parts, inputs // size)
            layer = name.removesuffix(".weight")
            tensors |= {f"{layer}.{end}": value for end, value in stored.items()}
    save_file(tensors, target / "model.safetensors")
