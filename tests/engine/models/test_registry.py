from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.errors import ModelUnavailable, UnsupportedModel
from engine.models.refused import MISSING
from engine.models.registry import FAMILIES, load_model

CPU = torch.device("cpu")


def load(folder: Path) -> object:
    return load_model(folder, CPU, torch.float32)


def test_an_unknown_architecture_is_named_with_those_that_are_known(model_of: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModel, match=r"GPT9ForCausalLM.*LlamaForCausalLM"):
        load(model_of(architectures=["GPT9ForCausalLM"]))
    with pytest.raises(UnsupportedModel, match="names none"):
        load(model_of(architectures=None))


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("DeepseekV32ForCausalLM", "sparse index"),
        ("LongcatFlashForCausalLM", "two attentions"),
        ("OlmoHybridForCausalLM", "gated delta net"),
        ("MiniMaxForCausalLM", "lightning attention"),
        ("JambaForCausalLM", "Mamba"),
        ("Gemma4ForCausalLM", "heads of another size"),
    ],
)
def test_a_known_architecture_is_refused_with_what_is_missing(
    model_of: Callable[..., Path], name: str, missing: str
) -> None:
    with pytest.raises(UnsupportedModel, match=f"{name} is not supported: it needs .*{missing}"):
        load(model_of(architectures=[name]))


def test_no_architecture_is_both_run_and_refused() -> None:
    assert not MISSING.keys() & FAMILIES.keys()


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        (
            "GraniteMoeHybridForCausalLM",
            {"layer_types": ["mamba", "conv"]},
            "attention or mamba for each of 2",
        ),
        ("GraniteMoeHybridForCausalLM", {"shared_intermediate_size": 96}, "Models without a layer"),
        (
            "BambaForCausalLM",
            {"attn_layer_indices": [1], "mamba_n_heads": 3},
            r"mamba_n_heads \(3\).*\(128\)",
        ),
        (
            "BambaForCausalLM",
            {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_n_groups": 3},
            "no multiple of mamba_n_groups",
        ),
        (
            "BambaForCausalLM",
            {"attn_layer_indices": [1], "time_step_limit": [0.1, 1.0]},
            r"time_step_limit \[0.1, 1.0\]",
        ),
        (
            "GraniteMoeHybridForCausalLM",
            {"layer_types": ["attention"] * 2, "num_local_experts": 4},
            "num_local_exp",
        ),
        ("CohereForCausalLM", {"use_qk_norm": True}, "use_qk_norm"),
        ("HunYuanDenseV1ForCausalLM", {"use_cla": True}, "use_cla"),
        ("OlmoeForCausalLM", {"clip_qkv": 8.0}, "clip_qkv"),
        ("PhimoeForCausalLM", {"num_experts_per_tok": 4}, "num_experts_per_tok is 4"),
        ("PhimoeForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear' is not"),
        ("HunYuanMoEV1ForCausalLM", {"num_experts": 8, "moe_topk": [1, 2]}, "moe_topk differs"),
        ("DeepseekV2ForCausalLM", {"topk_method": "other"}, "topk_method 'other'"),
        ("DeepseekV2ForCausalLM", {"scoring_func": "sigmoid"}, "scoring_func 'sigmoid'"),
        ("DeepseekV2ForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob"),
        ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, "scoring_func 'softmax'"),
        ("DeepseekV3ForCausalLM", {"n_group": 7}, "n_group is 7"),
        ("Glm4MoeLiteForCausalLM", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("YoutuForCausalLM", {"rope_scaling": {"type": "default", "llama_4_scaling_beta": 1}}, "llama_4"),
        ("HunYuanMoEV1ForCausalLM", {"moe_layer_num_skipped": 1}, "moe_layer_num_skipped"),
        ("SmolLM3ForCausalLM", {"no_rope_layers": [1] * 77}, "no_rope_layers names 77"),
        ("Mistral3ForConditionalGeneration", {}, "text_config"),
        ("Mistral3ForConditionalGeneration", {"text_config": {"model_type": "other"}}, "'other' is not"),
        ("Lfm2ForCausalLM", {"layer_types": ["conv", "conv"]}, "full_attention or conv .*at least once"),
        ("Lfm2ForCausalLM", {"layer_types": ["full_attention"]}, "each of 2 layers"),
        ("Lfm2ForCausalLM", {"full_attn_idxs": [0], "conv_L_cache": 1}, "over 1 tokens"),
        (
            "Qwen3NextForCausalLM",
            {"layer_types": ["linear_attention", "sliding_attention"]},
            "linear_attention",
        ),
        ("Qwen3NextForCausalLM", {}, "at least once"),
        (
            "Qwen3NextForCausalLM",
            {"full_attention_interval": 2, "linear_num_key_heads": 3},
            "no multiple of linear_num_key_heads",
        ),
        ("Qwen3_5ForConditionalGeneration", {"text_config": 5}, "'text_config' that is no object"),
        ("ApertusForCausalLM", {"hidden_act": "silu"}, "xielu"),
        ("Starcoder2ForCausalLM", {"hidden_act": "tanh"}, "gelu_pytorch_tanh"),
    ],
)
def test_a_setting_that_would_be_ignored_is_refused(
    model_of: Callable[..., Path], name: str, changes: dict[str, object], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        load(model_of(architectures=[name], **changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": [5]}, "architecture 5 is not"),
        ({"architectures": "GPT9ForCausalLM"}, "architecture GPT9ForCausalLM is not"),
        ({"rms_norm_eps": "x"}, "makes no sense"),
        ({"rope_theta": "x"}, "makes no sense"),
        ({"quantization_config": "awq4"}, "quantized by 'awq4'"),
        ({"quantization_config": [1]}, r"quantized by \[1\]"),
        ({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": [1]}}, "no sense"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": 1}}},
            "no sense",
        ),
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
