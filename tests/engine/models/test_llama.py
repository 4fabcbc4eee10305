from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.models.llama import LlamaConfig
from engine.models.registry import load_model
from tests.engine.tiny import SHAPE


def test_reads_the_older_and_the_newer_place_of_theta() -> None:
    old = {**SHAPE, "rope_theta": 5e5}
    new = {key: value for key, value in SHAPE.items() if key != "rope_theta"}
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e5}
    assert LlamaConfig.read(old).theta == LlamaConfig.read(new).theta == 5e5


def test_derives_what_is_left_out() -> None:
    raw = {key: value for key, value in SHAPE.items() if key not in ("head_dim", "num_key_value_heads")}
    config = LlamaConfig.read(raw)
    assert (config.head_dim, config.kv_heads) == (16, 4)


def test_what_it_would_get_wrong_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="'gelu'"):
        LlamaConfig.read({**SHAPE, "hidden_act": "gelu"})
    with pytest.raises(UnsupportedModel, match="num_hidden_layers"):
        LlamaConfig.read({key: value for key, value in SHAPE.items() if key != "num_hidden_layers"})


def test_weights_that_do_not_belong_to_the_config_are_refused(model_of: Callable[..., Path]) -> None:
    folder = model_of()

    def load_with(**changes: object) -> None:
        (folder / "config.json").write_text(json.dumps({**SHAPE, **changes}))
        load_model(folder, torch.device("cpu"), torch.float32)

    with pytest.raises(UnsupportedModel, match=r"model\.layers\.2\..*lack|lack.*model\.layers\.2\."):
        load_with(num_hidden_layers=3)
    with pytest.raises(UnsupportedModel, match=r"does not use: model\.layers\.1\..* and 6 more"):
        load_with(num_hidden_layers=1)
    with pytest.raises(UnsupportedModel, match=r"gate_proj.*\(96, 64\).*\(97, 64\)"):
        load_with(intermediate_size=97)


def test_a_head_that_the_weights_lack_is_said_so(model_of: Callable[..., Path]) -> None:
    folder = model_of(tie_word_embeddings=True)
    load_model(folder, torch.device("cpu"), torch.float32)
    (folder / "config.json").write_text(json.dumps({**SHAPE, "tie_word_embeddings": False}))
    with pytest.raises(UnsupportedModel, match=r"lm_head\.weight"):
        load_model(folder, torch.device("cpu"), torch.float32)


def test_a_copy_of_the_tied_head_is_no_surplus(model_of: Callable[..., Path]) -> None:
    folder = model_of(tie_word_embeddings=False)
    (folder / "config.json").write_text(json.dumps({**SHAPE, "tie_word_embeddings": True}))
    load_model(folder, torch.device("cpu"), torch.float32)
