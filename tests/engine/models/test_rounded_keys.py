"""Keys in 16 bits: what is rounded never had a large bias."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from engine.layers import key_smoothing
from engine.layers.key_smoothing import SmoothedRotation
from engine.models.registry import load_model
from tests.engine.models.hub import CPU, Paged
from tests.engine.models.test_families import tokens
from tests.engine.models.test_key_smoothing import rotations, saved


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_with_large_biases_is_nearer_to_itself_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6}
    saved(tmp_path, "Qwen2", 200.0, rope_parameters=rope, head_dim=32)
    exact = Paged(tmp_path).run(tokens(), [17])
    paged = Paged(tmp_path, dtype)
    assert all(isinstance(one, SmoothedRotation) for one in rotations(paged.model))
    after = paged.run(tokens(), [17])
    monkeypatch.setattr(key_smoothing, "_SPREAD", math.inf)
    before = Paged(tmp_path, dtype).run(tokens(), [17])
    assert (before - exact).abs().mean() > 2 * (after - exact).abs().mean()


def test_float32_stays_as_it_is(tmp_path: Path) -> None:
    saved(tmp_path, "Qwen2", 200.0)
    model = load_model(tmp_path, CPU, torch.float32)
    assert not any(isinstance(one, SmoothedRotation) for one in rotations(model))
