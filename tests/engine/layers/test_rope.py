from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.layers.rope import Rope, RotaryTable


def rope(dim: int, theta: float, positions: int = 64, trained: int | None = None, **scaling: Any) -> Rope:
    return Rope(dim, theta, positions, trained or positions, scaling)


def test_the_table_has_the_angles_of_each_position_twice_over() -> None:
    turning = rope(8, 10000.0)
    speeds = turning.frequencies(64)
    assert speeds.tolist() == pytest.approx([1, 0.1, 0.01, 0.001])
    cos, sin = RotaryTable(turning, 20, torch.device("cpu"), torch.float32)(torch.tensor([3, 19]))
    assert cos.shape == sin.shape == (2, 1, 8)
    torch.testing.assert_close(cos[0, 0], (3 * speeds).cos().repeat(2))
    torch.testing.assert_close(sin[1, 0], (19 * speeds).sin().repeat(2))


def test_linear_scaling_slows_all() -> None:
    slowed = rope(8, 10000.0, type="linear", factor=4.0).frequencies(64)
    torch.testing.assert_close(slowed * 4, rope(8, 10000.0).frequencies(64))


def test_llama3_scaling_keeps_the_fast_and_slows_the_slow() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    plain = rope(128, 500000.0).frequencies(64)
    scaled = rope(128, 500000.0, 131072, 8192, **scaling).frequencies(64)
    wavelength = 2 * math.pi / plain
    fast, slow = wavelength < 8192 / 4, wavelength > 8192
    torch.testing.assert_close(scaled[fast], plain[fast])
    torch.testing.assert_close(scaled[slow], plain[slow] / 8)
    between = ~(fast | slow)
    assert between.any()
    assert bool(((scaled < plain) & (scaled > plain / 8))[between].all())


def test_yarn_keeps_the_fast_slows_the_slow_and_lengthens() -> None:
    plain = rope(64, 10000.0).frequencies(64)
    yarn = rope(64, 10000.0, 8192, 2048, rope_type="yarn", factor=4.0)
    torch.testing.assert_close(yarn.frequencies(64)[0], plain[0])
    torch.testing.assert_close(yarn.frequencies(64)[-1], plain[-1] / 4)
    assert yarn.attention_scaling() == pytest.approx(0.1 * math.log(4) + 1)
    assert rope(64, 1e4, 8192, 2048, rope_type="yarn", attention_factor=0.5).attention_scaling() == 0.5


def test_longrope_has_factors_for_short_and_for_long_contexts() -> None:
    scaling = {"short_factor": [1.0, 1.0], "long_factor": [2.0, 4.0]}
    plain = rope(4, 100.0).frequencies(64)
    for name in ("longrope", "su", "yarn"):
        turning = rope(4, 100.0, 64, 16, type=name, **scaling)
        torch.testing.assert_close(turning.frequencies(16), plain)
        torch.testing.assert_close(turning.frequencies(17), plain / torch.tensor([2.0, 4.0]))
        assert turning.attention_scaling() == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))


def test_what_is_unknown_or_lacks_a_value_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"'mrope'.*yarn"):
        rope(8, 10000.0, rope_type="mrope")
    with pytest.raises(UnsupportedModel, match="'linear' lacks 'factor'"):
        rope(8, 10000.0, rope_type="linear")
    with pytest.raises(UnsupportedModel, match="long_factor has 3 values; it needs 4"):
        rope(8, 10000.0, 64, 16, rope_type="longrope", short_factor=[1.0] * 4, long_factor=[1.0] * 3)
