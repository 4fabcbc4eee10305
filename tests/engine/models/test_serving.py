"""Every family in a folder with a tokenizer, from text to text, through the runner and the scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.worker.runner import Runner
from tests.engine.models.hub import GEMMA3N, LATENT, LATENT_MOE, LLAMA4, greedy, save
from tests.engine.steps import run
from tests.engine.tiny import make_tokenizer

GEMMA = {"head_dim": 16, "sliding_window": 9}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
DELTA = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 9},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Phi3": {},
    "Gemma2": GEMMA,
    "Gemma3Text": GEMMA,
    "Gemma": {"head_dim": 16},
    "SmolLM3": {"no_rope_layer_interval": 2},
    "Olmo2": {},
    "Olmo3": {"sliding_window": 9},
    "Exaone4": {"sliding_window": 9, "sliding_window_pattern": 2},
    "Granite": {"residual_multiplier": 0.3, "embedding_multiplier": 3.0},
    "Glm4": {"head_dim": 16},
    "Ministral": {"sliding_window": 9, "head_dim": 16},
    "Cohere2": {"sliding_window": 9, "logit_scale": 0.5},
    "Starcoder2": {},
    "SeedOss": {"head_dim": 16},
    "Apertus": {},
    "HunYuanDenseV1": {"head_dim": 16},
    "Ernie4_5": {"head_dim": 16},
    "Mixtral": {"num_local_experts": 4},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 48},
    "Qwen3Moe": EXPERTS,
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "Phimoe": {"num_local_experts": 4, "router_jitter_noise": 0.3},
    "Ernie4_5_Moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32},
    "HunYuanMoEV1": {"head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "GptOss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 9},
    "DeepseekV2": {**LATENT_MOE, "q_lora_rank": None},
    "DeepseekV3": LATENT_MOE,
    "Glm4MoeLite": LATENT_MOE,
    "MiniCPM3": {**LATENT, "scale_emb": 3},
    "Youtu": LATENT,
    "Gemma3nText": GEMMA3N,
    "Llama4Text": {**LLAMA4, "attention_chunk_size": 16},
    "Lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "Lfm2Moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 1,
    },
    "Bamba": {"mamba_n_heads": 4, "mamba_d_state": 24, "attn_layer_indices": [1]},
    "Qwen3Next": {**EXPERTS, **DELTA, "shared_expert_intermediate_size": 48},
    "Qwen3_5Text": DELTA,
    "Glm4Moe": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "head_dim": 16,
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_transformers(tmp_path: Path, family: str) -> None:
    model = save(tmp_path, family, **FAMILIES[family])
    tokenizer = make_tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    runner = Runner(EngineConfig(model=tmp_path, kv_cache_blocks=60, threads=1, max_model_len=100))
    runner.warm_up()
    prompts = [tokenizer.encode(text).ids for text in ("bal gim nor tas", "pel", "dos rut " * 4)]
    params = SamplingParams(max_tokens=12, temperature=0)
    outcome = run(runner, [(prompt, params) for prompt in prompts], sequences=4, budget=16, late=1)
    for i, prompt in enumerate(prompts):
        answer = outcome.tokens[i]
        assert answer == greedy(model, prompt, answer)
        assert len(answer) == 12
        assert isinstance(tokenizer.decode(answer), str)
