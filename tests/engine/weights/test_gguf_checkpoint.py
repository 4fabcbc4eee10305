"""Models from GGUF files against the same ones from safetensors, and against transformers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type

from engine.errors import ModelUnavailable, UnsupportedModel
from engine.layers.rope import Rope
from engine.models.registry import read_config
from engine.weights import dequantize
from engine.weights.gguf import Gguf, GgufTensor
from engine.weights.gguf_checkpoint import GgufCheckpoint
from engine.weights.gguf_config import config_json
from engine.weights.gguf_folder import as_folder
from engine.weights.source import locate
from engine.worker.device import pick_dtype, pick_threads
from engine.worker.memory import predict_weights
from tests.engine.models.hub import Paged, expected, save
from tests.engine.models.test_families import EXPERTS, GEMMA, GRANITE, LLAMA3, LONGROPE, WINDOW, YARN, tokens
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
    pytest.param("Gemma", {"head_dim": 24}, {}, id="gemma"),
    pytest.param("SmolLM3", {"num_hidden_layers": 5}, {}, id="smollm3"),
    pytest.param("Olmo2", {}, {}, id="olmo-2"),
    pytest.param("Granite", GRANITE, {}, id="granite"),
    pytest.param("Glm4", {"head_dim": 16}, {"rope__dimension_count": 8}, id="glm-4"),
    pytest.param("Cohere", {"logit_scale": 0.3}, {}, id="cohere"),
    pytest.param(
        "Cohere2", {"logit_scale": 0.3, "sliding_window": WINDOW, "num_hidden_layers": 5}, {}, id="cohere-2"
    ),
    pytest.param("Starcoder2", {}, {}, id="starcoder2"),
    pytest.param("Starcoder2", {"sliding_window": WINDOW, "use_bias": False}, {}, id="starcoder2-plain"),
    pytest.param("Ernie4_5", {"head_dim": 24}, {}, id="ernie-4.5"),
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
    folder = as_folder(file)
    assert read_config(folder)["model_type"] == model.config.model_type
    ours = Paged(folder).run(tokens(), [19])
    assert theirs.std() > 0.3
    assert (ours - theirs).abs().max() <= 1e-4
    assert (ours - Paged(tmp_path / "model").run(tokens(), [19])).abs().max() <= 1e-5


def test_llama_3s_factors_and_phi_3s_are_tensors(tmp_path: Path) -> None:
    """And Gemma 3 stretches only the layers that see everything."""
    model = save(tmp_path / "llama", "Llama", rope_parameters=LLAMA3)
    rope = Rope(16, 500.0, 128, 32, LLAMA3)
    factors = Rope(16, 500.0, 128, 128).frequencies(0) / rope.frequencies(0)
    file = gguf_files.write(tmp_path / "l.gguf", tmp_path / "llama", tensors={"rope_freqs.weight": factors})
    assert factors.max() == 8
    assert (Paged(as_folder(file)).run(tokens(), [19]) - expected(model, tokens())).abs().max() <= 1e-4

    model = save(tmp_path / "phi", "Phi3", rope_parameters=LONGROPE, original_max_position_embeddings=32)
    pair = {
        f"rope_factors_{kind}.weight": torch.tensor(LONGROPE[f"{kind}_factor"]) for kind in ("long", "short")
    }
    file = gguf_files.write(
        tmp_path / "p.gguf", tmp_path / "phi", tensors=pair, rope__scaling__original_context_length=32
    )
    assert (Paged(as_folder(file)).run(tokens(), [19]) - expected(model, tokens())).abs().max() <= 1e-4

    linear = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0}
    plain = {"rope_type": "default", "rope_theta": 50.0}
    ropes = {"full_attention": linear, "sliding_attention": plain}
    changes = {**GEMMA, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}
    model = save(tmp_path / "gemma", "Gemma3Text", **changes, rope_parameters=ropes)
    scaling = {"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}
    file = gguf_files.write(tmp_path / "g.gguf", tmp_path / "gemma", **scaling)
    assert (Paged(as_folder(file)).run(tokens(), [19]) - expected(model, tokens())).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("received", "rope"),
    [
        ({}, {"rope_type": "default"}),
        ({"factor": 3.0}, {"rope_type": "linear", "factor": 3.0}),
        ({"type": "none", "factor": 3.0}, {"rope_type": "default"}),
        ({"type": "linear", "factor": 3.0}, {"rope_type": "linear", "factor": 3.0}),
        ({"type": "linear"}, {"rope_type": "default"}),
        (
            {"type": "yarn", "factor": 4.0, "attn_factor": 0.5},
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.5 * (0.1 * math.log(4) + 1)},
        ),
        ({"type": "none", "attn_factor": 0.5}, "attn_factor to 0.5.*'none'"),
        ({"type": "linear", "factor": 2.0, "attn_factor": 0.5}, "attn_factor to 0.5.*'linear'"),
        ({"attn_factor": 1.0}, {"rope_type": "default"}),
    ],
)
def test_a_rotation_is_scaled_as_the_file_says(
    tmp_path: Path, received: dict[str, Any], rope: dict[str, Any] | str
) -> None:
    save(tmp_path / "model", "Llama")
    metadata = {f"rope__scaling__{key}": value for key, value in received.items()}
    file = Gguf(gguf_files.write(tmp_path / "m.gguf", tmp_path / "model", **metadata))
    if isinstance(rope, str):
        with pytest.raises(UnsupportedModel, match=rope):
            config_json(file)
        return
    found = config_json(file)["rope_parameters"]
    assert {key: found[key] for key in found if key in {*rope, "rope_type", "factor"}} == rope


@pytest.mark.parametrize(
    ("architecture", "missing"),
    [("deepseek2", "latent attention"), ("granitehybrid", "Mamba"), ("gpt-oss", "safetensors")],
)
def test_a_known_architecture_is_refused_with_what_is_missing(
    tmp_path: Path, architecture: str, missing: str
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", architecture)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        UnsupportedModel, match=f"'{architecture}', which is not supported: it needs.*{missing}"
    ):
        config_json(Gguf(tmp_path / "m.gguf"))


def test_an_olmo_3_is_refused_as_its_file_does_not_say_enough(tmp_path: Path) -> None:
    save(tmp_path / "model", "Olmo2")
    file = gguf_files.write(tmp_path / "m.gguf", tmp_path / "model", attention__sliding_window=9)
    with pytest.raises(UnsupportedModel, match="OLMo 3"):
        config_json(Gguf(file))


def test_more_blocks_than_tensors_are_said_so(tmp_path: Path) -> None:
    save(tmp_path / "model", "Llama")
    file = gguf_files.write(tmp_path / "m.gguf", tmp_path / "model", block_count=2**31)
    with pytest.raises(UnsupportedModel, match="2147483648 blocks"):
        config_json(Gguf(file))


def test_gemmas_layers_slide_as_the_file_says(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    model = save(tmp_path / "m", "Gemma3Text", **{**GEMMA, "query_pre_attn_scalar": 16}, layer_types=kinds)
    pattern = {"attention__sliding_window_pattern": [True, False, False]}
    file = gguf_files.write(tmp_path / "g.gguf", tmp_path / "m", **pattern)
    assert (Paged(as_folder(file)).run(tokens(), []) - expected(model, tokens())).abs().max() <= 1e-4


def test_an_early_gemma_2_has_the_window_that_all_have(tmp_path: Path) -> None:
    changes = {**GEMMA, "query_pre_attn_scalar": 16, "sliding_window": 4096}
    model = save(tmp_path / "m", "Gemma2", **changes)
    file = gguf_files.write(tmp_path / "g.gguf", tmp_path / "m", attention__sliding_window=None)
    assert (Paged(as_folder(file)).run(tokens(), []) - expected(model, tokens())).abs().max() <= 1e-4


def test_experts_may_be_tensors_of_their_own(tmp_path: Path) -> None:
    """As files were before 2024."""
    model = save(tmp_path / "m", "Mixtral", num_local_experts=4, num_experts_per_tok=2)
    file = gguf_files.write(tmp_path / "m.gguf", tmp_path / "m", unstacked=True)
    assert (Paged(as_folder(file)).run(tokens(), []) - expected(model, tokens())).abs().max() <= 1e-4


def test_a_model_in_parts_is_one_and_left_over_tensors_are_named(tmp_path: Path) -> None:
    model = save(tmp_path / "m", "Qwen3", head_dim=16)
    gguf_files.write(tmp_path / "q.gguf", tmp_path / "m", parts=2)
    assert len(list(tmp_path.glob("*.gguf"))) == 2
    folder = locate(str(tmp_path))
    assert folder == locate(str(tmp_path / "q-00001-of-00002.gguf"))
    assert (Paged(folder).run(tokens(), []) - expected(model, tokens())).abs().max() <= 1e-4
    file = gguf_files.write(tmp_path / "o.gguf", tmp_path / "m", tensors={"blk.0.odd.weight": torch.ones(3)})
    with pytest.raises(UnsupportedModel, match=r"does not use: blk\.0\.odd\.weight"):
        Paged(as_folder(file))


@pytest.mark.parametrize("kind", list(Type), ids=lambda kind: kind.name)
def test_every_type_is_read_as_the_package_reads_it_or_refused_by_name(kind: Type) -> None:
    data = gguf_files.random_blocks(kind, 6, 512)
    stored = GgufTensor(kind, (6, 512), data)
    try:
        theirs = gguf.quants.dequantize(data, kind)
    except NotImplementedError:
        if kind != Type.F64:
            with pytest.raises(UnsupportedModel, match=f"tensor x is of the type {kind.name}, "):
                dequantize.check("x", kind)
        return
    dequantize.check("x", kind)
    theirs = torch.from_numpy(theirs.copy())
    assert torch.equal(dequantize.plain(stored, torch.float32).nan_to_num(), theirs.nan_to_num())
    if kind in dequantize.GROUPED:
        # The same sums in another order.
        assert torch.allclose(dequantize.grouped(stored).weight(), theirs, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1])
def test_four_bits_stay_the_same_codes(tmp_path: Path, kind: Type) -> None:
    """Rows of queries and keys are turned back as codes: what is computed with are the file's own values."""
    save(tmp_path / "m", "Llama")
    file = gguf_files.write(tmp_path / "q.gguf", tmp_path / "m", lambda name: kind)
    checkpoint = GgufCheckpoint(file, torch.device("cpu"), torch.float32)
    for part, shape in (("q_proj", (64, 64)), ("k_proj", (32, 64)), ("o_proj", (64, 64))):
        name = f"model.layers.1.self_attn.{part}"
        assert checkpoint.holds_groups(name)
        groups = checkpoint.groups(name, *shape)
        assert groups.size == 32
        assert torch.allclose(groups.weight(), checkpoint.take(f"{name}.weight", shape), rtol=1e-6, atol=1e-6)


def dequantized(tmp_path: Path, kind: Type) -> Path:
    """The same values in F32."""
    file = gguf_files.write(tmp_path / "q.gguf", tmp_path / "m", lambda name: kind)

    def rounded(tensor: torch.Tensor) -> torch.Tensor:
        data = gguf.quants.quantize(np.ascontiguousarray(tensor.float().numpy()), kind)
        return torch.from_numpy(gguf.quants.dequantize(data, kind).copy())

    plain = gguf_files.write(tmp_path / "f.gguf", tmp_path / "m", change=rounded)
    assert plain.stat().st_size > 2 * file.stat().st_size
    return plain


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q8_0])
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_quantized_files_give_the_logits_of_their_values(tmp_path: Path, family: str, kind: Type) -> None:
    """4 bits are kept, with scales in bfloat16; 8 bits are rounded anew, with a scale a row."""
    save(tmp_path / "m", family, **({"head_dim": 16} if family == "Qwen3" else {}))
    plain = dequantized(tmp_path, kind)
    theirs = Paged(as_folder(plain)).run(tokens(), [])
    ours = Paged(as_folder(tmp_path / "q.gguf")).run(tokens(), [])
    assert not torch.equal(ours, theirs)
    near = torch.nn.functional.cosine_similarity(ours, theirs)
    assert near.min() > 0.997 and near.mean() > 0.999


def test_a_quantization_that_is_asked_for_goes_before_the_files(tmp_path: Path) -> None:
    save(tmp_path / "m", "Llama")
    plain = dequantized(tmp_path, Type.Q4_0)
    for method in ("int8", "int4-64"):
        ours = Paged(as_folder(tmp_path / "q.gguf"), quantization=method).run(tokens(), [])
        assert torch.equal(ours, Paged(as_folder(plain), quantization=method).run(tokens(), []))


def test_the_runners_drafts_know_gguf(tmp_path: Path) -> None:
    save(tmp_path / "m", "Llama", tie_word_embeddings=True)
    cpu = torch.device("cpu")
    file = as_folder(gguf_files.write(tmp_path / "f.gguf", tmp_path / "m"))
    assert predict_weights(file, torch.float32, None) == predict_weights(tmp_path / "m", torch.float32, None)
    assert predict_weights(file, torch.bfloat16, "int4") < predict_weights(file, torch.bfloat16, "int8")
    assert (pick_dtype("auto", file, cpu), pick_threads(file)) == (torch.float32, 1)
    assert pick_dtype("auto", file, torch.device("cuda")) == torch.float32
    small = as_folder(gguf_files.write(tmp_path / "q.gguf", tmp_path / "m", lambda name: Type.Q4_0))
    assert pick_dtype("auto", small, torch.device("cuda")) == torch.bfloat16
    assert predict_weights(small, torch.bfloat16, None) < predict_weights(small, torch.bfloat16, "int8")


def test_the_folder_is_made_once_and_anew_when_the_file_changes(tmp_path: Path) -> None:
    save(tmp_path / "m", "Llama")
    file = gguf_files.write(tmp_path / "one.gguf", tmp_path / "m")
    first = as_folder(file)
    made = (first / "config.json").stat().st_mtime_ns
    assert first == locate(str(file)) == locate(str(tmp_path))
    assert (first / "config.json").stat().st_mtime_ns == made
    assert (first / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    assert sorted(path.name for path in first.iterdir())[-2:] == ["tokenizer.json", "tokenizer_config.json"]
    gguf_files.write(file, tmp_path / "m", context_length=64)
    assert as_folder(file) != first


def test_a_cache_that_cannot_be_written_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "m", "Llama")
    file = gguf_files.write(tmp_path / "one.gguf", tmp_path / "m")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(ModelUnavailable, match="Set XDG_CACHE_HOME"):
        as_folder(file)
