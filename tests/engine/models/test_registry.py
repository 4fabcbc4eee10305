from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.errors import ModelUnavailable, UnsupportedModel
from engine.models.registry import load_model

CPU = torch.device("cpu")


def load(folder: Path) -> object:
    return load_model(folder, CPU, torch.float32)


def test_an_unknown_architecture_is_named_with_those_that_are_known(model_of: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModel, match=r"GPT9ForCausalLM.*LlamaForCausalLM"):
        load(model_of(architectures=["GPT9ForCausalLM"]))
    with pytest.raises(UnsupportedModel, match="names none"):
        load(model_of(architectures=None))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": [5]}, "architecture 5 is not"),
        ({"architectures": "GPT9ForCausalLM"}, "architecture GPT9ForCausalLM is not"),
        ({"rms_norm_eps": "x"}, "makes no sense"),
        ({"rope_theta": "x"}, "makes no sense"),
        ({"quantization_config": "awq4"}, "quantized by 'awq4'"),
        ({"quantization_config": [1]}, r"quantized by \[1\]"),
        ({"quantization_config": {"quant_method": "gptq", "bits": {}}}, "GPTQ|no sense"),
    ],
)
def test_a_config_of_odd_types_is_refused_in_words(
    model_of: Callable[..., Path], changes: dict[str, object], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        load(model_of(**changes))


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_a_config_that_is_not_json_is_said_so(model_of: Callable[..., Path], text: str) -> None:
    folder = model_of()
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelUnavailable, match=r"config\.json"):
        load(folder)
