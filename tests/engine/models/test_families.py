"""Every family against transformers' logits, in float32, through each way that the engine computes a context."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.models.registry import FAMILIES
from tests.engine.models.hub import COMMON, GEMMA3N, LATENT, LLAMA4, Paged, expected, save, save_model

LENGTH = 44
"""Longer than any sliding window here, and no multiple of the block size plus one."""
WINDOW = 9
GEMMA = {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 20}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.5 + 0.5 * i for i in range(8)],
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 16}

GLM_MOE = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "head_dim": 24,
    "routed_scaling_factor": 1.7,
}
GPT_OSS = {
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "head_dim": 16,
    "sliding_window": WINDOW,
    "intermediate_size": 40,
    "rope_parameters": {**YARN, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
}
ERNIE_MOE = {"moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 40}
DEEPSEEK = {
    **LATENT,
    "q_lora_rank": None,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
LATENT_YARN = {**YARN, "mscale": 0.9, "mscale_all_dim": 0.7}
GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
}
GRANITE4 = {
    "layer_types": ["attention"] * 3,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 80,
}


def case(name: str, family: str, **changes: Any) -> Any:
    return pytest.param(family, changes, id=name)


CASES = [
    case("llama-2", "Llama", num_key_value_heads=4),
    case("llama-3.1-tied", "Llama", rope_parameters=LLAMA3, tie_word_embeddings=True),
    case(
        "llama-linear", "Llama", rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}
    ),
    case(
        "llama-dynamic", "Llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0}
    ),
    case("llama-biases-head-dim", "Llama", attention_bias=True, mlp_bias=True, head_dim=24),
    case("mistral", "Mistral", sliding_window=WINDOW),
    case("mistral-no-window", "Mistral", sliding_window=None, head_dim=24),
    case("mistral-window-1", "Mistral", sliding_window=1),
    case("qwen2", "Qwen2", num_attention_heads=7, hidden_size=84, num_key_value_heads=1),
    case("qwen2-upper-window", "Qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    case("qwen2-yarn", "Qwen2", rope_parameters=YARN, tie_word_embeddings=True),
    case("qwen3", "Qwen3", head_dim=24, tie_word_embeddings=True),
    case(
        "qwen3-bias-7",
        "Qwen3",
        head_dim=12,
        num_attention_heads=7,
        num_key_value_heads=1,
        hidden_size=84,
        attention_bias=True,
    ),
    case(
        "qwen3-types", "Qwen3", head_dim=16, use_sliding_window=True, sliding_window=WINDOW, layer_types=MIXED
    ),
    case(
        "qwen3-yarn-mscale",
        "Qwen3",
        head_dim=16,
        rope_parameters={**YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False, "beta_fast": 20},
    ),
    case("phi-3", "Phi3", sliding_window=WINDOW),
    case(
        "phi-3-partial",
        "Phi3",
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    ),
    case("phi-3-longrope", "Phi3", rope_parameters=LONGROPE, original_max_position_embeddings=32),
    case(
        "phi-4-mini",
        "Phi3",
        num_key_value_heads=1,
        tie_word_embeddings=True,
        original_max_position_embeddings=32,
        rope_parameters={
            **LONGROPE,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0] * 6,
            "long_factor": [2.0, 3, 4, 5, 6, 7],
        },
    ),
    case("gemma-2", "Gemma2", **GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    case(
        "gemma-2-no-caps",
        "Gemma2",
        **GEMMA,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        tie_word_embeddings=False,
    ),
    case(
        "gemma-2-types-bias",
        "Gemma2",
        **GEMMA,
        layer_types=MIXED[::-1],
        attention_bias=True,
        num_key_value_heads=4,
    ),
    case("gemma-3", "Gemma3Text", **GEMMA, num_hidden_layers=7),
    case(
        "gemma-3-scaled",
        "Gemma3Text",
        **GEMMA,
        layer_types=MIXED,
        final_logit_softcapping=3.0,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
    case("gemma", "Gemma", head_dim=24),
    case("smollm3", "SmolLM3", num_hidden_layers=4, no_rope_layer_interval=2),
    case(
        "smollm3-window",
        "SmolLM3",
        num_hidden_layers=4,
        no_rope_layers=[1, 0, 0, 1],
        use_sliding_window=True,
        sliding_window=WINDOW,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
    ),
    case("olmo-2", "Olmo2", attention_bias=True),
    case(
        "olmo-3",
        "Olmo3",
        sliding_window=WINDOW,
        layer_types=MIXED,
        rope_parameters={
            "full_attention": {**YARN, "attention_factor": 1.2},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
    case("olmo-3-pattern", "Olmo3", sliding_window=WINDOW, num_hidden_layers=5, num_key_value_heads=4),
    case(
        "exaone-4",
        "Exaone4",
        sliding_window=WINDOW,
        sliding_window_pattern=2,
        head_dim=24,
        num_hidden_layers=4,
    ),
    case(
        "exaone-4-full",
        "Exaone4",
        sliding_window=None,
        layer_types=["full_attention"] * 3,
        rope_parameters=LLAMA3,
        tie_word_embeddings=True,
    ),
    case("granite", "Granite", **GRANITE),
    case("granite-biases", "Granite", attention_bias=True, mlp_bias=True, residual_multiplier=0.5),
    case("granite-4", "GraniteMoeHybrid", **GRANITE, **GRANITE4, position_embedding_type="rope"),
    case("granite-4-nope", "GraniteMoeHybrid", **GRANITE, **GRANITE4, position_embedding_type="nope"),
    case("glm-4-9b", "Glm", head_dim=16),
    case("glm-4", "Glm4", head_dim=24, partial_rotary_factor=0.25),
    case("ministral", "Ministral", sliding_window=WINDOW, layer_types=MIXED, head_dim=24),
    case(
        "ministral-3",
        "Ministral3",
        head_dim=16,
        rope_parameters={
            **YARN,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.7,
            "original_max_position_embeddings": 16,
        },
    ),
    case("cohere", "Cohere", logit_scale=0.3, attention_bias=True),
    case("cohere-2", "Cohere2", sliding_window=WINDOW, layer_types=MIXED, logit_scale=0.3),
    case("starcoder2", "Starcoder2", sliding_window=WINDOW),
    case("starcoder2-plain", "Starcoder2", use_bias=False, tie_word_embeddings=False),
    case("seed-oss", "SeedOss", head_dim=24, attention_out_bias=True, mlp_bias=True),
    case("apertus", "Apertus"),
    case(
        "hunyuan",
        "HunYuanDenseV1",
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    ),
    case(
        "hunyuan-alpha",
        "HunYuanDenseV1",
        head_dim=24,
        attention_bias=True,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 1.0, "alpha": 50.0},
    ),
    case("ernie-4.5", "Ernie4_5", head_dim=24, use_bias=True),
    case("mixtral", "Mixtral", num_local_experts=5, num_experts_per_tok=2),
    case("mixtral-window", "Mixtral", num_local_experts=4, num_experts_per_tok=1, sliding_window=WINDOW),
    case("qwen2-moe", "Qwen2Moe", **EXPERTS, shared_expert_intermediate_size=48),
    case(
        "qwen2-moe-window",
        "Qwen2Moe",
        **EXPERTS,
        shared_expert_intermediate_size=48,
        qkv_bias=False,
        norm_topk_prob=True,
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=2,
        mlp_only_layers=[1],
    ),
    case("glm-4.5", "Glm4Moe", **GLM_MOE, use_qk_norm=True, attention_bias=True),
    case("glm-4.5-groups", "Glm4Moe", **GLM_MOE, n_group=4, topk_group=2, n_shared_experts=2),
    case("qwen3-moe", "Qwen3Moe", **EXPERTS, norm_topk_prob=True),
    case(
        "qwen3-moe-some",
        "Qwen3Moe",
        **EXPERTS,
        decoder_sparse_step=2,
        num_hidden_layers=4,
        mlp_only_layers=[3],
    ),
    case("qwen3-moe-window", "Qwen3Moe", **EXPERTS, use_sliding_window=True, sliding_window=WINDOW),
    case("olmoe", "Olmoe", num_experts=6, num_experts_per_tok=3),
    case(
        "olmoe-bias", "Olmoe", num_experts=5, num_experts_per_tok=2, norm_topk_prob=True, attention_bias=True
    ),
    case(
        "phi-moe",
        "Phimoe",
        num_local_experts=5,
        # Wide enough that a token's weights depend on which experts are near.
        router_jitter_noise=0.3,
        attention_bias=True,
        lm_head_bias=True,
        original_max_position_embeddings=32,
        # transformers takes the short factors always.
        rope_parameters={
            **LONGROPE,
            "short_factor": LONGROPE["long_factor"],
            "short_mscale": 1.1,
            "long_mscale": 1.3,
            "original_max_position_embeddings": 32,
        },
    ),
    case("phi-moe-window", "Phimoe", num_local_experts=4, sliding_window=WINDOW),
    case("ernie-4.5-moe", "Ernie4_5_Moe", **ERNIE_MOE, moe_num_shared_experts=2),
    case(
        "ernie-4.5-moe-some",
        "Ernie4_5_Moe",
        **ERNIE_MOE,
        head_dim=24,
        use_bias=True,
        num_hidden_layers=6,
        moe_num_shared_experts=1,
        moe_layer_interval=2,
        moe_layer_start_index=2,
        moe_layer_end_index=4,
        moe_norm_min=0.9,
        tie_word_embeddings=False,
    ),
    case("ernie-4.5-moe-alone", "Ernie4_5_Moe", **ERNIE_MOE, moe_num_shared_experts=0, use_bias=True),
    case("hunyuan-moe", "HunYuanMoEV1", head_dim=16, num_experts=6, moe_topk=3),
    case(
        "hunyuan-moe-lists",
        "HunYuanMoEV1",
        head_dim=24,
        num_experts=5,
        moe_topk=[2, 2, 2],
        attention_bias=True,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 100.0, "factor": 1.0, "alpha": 50.0},
    ),
    case("gpt-oss", "GptOss", **GPT_OSS, num_hidden_layers=4),
    case(
        "gpt-oss-7",
        "GptOss",
        **{**GPT_OSS, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
        layer_types=MIXED[::-1],
        attention_bias=False,
        num_attention_heads=7,
        num_key_value_heads=1,
        hidden_size=84,
        swiglu_limit=0.5,
        swiglu_alpha=1.1,
    ),
    case("deepseek-v2", "DeepseekV2", **DEEPSEEK, rope_parameters=LATENT_YARN),
    case(
        "deepseek-v2-groups",
        "DeepseekV2",
        **{**DEEPSEEK, "q_lora_rank": 32, "first_k_dense_replace": 0},
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        attention_bias=True,
        mlp_bias=True,
    ),
    case("deepseek-v2-lite", "DeepseekV2", **{**DEEPSEEK, "routed_scaling_factor": 1.0}),
    case(
        "deepseek-v3",
        "DeepseekV3",
        **{**DEEPSEEK, "q_lora_rank": 32, "n_shared_experts": 1},
        n_group=4,
        topk_group=2,
        rope_parameters=LATENT_YARN,
    ),
    case(
        "deepseek-v3-plain",
        "DeepseekV3",
        **DEEPSEEK,
        n_group=1,
        topk_group=1,
        norm_topk_prob=False,
        rope_interleave=False,
        attention_bias=True,
        rope_parameters={**YARN, "attention_factor": 1.2},
    ),
    case("glm-4.7-flash", "Glm4MoeLite", **{**DEEPSEEK, "q_lora_rank": 32, "v_head_dim": 28}),
    case(
        "glm-4.7-flash-layers",
        "Glm4MoeLite",
        **{**DEEPSEEK, "q_lora_rank": 32},
        mlp_layer_types=["sparse", "dense", "sparse"],
        n_group=2,
    ),
    case(
        "minicpm3",
        "MiniCPM3",
        **{**LATENT, "v_head_dim": None},
        scale_emb=3,
        dim_model_base=32,
    ),
    case(
        "minicpm3-longrope",
        "MiniCPM3",
        **{**LATENT, "q_lora_rank": None},
        scale_depth=0.9,
        rope_parameters={
            **LONGROPE,
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [1.5, 2.0, 2.5, 3.0],
            "original_max_position_embeddings": 32,
        },
        tie_word_embeddings=False,
    ),
    case("youtu", "Youtu", **LATENT),
    case(
        "llama-4",
        "Llama4Text",
        **LLAMA4,
        num_hidden_layers=5,
        attention_chunk_size=12,
        interleave_moe_layer_step=2,
        rope_parameters={**LLAMA3, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
    ),
    case(
        "llama-4-128",
        "Llama4Text",
        **{**LLAMA4, "num_experts_per_tok": 1},
        attention_chunk_size=8,
        use_qk_norm=False,
        attn_temperature_tuning=False,
        no_rope_layers=[0, 1, 1],
        attention_bias=True,
        num_attention_heads=7,
        num_key_value_heads=1,
        hidden_size=84,
    ),
    case("gemma-3n", "Gemma3nText", **GEMMA3N),
    case(
        "gemma-3n-streams",
        "Gemma3nText",
        **{
            **GEMMA3N,
            "num_kv_shared_layers": 0,
            "activation_sparsity_pattern": [0.0, 0.9, 0.0],
            "layer_types": MIXED,
            "num_hidden_layers": 3,
        },
        altup_num_inputs=3,
        altup_active_idx=1,
        altup_correct_scale=False,
        attention_bias=True,
        intermediate_size=[96, 64, 128],
        num_key_value_heads=4,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
]

LFM2 = {
    "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
}
DELTA = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_state": 24, "mamba_expand": 2, "mamba_chunk_size": 16}
GRANITE4_H = {
    **GRANITE4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
QWEN_MOE = {**EXPERTS, "head_dim": 32, "shared_expert_intermediate_size": 48}
CASES += [
    case("lfm2", "Lfm2", **LFM2),
    case(
        "lfm2-bias",
        "Lfm2",
        **{**LFM2, "layer_types": ["conv", "conv", "full_attention"], "block_auto_adjust_ff_dim": True},
        block_multiple_of=24,
        block_ffn_dim_multiplier=1.3,
        conv_bias=True,
        conv_L_cache=5,
        tie_word_embeddings=False,
    ),
    case(
        "lfm2-moe",
        "Lfm2Moe",
        layer_types=LFM2["layer_types"],
        num_experts=6,
        num_experts_per_tok=3,
        moe_intermediate_size=40,
        num_dense_layers=1,
        routed_scaling_factor=1.7,
    ),
    case(
        "lfm2-moe-plain",
        "Lfm2Moe",
        layer_types=LFM2["layer_types"],
        num_experts=5,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        num_dense_layers=0,
        use_expert_bias=False,
        norm_topk_prob=False,
    ),
    case("qwen3-next", "Qwen3Next", **{**DELTA, **QWEN_MOE}),
    case(
        "qwen3-next-dense",
        "Qwen3Next",
        **DELTA,
        num_experts=0,
        linear_conv_kernel_dim=3,
        layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
        attention_bias=True,
        partial_rotary_factor=0.5,
        tie_word_embeddings=True,
    ),
    case("granite-4-h", "GraniteMoeHybrid", **GRANITE, **MAMBA, **GRANITE4_H),
    case(
        "granite-4-h-groups",
        "GraniteMoeHybrid",
        **MAMBA | {"mamba_n_groups": 2, "mamba_d_conv": 3, "mamba_proj_bias": True, "mamba_conv_bias": False},
        **GRANITE4_H,
        position_embedding_type="rope",
    ),
    case("bamba", "Bamba", **MAMBA, attn_layer_indices=[1], mlp_bias=False),
    case(
        "bamba-bias",
        "Bamba",
        **MAMBA,
        attn_layer_indices=[0, 2],
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    case("qwen3.5", "Qwen3_5Text", **DELTA),
    case("qwen3.5-moe", "Qwen3_5MoeText", **{**DELTA, **QWEN_MOE}),
]
CHUNKED = {"Qwen3Next", "Qwen3_5Text", "Qwen3_5MoeText", "GraniteMoeHybrid", "Bamba"}
"""Those whose prompts are summed in pieces, from wherever a chunk begins; ``invariant``: token by token."""


def tokens(length: int = LENGTH, seed: int = 1) -> list[int]:
    return torch.randint(2, 320, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "model"


FIRST = {one.values[0]: one.id for one in reversed(CASES)}
"""Of each family; what else it may be like is slow."""
SAMPLED = [
    one if one.id == FIRST[one.values[0]] else pytest.param(*one.values, id=one.id, marks=pytest.mark.slow)
    for one in CASES
]


@pytest.mark.parametrize(("family", "changes"), SAMPLED)
def test_logits_are_those_of_transformers(folder: Path, family: str, changes: dict[str, Any]) -> None:
    theirs = expected(save(folder, family, **changes), tokens())
    paged = Paged(folder, invariant=family in CHUNKED)
    whole = paged.run(tokens(), [], tiled=True)
    chunked_prefill = paged.run(tokens(), [1, 14, 19, 35], request=1, tiled=True)
    decoded = paged.run(tokens(), list(range(11, LENGTH)))
    assert theirs.std() > 0.3
    for ours in (whole, chunked_prefill, decoded):
        assert (ours - theirs).abs().max() <= 1e-4
    assert torch.equal(chunked_prefill, whole), "a row's bits depend on how the prompt was cut"


@pytest.mark.parametrize(("family", "changes"), CASES[::4])
def test_a_request_does_not_depend_on_its_neighbour(
    folder: Path, family: str, changes: dict[str, Any]
) -> None:
    save(folder, family, **changes)
    first, second = tokens(30), tokens(30, seed=2)
    # Chunks of the context are padded to the batch's longest, but for tiles, which the engine computes in float32.
    tiled = "attention_chunk_size" in changes
    alone = Paged(folder, invariant=family in CHUNKED).run(first, [20, *range(21, 30)], tiled=tiled)
    paged = Paged(folder, invariant=family in CHUNKED)
    parts = [paged.step((0, first[:20], 0), (1, second[:5], 0), tiled=tiled)[0]]
    for i in range(20, 30):
        start = 5 + 2 * (i - 20)
        chunk = second[start : start + 2] if i % 2 else second[start : start + 1]
        parts.append(paged.step((1, chunk, start), (0, first[i : i + 1], i), tiled=tiled)[1])
    assert torch.equal(torch.cat(parts), alone)


@pytest.mark.parametrize(("family", "changes"), CASES[1::3])
def test_bfloat16_stays_near_float32(folder: Path, family: str, changes: dict[str, Any]) -> None:
    theirs = expected(save(folder, family, **changes), tokens())
    ours = Paged(folder, torch.bfloat16).run(tokens(), [17, *range(30, LENGTH)])
    assert ours.dtype == torch.bfloat16
    # A mixture may send a token elsewhere where two experts are near a tie: most rows must be near. Where a state
    # carries that on, 0.73 of transformers' own rows in bfloat16 are (Qwen3-Next).
    near = torch.nn.functional.cosine_similarity(ours.float(), theirs) > 0.99
    assert near.float().mean() > (0.6 if family in CHUNKED else 0.8)


def older(config: dict[str, Any]) -> dict[str, Any]:
    """As versions of transformers before the fifth wrote it."""
    rope = config.pop("rope_parameters")
    if "full_attention" in rope:
        full, sliding = rope["full_attention"], rope["sliding_attention"]
        config |= {"rope_theta": full.pop("rope_theta"), "rope_local_base_freq": sliding["rope_theta"]}
        config["sliding_window_pattern"] = 6
        del config["layer_types"]
        rope = full
    else:
        config["rope_theta"] = rope.pop("rope_theta")
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor", 1.0)
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype")
    return config


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        *[one for one in CASES if one.id in ("llama-linear", "llama-3.1-tied", "phi-4-mini", "gemma-2")],
        case(
            "gemma-3",
            "Gemma3Text",
            **GEMMA,
            num_hidden_layers=7,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        ),
    ],
)
def test_the_older_layout_of_config_json_reads_the_same(
    folder: Path, family: str, changes: dict[str, Any]
) -> None:
    theirs = expected(save(folder, family, **changes), tokens())
    path = folder / "config.json"
    path.write_text(json.dumps(older(json.loads(path.read_text()))))
    assert (Paged(folder).run(tokens(), []) - theirs).abs().max() <= 1e-4


def test_gemma_3n_runs_from_its_checkpoint_for_pictures_and_sound(folder: Path) -> None:
    theirs = expected(save(folder, "Gemma3nText", **GEMMA3N), tokens())
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): weight for name, weight in weights.items()}
    # Keys and values of layers that share another's are in the published files.
    unused = {
        f"model.{name}.weight": torch.ones(4) for name in ("vision_tower.x", "audio_tower.x", "embed_audio.x")
    }
    unused |= {"model.language_model.layers.5.self_attn.k_proj.weight": torch.ones(32, 64)}
    save_file(renamed | unused, folder / "model.safetensors")
    path = folder / "config.json"
    text = json.loads(path.read_text())
    path.write_text(json.dumps({"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text}))
    assert (Paged(folder).run(tokens(), [17]) - theirs).abs().max() <= 1e-4


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_a_checkpoint_that_reads_images_runs_on_text(folder: Path, prefix: str) -> None:
    """Under either of the names that versions of transformers have saved."""
    text = {**COMMON, **GEMMA, "num_hidden_layers": 7}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": 8}
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    config._attn_implementation = "eager"
    theirs = expected(save_model(folder, transformers.Gemma3ForConditionalGeneration(config)), tokens())
    weights = load_file(folder / "model.safetensors")
    assert "language_model.model.norm.weight" in weights
    renamed = {name.replace("language_model.model.", prefix): weight for name, weight in weights.items()}
    save_file(renamed, folder / "model.safetensors")
    assert (Paged(folder).run(tokens(), [17]) - theirs).abs().max() <= 1e-4


def test_ministral_3_runs_from_its_checkpoint_that_reads_images(folder: Path) -> None:
    text = {
        **COMMON,
        "head_dim": 16,
        "model_type": "ministral3",
        "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.7},
    }
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": 8, "head_dim": 8}
    config = transformers.Mistral3Config(text_config=text, vision_config=vision, tie_word_embeddings=False)
    config._attn_implementation = "eager"
    theirs = expected(save_model(folder, transformers.Mistral3ForConditionalGeneration(config)), tokens())
    assert (Paged(folder).run(tokens(), [17]) - theirs).abs().max() <= 1e-4


def test_llama_4_runs_from_its_checkpoint_that_reads_images(folder: Path) -> None:
    theirs = expected(save(folder, "Llama4Text", **LLAMA4, attention_chunk_size=12), tokens())
    weights = load_file(folder / "model.safetensors")
    renamed = {f"language_model.{name}": weight for name, weight in weights.items()}
    unused = {
        "vision_model.layernorm_pre.weight": torch.ones(4),
        "multi_modal_projector.linear_1.weight": torch.ones(4),
    }
    save_file(renamed | unused, folder / "model.safetensors")
    path = folder / "config.json"
    text = json.loads(path.read_text())
    written = {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": text,
    }
    path.write_text(json.dumps(written))
    assert (Paged(folder).run(tokens(), [17]) - theirs).abs().max() <= 1e-4


@pytest.mark.parametrize("experts", [False, True])
def test_hybrids_that_read_images_run_on_text(folder: Path, experts: bool) -> None:
    name = "Qwen3_5Moe" if experts else "Qwen3_5"
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
    }
    text = {**COMMON, **DELTA, **(QWEN_MOE if experts else {})}
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config=vision, tie_word_embeddings=not experts
    )
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    theirs = expected(save_model(folder, model), tokens())
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"mtp.layers.0.eh_proj.weight": torch.ones(4, 4)}, folder / "model.safetensors")
    assert (Paged(folder).run(tokens(), [17]) - theirs).abs().max() <= 1e-4


def test_layers_that_predict_further_tokens_are_left_out(folder: Path) -> None:
    """As GLM-4.5's checkpoints have one after the last."""
    theirs = expected(save(folder, "Glm4Moe", **GLM_MOE, num_nextn_predict_layers=1), tokens())
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"model.layers.3.eh_proj.weight": torch.ones(4, 4)}, folder / "model.safetensors")
    assert (Paged(folder).run(tokens(), [17]) - theirs).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        one
        for one in CASES
        if one.id
        in ("glm-4", "cohere-2", "ernie-4.5", "granite", "apertus", "starcoder2", "youtu", "minicpm3")
    ],
)
def test_int8_stays_near_plain_weights(folder: Path, family: str, changes: dict[str, Any]) -> None:
    """Queries and keys whose rows change places take their scales with them."""
    theirs = expected(save(folder, family, **changes), tokens())
    ours = Paged(folder, quantization="int8").run(tokens(), [17])
    assert torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.99


def test_a_context_that_stays_short_has_the_short_rotation(folder: Path) -> None:
    """As in transformers, contexts up to what Phi-3 was trained for turn otherwise; here a server's limit decides."""
    model = save(folder, "Phi3", rope_parameters=LONGROPE, original_max_position_embeddings=32)
    theirs = expected(model, tokens(32))
    assert (Paged(folder, max_model_len=32).run(tokens(32), []) - theirs).abs().max() <= 1e-4
    assert (Paged(folder).run(tokens(32), []) - theirs).abs().max() > 1e-2


def test_every_architecture_has_a_case() -> None:
    tested = {f"{one.values[0].removesuffix('Text')}ForCausalLM" for one in CASES}
    others = {
        "Gemma3ForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
        "Llama4ForConditionalGeneration",
        "Gemma3nForConditionalGeneration",
        "Ernie4_5_ForCausalLM",
    }
    others |= {"KimiK2ForCausalLM"}
    others |= {"Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"}
    assert tested | others == set(FAMILIES)
