from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import InvalidRequest
from engine.weights.adapters import read_adapter
from tests.engine.lora import write_adapter

Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"
WEIGHTS = {
    f"{Q}.weight": torch.zeros(8, 6),
    f"{UP}.weight": torch.zeros(10, 6),
    "model.norm.weight": torch.zeros(6),
}


def change(folder: Path, **config: Any) -> Path:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **config}))
    return folder


def change_tensors(folder: Path, changes: dict[str, Tensor | None]) -> Path:
    path = folder / "adapter_model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return folder


def test_matrices_ranks_and_scales(tmp_path: Path) -> None:
    folder = write_adapter(
        tmp_path,
        WEIGHTS,
        rank=4,
        alpha=6,
        ranks={"mlp.up_proj": 2},
        alpha_pattern={"layers.[0-9]+.mlp.up_proj": 5},
    )
    adapter = read_adapter(folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    assert adapter.modules.keys() == {Q, UP}
    assert torch.equal(adapter.modules[Q].down, tensors[f"base_model.model.{Q}.lora_A.weight"])
    assert torch.equal(adapter.modules[Q].up, tensors[f"base_model.model.{Q}.lora_B.weight"])
    assert (adapter.rank, adapter.modules[UP].down.shape) == (4, (2, 6))
    assert (adapter.modules[Q].scale, adapter.modules[UP].scale) == (6 / 4, 5 / 2)
    rank_stabilised = read_adapter(change(folder, use_rslora=True))
    assert rank_stabilised.modules[Q].scale == 6 / math.sqrt(4)


def test_a_pattern_matches_whole_parts_of_a_name(tmp_path: Path) -> None:
    folder = write_adapter(
        tmp_path, WEIGHTS, rank=4, alpha=8, alpha_pattern={"proj": 1, "up_proj": 2, ".*q_proj": 3}
    )
    modules = read_adapter(folder).modules
    assert (modules[UP].scale, modules[Q].scale) == (2 / 4, 3 / 4)


def test_matrices_in_half_precision_are_read(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, WEIGHTS, rank=4)
    path = folder / "adapter_model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    assert read_adapter(folder).modules[Q].down.dtype == torch.float32


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "lora_only"}, "biases"),
        ({"lora_bias": True}, "lora_bias"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"target_parameters": ["experts.gate_up"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base model's weights"),
        ({"r": 3}, "ranks 4 and 4, but adapter_config.json says 3"),
        ({"r": "many"}, "no sensible rank"),
        ({"rank_pattern": {"(": 3}}, "bad pattern"),
        ({"rank_pattern": {"(a+)+b": 3}}, "too long to match"),
        ({"alpha_pattern": {".*.*.*.*b": 3}}, "too long to match"),
        ({"rank_pattern": {"a?" * 30 + "a" * 30: 3}}, "too long to match"),
        ({"rank_pattern": {"(a|a)" * 30: 3}}, "too long to match"),
        ({"rank_pattern": {"(?x:(a+) +)b": 3}}, "too long to match"),
        ({"rank_pattern": [1]}, "no JSON object"),
        ({"alpha_pattern": "a"}, "no JSON object"),
        ({"lora_alpha": float("nan")}, "NaN"),
        ({"lora_alpha": float("inf")}, "NaN"),
        ({"lora_alpha": None}, "no sensible rank or alpha"),
        ({"lora_alpha": 10**400}, "no sensible rank or alpha"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_would_be_ignored_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], complaint: str
) -> None:
    folder = change(write_adapter(tmp_path, WEIGHTS, rank=4), **config)
    with pytest.raises(InvalidRequest, match=complaint):
        read_adapter(folder)


def test_many_patterns_share_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = change(write_adapter(tmp_path, WEIGHTS, rank=4), rank_pattern={"other": 3, "another": 3})
    read_adapter(folder)
    monkeypatch.setattr("engine.weights.adapters._MOST_SECONDS", -1.0)
    with pytest.raises(InvalidRequest, match="has 2 patterns, which take too long"):
        read_adapter(folder)


def test_a_layers_name_that_makes_searches_long_is_refused(tmp_path: Path) -> None:
    name = "base_model.model." + "a." * 150 + "lora_A.weight"
    folder = change_tensors(write_adapter(tmp_path, WEIGHTS, rank=4), {name: torch.ones(4, 6)})
    with pytest.raises(InvalidRequest, match="over 200 characters"):
        read_adapter(folder)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {f"base_model.model.{Q}.lora_magnitude_vector": torch.ones(8)},
            "lora_magnitude_vector is not supported",
        ),
        (
            {"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 9)},
            "lora_embedding_A is not supported",
        ),
        ({f"base_model.model.{Q}.lora_B.weight": None}, f"lacks lora_A or lora_B of {Q}"),
        ({f"base_model.model.{Q}.lora_A.weight": torch.ones(4, 6, 1)}, "only LoRA on linear layers"),
        ({f"base_model.model.{Q}.lora_A.weight": torch.ones(5, 6)}, "the ranks 5 and 4"),
        ({f"base_model.model.{Q}.lora_A.weight": torch.full((4, 6), math.nan)}, "NaN"),
    ],
    ids=["dora", "embedding", "half", "convolution", "rank", "nan"],
)
def test_strange_tensors_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Tensor | None], complaint: str
) -> None:
    folder = change_tensors(write_adapter(tmp_path, WEIGHTS, rank=4), changes)
    with pytest.raises(InvalidRequest, match=complaint):
        read_adapter(folder)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"adapter_config\.json cannot be read") as refused:
        read_adapter(tmp_path / "nowhere")
    assert str(tmp_path) not in refused.value.message  # it is told whoever sent the adapter
    folder = write_adapter(tmp_path / "adapter", WEIGHTS, rank=4)
    (folder / "adapter_model.safetensors").write_bytes(b"short")
    with pytest.raises(InvalidRequest, match="Is the download whole"):
        read_adapter(folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(InvalidRequest, match=r"lacks adapter_model\.safetensors"):
        read_adapter(folder)
    (folder / "adapter_config.json").write_text("[]")
    with pytest.raises(InvalidRequest, match="not a JSON object"):
        read_adapter(folder)
    for broken in ("{", "[" * 100_000):
        (folder / "adapter_config.json").write_text(broken)
        with pytest.raises(InvalidRequest, match="cannot be read"):
            read_adapter(folder)
    save_file({}, write_adapter(folder, WEIGHTS, rank=1) / "adapter_model.safetensors")
    with pytest.raises(InvalidRequest, match="holds no tensors"):
        read_adapter(folder)


def test_a_config_without_rank_is_refused(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path, WEIGHTS, rank=4)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 1}')
    with pytest.raises(InvalidRequest, match="lacks 'r'"):
        read_adapter(folder)
