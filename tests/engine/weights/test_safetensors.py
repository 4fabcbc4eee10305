from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ModelUnavailable, UnsupportedModel
from engine.weights.safetensors import SafetensorsReader
from engine.worker.memory import predict_weights


def reader(folder: Path) -> SafetensorsReader:
    return SafetensorsReader(folder, torch.device("cpu"), torch.bfloat16)


def test_reads_a_single_file_in_the_dtype_asked_for(tmp_path: Path) -> None:
    weight = torch.randn(2, 3)
    save_file({"a": weight}, tmp_path / "model.safetensors")
    weights = reader(tmp_path)
    assert "a" in weights
    assert torch.equal(weights.take("a", (2, 3)), weight.bfloat16())
    weights.finish()


def test_reads_shards_by_their_index(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "model-00002-of-00002.safetensors")
    index = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    weights = reader(tmp_path)
    assert weights.take("a", (2,)).sum() == 2
    assert weights.take("b", (3,)).sum() == 0
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelUnavailable, match="lacks model-00002-of-00002"):
        reader(tmp_path)


def test_missing_broken_and_left_over_weights_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"lacks model\.safetensors"):
        reader(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 40)
    with pytest.raises(ModelUnavailable, match="cannot be read"):
        reader(tmp_path)
    save_file({"a": torch.ones(2), "b": torch.ones(2)}, tmp_path / "model.safetensors")
    weights = reader(tmp_path)
    with pytest.raises(UnsupportedModel, match="lack the tensor c"):
        weights.take("c", (2,))
    with pytest.raises(UnsupportedModel, match=r"shape \(2,\).*calls for \(3,\)"):
        weights.take("a", (3,))
    with pytest.raises(UnsupportedModel, match="does not use: a, b"):
        weights.finish()
    weights.take("a", (2,))
    weights.ignore("b")
    weights.finish()


@pytest.mark.parametrize("text", ["[]", "{", '{"weight_map": 5}', '{"weight_map": {"a": 5}}'])
def test_an_index_that_is_none_is_said_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelUnavailable, match=r"index\.json"):
        reader(tmp_path)


def test_the_memory_of_a_file_cut_short_is_not_predicted_but_said_so(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(ModelUnavailable, match="Is the download whole"):
        predict_weights(tmp_path, torch.float32, None)
