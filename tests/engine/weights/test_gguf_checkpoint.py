"""Models from GGUF files against the same ones from safetensors, and against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.weights.gguf_folder import as_folder
from tests.engine.models.hub import Paged, expected, save
from tests.engine.models.test_families import EXPERTS, GEMMA, WINDOW, YARN, tokens
from tests.engine.tiny import make_tokenizer
from tests.engine.weights import gguf_files

CASES = [
    pytest.param("Llama", {}, {}, id="llama"),
    pytest.param("Llama", {"tie_word_embeddings": True, "head_dim": 24}, {}, id="llama-tied-head-dim"),
    pytest.param("Llama", {"attention_bias": True, "mlp_bias": True}, {}, id="llama-biases"),
    pytest.param(
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
        {"rope__scaling__type": "linear", "rope__scaling__factor": 3.0},
        id="llama-linear",
    ),
    pytest.param("Mistral", {"sliding_window": WINDOW}, {}, id="mistral"),
    pytest.param("Qwen2", {"num_key_value_heads": 1}, {}, id="qwen2"),
    pytest.param(
        "Qwen2",
        {"rope_parameters": YARN},
        {
            "rope__scaling__type": "yarn",
            "rope__scaling__factor": 4.0,
            "rope__scaling__original_context_length": 32,
        },
        id="qwen2-yarn",
    ),
    pytest.param("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}, {}, id="qwen3"),
    pytest.param("Qwen3Moe", {**EXPERTS, "norm_topk_prob": True}, {}, id="qwen3-moe"),
    pytest.param("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}, {}, id="mixtral"),
    pytest.param("Phi3", {"sliding_window": WINDOW}, {}, id="phi-3"),
    pytest.param(
        "Phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}},
        {"rope__dimension_count": 8},
        id="phi-3-partial",
    ),
    pytest.param(
        "Gemma2", {**GEMMA, "query_pre_attn_scalar": 16, "final_logit_softcapping": 3.0}, {}, id="gemma-2"
    ),
    pytest.param(
        "Gemma3Text", {**GEMMA, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}, {}, id="gemma-3"
    ),
]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of one's own, and a tokenizer beside the file."""
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(("family", "changes", "metadata"), CASES)
def test_logits_are_those_of_the_original(
    tmp_path: Path, family: str, changes: dict[str, Any], metadata: dict[str, Any]
) -> None:
    model = save(tmp_path / "model", family, **changes)
    file = gguf_files.write(tmp_path / "m.gguf", tmp_path / "model", **metadata)
    theirs = expected(model, tokens())
    ours = Paged(as_folder(file)).run(tokens(), [19])
    assert theirs.std() > 0.3
    assert (ours - theirs).abs().max() <= 1e-4
    assert (ours - Paged(tmp_path / "model").run(tokens(), [19])).abs().max() <= 1e-5
