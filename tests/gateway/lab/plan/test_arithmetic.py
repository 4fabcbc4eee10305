"""Published figures: parameters, keys and values, speed, cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.lab.plan.chips import Chip, read_chips
from gateway.lab.plan.config_json import read_config
from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.model import read_model
from gateway.lab.plan.money import break_evens, usd_per_million
from gateway.lab.plan.numbers import parse_number
from gateway.lab.plan.precision import kv_layer_bytes, precision
from gateway.lab.plan.step_clock import IDEAL, step_clock
from gateway.lab.plan.workload import Volume

LLAMA2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "torch_dtype": "float16",
}
LLAMA3_70B = {
    **LLAMA2_7B,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
}
MIXTRAL = {
    **LLAMA2_7B,
    "model_type": "mixtral",
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8"},
}
H100 = Chip("h100", 80e9, 3.35e12, {"bf16": 989e12, "fp8": 1979e12}, 2.0)


@pytest.mark.parametrize(
    ("config", "parameters", "active"),
    [
        pytest.param(LLAMA2_7B, 6.74e9, 6.61e9, id="llama-2-7b"),
        pytest.param(LLAMA3_70B, 70.6e9, 69.5e9, id="llama-3-70b"),
        pytest.param(MIXTRAL, 46.7e9, 12.75e9, id="mixtral-8x7b"),
        pytest.param(DEEPSEEK_V3, 671e9, 36.6e9, id="deepseek-v3"),
    ],
)
def test_parameters_are_the_published_ones(config: dict[str, Any], parameters: float, active: float) -> None:
    """Active ones without the embedding, which is looked up."""
    shape = read_config(config, "model")
    assert shape.parameters == pytest.approx(parameters, rel=0.003)
    assert shape.active == pytest.approx(active, rel=0.003)


def test_keys_and_values() -> None:
    assert read_config(LLAMA2_7B, "7b").kv_bytes(4096, 2) == 2_147_483_648  # 2.15 GB
    assert read_config(LLAMA3_70B, "70b").kv_bytes(1, 2) == 327_680  # 327 kB
    assert read_config(DEEPSEEK_V3, "v3").kv_bytes(1, 2) == 61 * (512 + 64) * 2
    windowed = read_config({**LLAMA2_7B, "model_type": "mistral", "sliding_window": 1024}, "mistral")
    assert windowed.kv_bytes(4096, 2) == windowed.kv_bytes(1024, 2)


def test_one_stream_is_as_fast_as_the_weights_are_read() -> None:
    """7B in 16 bits are 14 GB, which 3.35 TB/s read in 4.2 ms: 238 tokens a second."""
    shape = read_model("params=7B,layers=32,kv_heads=32,head_dim=128")
    layer = kv_layer_bytes("fp16", shape.attention.kept, 128, None)
    clock = step_clock(shape, H100, 1, precision("fp16"), layer, IDEAL)
    assert 1 / clock.seconds(clock.decode(1, 0)) == pytest.approx(238, rel=0.01)
    # Behind 4,096 tokens 2.15 GB more are read.
    assert 1 / clock.seconds(clock.decode(1, 4096)) == pytest.approx(3.35e12 / (14e9 + 2.147e9), rel=0.001)
    # The batch from which arithmetic takes longer than reading: FLOPs / bandwidth, 16 bits at 2 FLOPs.
    weights, products = clock.bounds(clock.decode(989 / 3.35, 0))[0]
    assert weights == pytest.approx(products, rel=0.01)


def test_a_mixture_reads_the_experts_that_some_token_takes() -> None:
    shape = read_config(MIXTRAL, "mixtral")
    clock = step_clock(shape, H100, 1, precision("bf16"), 4096, IDEAL)
    one, many = (clock.bounds(clock.decode(batch, 0))[0][0] for batch in (1, 64))
    assert one * 3.35e12 == pytest.approx(2 * shape.active, rel=0.001)
    assert many * 3.35e12 == pytest.approx(2 * (shape.parameters - shape.embedding), rel=0.001)


def test_two_dollars_an_hour() -> None:
    assert usd_per_million(2.0, 1000) == pytest.approx(0.56, abs=0.005)


def test_break_even_is_where_both_cost_the_same() -> None:
    volume = Volume(1e6, 1e9, 2e8, source="test")
    (row,) = break_evens(["gpt-4o-mini"], volume, 135.0)
    assert row.usd_per_month == pytest.approx(1000 * row.input + 200 * row.output)
    assert row.share * row.usd_per_month == pytest.approx(135.0)
    with pytest.raises(PlanError, match="no price of that model; there are gpt-4o-mini"):
        break_evens(["gpt-4o-min"], volume, 1.0)


def test_every_chip_that_ships_says_where_its_figures_are_from() -> None:
    for chip in read_chips(None).values():
        assert chip.source.startswith("https://") and chip.price_source.startswith("https://")
        assert chip.read and chip.usd_per_hour > 0
        # A hundred to a thousand operations for each byte: neither is off by a thousand.
        assert 100 < chip.flops["bf16"] / chip.bandwidth < 1000


@pytest.mark.parametrize(
    ("text", "value"), [("7B", 7e9), ("80GB", 8e10), ("1GiB", 2**30), ("3.35T", 3.35e12), ("4096", 4096.0)]
)
def test_numbers(text: str, value: float) -> None:
    assert parse_number(text, "B") == value


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "no JSON object"),
        (json.dumps({**LLAMA2_7B, "hidden_size": None}), "there is no 'hidden_size'"),
        (json.dumps({**LLAMA2_7B, "num_hidden_layers": "many"}), "'num_hidden_layers' is 'many'"),
        (json.dumps({**LLAMA2_7B, "num_key_value_heads": 5}), "no multiple of num_key_value_heads"),
        (json.dumps({**LLAMA2_7B, "layer_types": ["odd"] * 32}), "layer_types has odd"),
        (json.dumps({**LLAMA2_7B, "quantization_config": {"quant_method": "new"}}), "give --quantization"),
    ],
)
def test_a_config_that_cannot_be_used_says_why(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(PlanError, match=said):
        read_model(str(tmp_path))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere", "no such file or folder"),
        ("params=7B", "layers, kv_heads, head_dim must be given"),
        ("params=7B,layer=32", "'layer=32' is not one of params"),
        ("params=7X,layers=32,kv_heads=8,head_dim=128", "'7X' is no number"),
        ("params=7B,active=9B,layers=32,kv_heads=8,head_dim=128", "active parameters of 7B"),
    ],
)
def test_numbers_that_are_no_model_say_why(given: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        read_model(given)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("chips: {mine: {memory: 10GB}}", "there is no bandwidth, flops, usd_per_hour"),
        ("chips: {mine: {memory: 10GB, bandwidth: 1T, flops: 3T, usd_per_hour: 1}}", "flops must have bf16"),
        ("chips: {mine: {memory: x, bandwidth: 1T, flops: {bf16: 3T}, usd_per_hour: 1}}", "'x' is no number"),
        ("mine", "there must be 'chips:'"),
    ],
)
def test_rows_of_ones_own_that_are_wrong_say_why(tmp_path: Path, rows: str, said: str) -> None:
    (tmp_path / "own.yaml").write_text(rows)
    with pytest.raises(PlanError, match=said):
        read_chips(str(tmp_path / "own.yaml"))
