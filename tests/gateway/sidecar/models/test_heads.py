from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.sidecar.models.heads import Head, vectors


def arrays(**more: Any) -> dict[str, Any]:
    return {
        "pools": np.array(["a", "b"]),
        "labels": np.array(["x"]),
        "mean": np.array([1, 1, 0, 0], np.float16),
        "scale": np.array([2, 1, 1, 1], np.float16),
        "w0": np.array([[1], [2], [3], [4]], np.float16),
        "b0": np.array([0.5], np.float16),
        **more,
    }


def sigmoid(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


def test_a_layer_of_weights(tmp_path: Path) -> None:
    np.savez(tmp_path / "head.npz", **arrays())
    head = Head.load(tmp_path / "head.npz")
    assert (head.pools, head.labels) == (("a", "b"), ("x",))
    scores = head(np.array([[3, 1, 0, 0], [1, 1, -1, 0]], np.float32))
    assert scores[:, 0] == pytest.approx([sigmoid(1.5), sigmoid(-2.5)])


def test_a_hidden_layer_passes_on_what_is_positive() -> None:
    head = Head(arrays(w0=np.eye(4)[:, :2], b0=np.zeros(2), w1=np.array([[1.0], [1.0]]), b1=np.array([0.25])))
    assert head(np.array([[3, -5, 0, 0]], np.float32))[0, 0] == pytest.approx(sigmoid(1.25))


@pytest.mark.parametrize(
    "wrong",
    [{"w0": np.zeros((3, 1))}, {"labels": np.array(["x", "y"])}, {"w1": np.zeros((2, 1)), "b1": np.zeros(1)}],
    ids=["too narrow", "too many labels", "hidden layer of another width"],
)
def test_what_does_not_fit_together_is_no_head(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected|outputs"):
        Head(arrays(**wrong))


def test_poolings_are_laid_side_by_side_in_the_heads_order() -> None:
    encoding = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    assert vectors([encoding], ["a", "b", "c"], ["c", "a"]).tolist() == [[5, 6, 1, 2]]
    with pytest.raises(ValueError, match="z"):
        vectors([encoding], ["a", "b", "c"], ["z"])
