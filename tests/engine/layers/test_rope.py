from __future__ import annotations

import math

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.layers.rope import RotaryTable, frequencies


def test_the_table_has_the_angles_of_each_position() -> None:
    speeds = frequencies(8, 10000.0, {})
    assert speeds.tolist() == pytest.approx([1, 0.1, 0.01, 0.001])
    cos, sin = RotaryTable(speeds, 20, torch.device("cpu"), torch.float32)(torch.tensor([3, 19]))
    torch.testing.assert_close(cos[0], (3 * speeds).cos())
    torch.testing.assert_close(sin[1], (19 * speeds).sin())


def test_linear_scaling_slows_all() -> None:
    slowed = frequencies(8, 10000.0, {"type": "linear", "factor": 4.0})
    torch.testing.assert_close(slowed * 4, frequencies(8, 10000.0, {}))


def test_llama3_scaling_keeps_the_fast_and_slows_the_slow() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain, scaled = frequencies(128, 500000.0, {}), frequencies(128, 500000.0, scaling)
    wavelength = 2 * math.pi / plain
    fast, slow = wavelength < 8192 / 4, wavelength > 8192
    torch.testing.assert_close(scaled[fast], plain[fast])
    torch.testing.assert_close(scaled[slow], plain[slow] / 8)
    between = ~(fast | slow)
    assert between.any()
    assert bool(((scaled < plain) & (scaled > plain / 8))[between].all())


def test_an_unknown_scaling_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="'yarn'"):
        frequencies(8, 10000.0, {"rope_type": "yarn"})
