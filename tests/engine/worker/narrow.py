"""A model that says nearly nothing but a few tokens, so that random heads are often right."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.engine.tiny import SHAPE

SAID = [40, 42, 44, 46]
"""Nearly all that it says."""


def write_narrow(folder: Path, model: Path) -> Path:
    """``folder``, made of ``model``, which has the tiny shape."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    said = torch.full((SHAPE["vocab_size"], 1), 0.05)
    said[SAID] = 3
    weights["lm_head.weight"] = weights["lm_head.weight"] * said
    save_file(weights, folder / "model.safetensors")
    return folder
