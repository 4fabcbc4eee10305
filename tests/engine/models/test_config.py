from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UnsupportedModel
from engine.models.gemma import gemma2, gemma3, gemma3_text, gemma3n, gemma3n_text
from engine.models.gpt_oss import gpt_oss
from engine.models.llama import llama, mistral, phi3, qwen2, qwen3
from engine.models.llama4 import llama4, llama4_text
from engine.models.mixture import mixtral, qwen3_moe
from engine.models.registry import load_model
from engine.weights.weight_loader import finite
from tests.engine.tiny import SHAPE

MOE = {**SHAPE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
SMALL_GEMMA = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7}


def without(raw: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in keys}


def test_reads_the_older_and_the_newer_place_of_theta() -> None:
    old = {**SHAPE, "rope_theta": 5e5}
    new = {**without(SHAPE, "rope_theta"), "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert llama(old).ropes[0].theta == llama(new).ropes[0].theta == 5e5


def test_derives_what_is_left_out() -> None:
    config = llama(without(SHAPE, "head_dim", "num_key_value_heads"))
    assert (config.head_dim, config.kv_heads) == (16, 4)
    assert qwen3(without(SHAPE, "head_dim")).head_dim == 128
    assert mistral(SHAPE).windows == (4096, 4096)
    assert qwen3_moe(without(MOE, "num_experts")).experts.count == 128
    assert mixtral(without(SHAPE, "rope_theta")).ropes[0].theta == 1e6


def test_a_gemma_3_of_the_hub_says_only_what_differs() -> None:
    """As google/gemma-3-4b-it has it."""
    text = {**SMALL_GEMMA, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    config = gemma3_text({"text_config": text})
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262_208)
    assert config.windows == (1024,) * 5 + (None, 1024)
    assert config.layer_ropes == (1,) * 5 + (0, 1)
    assert [(rope.kind, rope.theta) for rope in config.ropes] == [("linear", 1e6), ("default", 1e4)]
    assert config.tied and config.head_norm and config.softcap is None


def test_a_gemma_2_without_caps_has_none() -> None:
    raw = {**SHAPE, "attn_logit_softcapping": None, "final_logit_softcapping": None}
    assert (gemma2(raw).softcap, gemma2(raw).logit_softcap) == (None, None)
    assert (gemma2(SHAPE).softcap, gemma2(SHAPE).logit_softcap) == (50.0, 30.0)


def test_gemma_goes_by_its_own_name_of_the_activation() -> None:
    assert SHAPE["hidden_act"] == "silu"
    assert gemma2(SHAPE).activation == gemma2({**SHAPE, "hidden_activation": None}).activation
    assert gemma2(SHAPE).activation == "gelu_pytorch_tanh"


def test_yarn_reaches_as_far_as_it_stretches() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert qwen2({**SHAPE, "rope_scaling": scaling}).max_positions == 2048
    assert qwen2({**SHAPE, "rope_scaling": scaling, "max_position_embeddings": 4096}).max_positions == 4096


@pytest.mark.parametrize("window", [None, 0, -1])
def test_no_window_is_written_in_three_ways(window: int | None) -> None:
    raw = {**SHAPE, "sliding_window": window, "use_sliding_window": True, "max_window_layers": 0}
    for family in (mistral, phi3, qwen2, qwen3):
        assert family(raw).windows == (None, None)
    assert mistral({**SHAPE, "sliding_window": 8.0}).windows == (8, 8)


@pytest.mark.parametrize(
    ("use", "first", "expected"), [(True, 1, (None, 8)), (True, 0, (8, 8)), (False, 0, (None, None))]
)
def test_qwen_slides_from_a_layer_on(use: bool, first: int, expected: tuple[int | None, ...]) -> None:
    raw = {**SHAPE, "use_sliding_window": use, "sliding_window": 8, "max_window_layers": first}
    assert qwen2(raw).windows == qwen3(raw).windows == expected


@pytest.mark.parametrize(
    ("family", "raw", "named"),
    [
        (llama, {**SHAPE, "hidden_act": "relu"}, "'relu'.*silu"),
        (llama, without(SHAPE, "num_hidden_layers"), "num_hidden_layers"),
        (llama, {**SHAPE, "vocab_size": None}, "vocab_size"),
        (llama, {**SHAPE, "num_key_value_heads": 3}, "no multiple of num_key_value_heads"),
        (llama, {**SHAPE, "rope_scaling": {"type": "mrope"}}, "'mrope'"),
        (llama, {**SHAPE, "layer_types": ["full_attention", "sliding_attention"]}, "do not agree"),
        (llama, {**SHAPE, "rope_scaling": "linear"}, "rope_scaling 'linear'"),
        (llama, {**SHAPE, "rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0"),
        (llama, {**SHAPE, "hidden_size": "64"}, "'hidden_size' '64'"),
        (llama, {**SHAPE, "max_position_embeddings": 0}, "'max_position_embeddings' 0"),
        (llama, {**SHAPE, "num_hidden_layers": 10**12}, "'num_hidden_layers'"),
        (llama, {**SHAPE, "num_hidden_layers": 2 * 10**9}, "'num_hidden_layers' 2000000000: no model"),
        (llama, {**SHAPE, "partial_rotary_factor": 0}, "partial_rotary_factor is 0"),
        (llama, {**SHAPE, "partial_rotary_factor": -0.5}, "partial_rotary_factor is -0.5"),
        (llama, {**SHAPE, "partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
        (llama, {**SHAPE, "partial_rotary_factor": 0.2}, "partial_rotary_factor is 0.2.*even"),
        (llama, {**SHAPE, "partial_rotary_factor": float("nan")}, "partial_rotary_factor is nan"),
        (mistral, {**SHAPE, "sliding_window": -2}, "'sliding_window' -2"),
        (mistral, {**SHAPE, "sliding_window": 8.5}, "'sliding_window' 8.5"),
        (phi3, {**SHAPE, "sliding_window": "8"}, "'sliding_window' '8'"),
        (gemma2, {**SHAPE, "sliding_window": -1}, "sliding_window is not set"),
        (mistral, {**SHAPE, "sliding_window": 8, "layer_types": ["full_attention"] * 2}, "do not agree"),
        (qwen2, {**SHAPE, "layer_types": ["full_attention"]}, "1 layers of 2"),
        (qwen3, {**SHAPE, "layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        (qwen3, {**SHAPE, "layer_types": ["sliding_attention"] * 2}, "sliding_window is not set"),
        (phi3, {**SHAPE, "rope_scaling": {"type": "longrope", "short_factor": [1] * 8}}, "long_factor"),
        (gemma2, {**SHAPE, "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (gemma3, {**SHAPE, "attn_logit_softcapping": 5.0}, "attn_logit_softcapping"),
        (gemma3_text, SHAPE, "text_config"),
        (llama4_text, SHAPE, "text_config"),
        (gemma3n_text, SHAPE, "text_config"),
        (gemma3n, SHAPE, "num_kv_shared_layers is 15: no layer of .* is left"),
        (gemma3n, {**SHAPE, "num_kv_shared_layers": 0, "intermediate_size": [8]}, "names 1 layers of 2"),
        (gemma3n, {**SHAPE, "num_kv_shared_layers": 0, "altup_active_idx": 4}, "altup_active_idx is 4"),
        (gemma3n, {**SHAPE, "num_kv_shared_layers": 0, "activation_sparsity_pattern": 1.0}, "shares"),
        (llama4, {**SHAPE, "no_rope_layers": [1]}, "no_rope_layers names 1 layers of 2"),
        (llama4, {**SHAPE, "layer_types": ["sliding_attention"] * 2}, "sliding_attention are not supported"),
        (llama4, {**SHAPE, "attention_chunk_size": None}, "attention_chunk_size"),
        (gpt_oss, {**SHAPE, "num_local_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok is 3"),
        (gpt_oss, {**SHAPE, "sliding_window": None}, "sliding_window is not set"),
        (mixtral, {**SHAPE, "num_local_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok is 3"),
        (qwen3_moe, without(MOE, "moe_intermediate_size"), "moe_intermediate_size"),
    ],
)  # fmt: skip
def test_what_it_would_get_wrong_is_refused_by_name(
    family: Callable[[Mapping[str, Any]], object], raw: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        family(raw)


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


def logits(folder: Path) -> torch.Tensor:
    model = load_model(folder, torch.device("cpu"), torch.float32)
    return model.logits(torch.ones(1, SHAPE["hidden_size"]))


def test_a_copy_of_the_tied_head_is_no_surplus(
    model_of: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = model_of(tie_word_embeddings=True)
    tied = logits(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()},
        folder / "model.safetensors",
    )
    assert torch.equal(logits(folder), tied)
    assert not caplog.records


def test_another_head_than_the_tied_one_is_used_and_told(
    model_of: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """As transformers does."""
    folder = model_of(tie_word_embeddings=False)
    own = logits(folder)
    (folder / "config.json").write_text(json.dumps({**SHAPE, "tie_word_embeddings": True}))
    assert torch.equal(logits(folder), own)
    assert "tie_word_embeddings" in caplog.text and "lm_head.weight" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
def test_weights_that_are_no_numbers_are_refused(
    model_of: Callable[..., Path], name: str, value: float
) -> None:
    folder = model_of()
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[-1] = value
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=f"{name.removesuffix('.weight')}.* infinities or NaN"):
        load_model(folder, torch.device("cpu"), torch.float32)


def test_weights_whose_sum_is_too_large_are_numbers_all_the_same() -> None:
    weight = torch.full((4, 4), 60000.0, dtype=torch.float16)
    assert not weight.sum().isfinite()
    assert finite(weight, "x") is weight


def test_a_bias_of_zeros_is_no_surplus(model_of: Callable[..., Path]) -> None:
    """Tools that quantize write them for layers that have none."""
    folder = model_of()
    expected = logits(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.bias"] = torch.zeros(64)
    save_file(tensors, folder / "model.safetensors")
    assert torch.equal(logits(folder), expected)
    tensors["model.layers.0.mlp.down_proj.bias"][3] = 1e-6
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"does not use: model\.layers\.0\.mlp\.down_proj\.bias"):
        logits(folder)
