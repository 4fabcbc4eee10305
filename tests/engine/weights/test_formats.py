"""Quantized checkpoints, against words made by hand and whole models written in their layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.core.plan import Plan, ScheduledRequest
from engine.errors import UnsupportedModel
from engine.evaluation.samples import exam
from engine.evaluation.ways import FULL, Way, predict, weight_bytes
from engine.kv_cache import KVCache
from engine.models.registry import load_model
from engine.parallel.group import TPGroup
from engine.weights.awq import Awq
from engine.weights.formats import check, detect_format
from engine.weights.fp8 import Fp8
from engine.weights.gptq import Gptq
from engine.weights.int8 import Int8Channels
from engine.weights.quantize import ChannelWeight, Float8Weight, Int4Weight
from engine.weights.weight_loader import WeightLoader
from engine.worker.batch import BatchBuilder
from kernels.native import float8
from tests.engine.tiny import SHAPE, make_weights, write_model
from tests.engine.weights.packed import write

CPU = torch.device("cpu")


class Tensors(dict[str, Tensor]):
    """A checkpoint in memory."""

    def raw(self, name: str) -> Tensor:
        return self[name]

    def ignore(self, name: str) -> None:
        self.pop(name, None)


def word(*nibbles: int) -> int:
    """Eight nibbles, the first in the lowest bits, as a signed number of 32 bits."""
    value = sum(nibble << 4 * place for place, nibble in enumerate(nibbles))
    return value - 2**32 if value >= 2**31 else value


def test_awq_value_by_value() -> None:
    """One word an input: its nibbles are outputs 0, 2, 4, 6, 1, 3, 5, 7."""
    words = [[word(i % 16, 2, 4, 6, 1, 3, 5, 15)] for i in range(32)]
    tensors = Tensors(
        {
            "x.qweight": torch.tensor(words, dtype=torch.int32),
            "x.qzeros": torch.tensor([[word(8, 0, 0, 0, 7, 0, 0, 15)]], dtype=torch.int32),
            "x.scales": torch.tensor([[0.5, 1, 2, 1, 1, 1, 1, 0.25]], dtype=torch.float16),
        }
    )
    read = Awq({"group_size": 32}).read(tensors, "x", 8, 32)
    weight = read.weight()
    assert weight[0].tolist() == [(i % 16 - 8) * 0.5 for i in range(32)]
    assert weight[:, 3].tolist() == [-2.5, -6.0, 4.0, 3.0, 4.0, 5.0, 6.0, 0.0]


@pytest.mark.parametrize(("layout", "less"), [("gptq", 1), ("gptq_v2", 0)])
def test_gptq_value_by_value(layout: str, less: int) -> None:
    """One word for eight inputs of an output; zero points are outputs side by side, one less in the first format."""
    words = [[word(*(range(8)))] * 7 + [word(*range(8, 16))] for _ in range(4)]
    zeros = [word(*((zero - less) % 16 for zero in (8, 0, 1, 2, 3, 4, 5, 15)))]
    tensors = Tensors(
        {
            "x.qweight": torch.tensor(words, dtype=torch.int32),
            "x.qzeros": torch.tensor([zeros], dtype=torch.int32),
            "x.scales": torch.tensor([[0.5, 1, 1, 1, 1, 1, 1, 2]], dtype=torch.float16),
        }
    )
    read = Gptq({"group_size": 32, "checkpoint_format": layout}).read(tensors, "x", 8, 32)
    assert isinstance(read, Int4Weight)
    weight = read.weight()
    assert weight[:, 0].tolist() == [-4.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -14.0]
    assert weight[0, :8].tolist() == [-4.0, -3.5, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5]
    assert weight[7, 8:16].tolist() == [-14.0, -12.0, -10.0, -8.0, -6.0, -4.0, -2.0, 0.0]


def test_gptq_of_eight_bits() -> None:
    words = torch.tensor([[0x01020304], [0x7F000010]] * 4, dtype=torch.int32).expand(8, 4).contiguous()
    zeros = torch.tensor([[0x00_0F_00_FF]], dtype=torch.int32)
    scales = torch.tensor([[1, 1, 1, 0.5]], dtype=torch.float16)
    tensors = Tensors({"x.qweight": words, "x.qzeros": zeros, "x.scales": scales})
    weight = Gptq({"bits": 8, "group_size": 32}).read(tensors, "x", 4, 32)
    assert isinstance(weight, Tensor)
    assert weight[0, :8].tolist() == [4, 3, 2, 1, 16, 0, 0, 127]
    assert weight[2, :4].tolist() == [4 - 16, 3 - 16, 2 - 16, 1 - 16]
    assert weight[3, :4].tolist() == [1.5, 1.0, 0.5, 0.0]


def test_gptq_with_inputs_ordered_by_their_activations() -> None:
    group = torch.arange(64).flip(0) // 32
    words = torch.full((8, 8), word(*range(8)), dtype=torch.int32)
    tensors = Tensors(
        {
            "x.qweight": words,
            "x.qzeros": torch.tensor([[word(*[7] * 8)]] * 2, dtype=torch.int32),
            "x.scales": torch.tensor([[1.0] * 8, [10.0] * 8], dtype=torch.float16),
            "x.g_idx": group.int(),
        }
    )
    read = Gptq({"group_size": 32, "desc_act": True}).read(tensors, "x", 8, 64)
    assert isinstance(read, Int4Weight) and read.order is not None
    wanted = torch.tensor([(i % 8 - 8) * (1.0 if group[i] == 0 else 10.0) for i in range(64)])
    assert torch.equal(read.weight(), wanted.expand(8, 64))
    tensors["x.g_idx"] = torch.zeros(64, dtype=torch.int32)
    with pytest.raises(UnsupportedModel, match="g_idx are not of one size"):
        Gptq({"group_size": 32, "desc_act": True}).read(tensors, "x", 8, 64)


def test_fp8_scales_for_all_for_each_output_and_for_blocks() -> None:
    codes = torch.randn(6, 10).to(torch.float8_e4m3fn)
    for scale in (torch.tensor(2.0), torch.tensor([2.0]), torch.full((6, 1), 2.0), torch.full((6,), 2.0)):
        read = Fp8({}).read(Tensors({"x.weight": codes, "x.weight_scale": scale}), "x", 6, 10)
        assert torch.equal(read.weight(), codes.float() * 2)
    blocks = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    read = Fp8({"weight_block_size": [4, 4]}).read(
        Tensors({"x.weight": codes, "x.weight_scale_inv": blocks}), "x", 6, 10
    )
    rows, columns = torch.arange(6) // 4, torch.arange(10) // 4
    assert isinstance(read, Float8Weight)
    assert torch.equal(read.weight(), codes.float() * blocks[rows][:, columns])
    for shape in ((3,), (1, 6), (3, 2), (6, 1, 1), (2, 2)):
        with pytest.raises(UnsupportedModel, match="weight_scale has the shape"):
            Fp8({}).read(Tensors({"x.weight": codes, "x.weight_scale": torch.ones(shape)}), "x", 6, 10)


def test_fp8_blocks_as_compressed_tensors_has_them() -> None:
    """As many blocks as outputs: their number does not say what they are, their shape does."""
    group = {"weights": {"type": "float", "num_bits": 8, "strategy": "block", "block_structure": [4, 2]}}
    settings = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    codes = torch.randn(8, 8).to(torch.float8_e4m3fn)
    blocks = torch.arange(8.0).reshape(2, 4) + 1
    stored_format = detect_format({"quantization_config": settings})
    assert stored_format is not None
    read = stored_format.read(Tensors({"x.weight": codes, "x.weight_scale": blocks}), "x", 8, 8)
    rows, columns = torch.arange(8) // 4, torch.arange(8) // 2
    assert isinstance(read, Float8Weight)
    assert torch.equal(read.weight(), codes.float() * blocks[rows][:, columns])
    other = {"weights": {**group["weights"], "block_structure": [2, 2]}}
    with pytest.raises(UnsupportedModel, match="several sizes"):
        detect_format({"quantization_config": {**settings, "config_groups": {"0": group, "1": other}}})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes'"),
        ({"quant_method": "awq", "bits": 3}, "3 bits"),
        ({"quant_method": "awq", "version": "gemv"}, "'gemv'"),
        ({"quant_method": "awq", "group_size": 16}, "groups of 16"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits"),
        (
            {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}}},
            "transform_config",
        ),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "'marlin'"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"0": {"weights": {"type": "int", "num_bits": 4}}},
            },
            "type 'int' in 4 bits",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"0": {"weights": {"type": "int", "num_bits": 8, "strategy": "group"}}},
            },
            "'strategy': 'group'",
        ),
    ],
)
def test_what_is_not_read_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        detect_format({"quantization_config": settings})
    assert detect_format({}) is None


def test_methods_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="fp8 needs an NVIDIA GPU"):
        check("fp8", None, CPU)
    with pytest.raises(UnsupportedModel, match="int3 is not supported; these are: int8, w8a8, int4"):
        check("int3", None, CPU)
    with pytest.raises(UnsupportedModel, match="quantized already \\(AWQ\\)"):
        check("int8", Awq({}), CPU)
    check("int8", Fp8({}), CPU)


WIDE = {**SHAPE, "intermediate_size": 128, "attention_bias": False}


def logits(folder: Path, quantization: str | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """Of 20 tokens, [20, vocab]."""
    model = load_model(folder, CPU, dtype, quantization=quantization)
    cache = KVCache(model.kv_shape, 2, 16, CPU, dtype)
    tokens = list(range(30, 50))
    batch = BatchBuilder(cache, CPU).build(Plan([ScheduledRequest(0, tokens, 0, [0, 1], None, False)]))
    with torch.inference_mode():
        return model.logits(model.forward(batch.tokens, batch.positions, batch.attention, cache)).float()


def widened(folder: Path, into: Path, settings: dict[str, Any]) -> Path:
    """The checkpoint with its layers as plain weights."""
    write_model(into, WIDE)
    stored_format = detect_format({"quantization_config": settings})
    tensors = Tensors(load_file(folder / "model.safetensors"))
    assert stored_format is not None
    plain = {}
    for name, shape in ((name, t.shape) for name, t in make_weights(WIDE).items()):
        layer = name.removesuffix(".weight")
        if stored_format.holds(tensors, layer):
            read = stored_format.read(tensors, layer, *shape)
            plain[name] = read.weight() if isinstance(read, Int4Weight) else read
        else:
            plain[name] = tensors[name]
    save_file(plain, into / "model.safetensors")
    return into


@pytest.mark.parametrize("method", ["awq", "gptq"])
@pytest.mark.parametrize("size", [32, 64])
def test_a_whole_model_of_four_bits(method: str, size: int, tmp_path: Path) -> None:
    plain, packed = write_model(tmp_path / "plain", WIDE), tmp_path / "packed"
    packed.mkdir()
    write(plain, packed, method, size)
    settings = json.loads((packed / "config.json").read_text())["quantization_config"]
    wanted = logits(widened(packed, tmp_path / "wide", settings))
    # Products of four bits round to bfloat16.
    assert float((logits(packed) - wanted).norm() / wanted.norm()) < 0.02
    # And the model is not simply another one.
    assert 0.02 < float((wanted - logits(plain)).norm() / wanted.norm()) < 0.5
    with pytest.raises(UnsupportedModel, match="quantized already"):
        load_model(packed, CPU, torch.float32, quantization="int4")


def test_gptq_files_whose_parts_order_inputs_differently(tmp_path: Path) -> None:
    """Queries, keys and values then cannot be one product."""
    plain, packed = write_model(tmp_path / "plain", WIDE), tmp_path / "packed"
    packed.mkdir()
    write(plain, packed, "gptq", 32)
    tensors = load_file(packed / "model.safetensors")
    for i, part in enumerate("qkv"):
        order = torch.randperm(64, generator=torch.Generator().manual_seed(i))
        tensors[f"model.layers.0.self_attn.{part}_proj.g_idx"] = (order // 32).int()
    save_file(tensors, packed / "model.safetensors")
    settings = json.loads((packed / "config.json").read_text())["quantization_config"]
    wanted = logits(widened(packed, tmp_path / "wide", settings))
    assert float((logits(packed) - wanted).norm() / wanted.norm()) < 0.02


def test_layers_that_were_not_converted_are_plain(tmp_path: Path) -> None:
    plain, packed = write_model(tmp_path / "plain", WIDE), tmp_path / "packed"
    packed.mkdir()
    write(plain, packed, "awq", 32)
    tensors, kept = load_file(packed / "model.safetensors"), make_weights(WIDE)
    for layer in ("model.layers.0.self_attn.k_proj", "model.layers.1.mlp.down_proj"):
        for end in ("qweight", "qzeros", "scales"):
            del tensors[f"{layer}.{end}"]
        tensors[f"{layer}.weight"] = kept[f"{layer}.weight"]
    save_file(tensors, packed / "model.safetensors")
    wanted = logits(widened(packed, tmp_path / "wide", {"quant_method": "awq"} | {"group_size": 32}))
    assert float((logits(packed) - wanted).norm() / wanted.norm()) < 0.02


def test_a_whole_model_of_fp8(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", {**WIDE, "quantization_config": {"quant_method": "fp8"}})
    tensors = load_file(folder / "model.safetensors")
    plain = write_model(tmp_path / "plain", WIDE)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        codes = tensors[name].to(torch.float8_e4m3fn)
        wide = codes.float() * 0.5
        tensors |= {name: codes, name + "_scale_inv": torch.full((1, 1), 0.5)}
        if "k_proj" in name:
            # Of a cache in 8 bits, where there is one.
            layer = name.removesuffix("k_proj.weight")
            for extra in ("k_scale", "v_scale", "k_proj.output_scale", "q_scale"):
                tensors[layer + extra] = torch.tensor(0.25)
        (other := load_file(plain / "model.safetensors"))[name] = wide
        save_file(other, plain / "model.safetensors")
    save_file(tensors, folder / "model.safetensors")
    torch.testing.assert_close(logits(folder), logits(plain))
    kept, widened = (weight_bytes(load_model(path, CPU, torch.float32)) for path in (folder, plain))
    assert not float8.available() or kept < 0.7 * widened


def test_floats_of_8_bits_in_another_form_are_widened(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", {**WIDE, "quantization_config": {"quant_method": "fp8"}})
    plain = write_model(tmp_path / "plain", WIDE)
    tensors, other = (load_file(one / "model.safetensors") for one in (folder, plain))
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        codes = (tensors[name] * 64).to(torch.float8_e5m2)
        tensors |= {name: codes, name + "_scale_inv": torch.full((1, 1), 1 / 64)}
        other[name] = codes.float() / 64
    save_file(tensors, folder / "model.safetensors")
    save_file(other, plain / "model.safetensors")
    torch.testing.assert_close(logits(folder), logits(plain))


@pytest.mark.parametrize(
    ("quantization", "most"), [("int8", 0.03), ("w8a8", 0.06), ("int4", 0.35), ("int4-64", 0.4)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_whole_model_quantized_when_loaded(
    tiny_model: Path, quantization: str, most: float, dtype: torch.dtype
) -> None:
    full = logits(tiny_model)
    assert 1e-4 < float((logits(tiny_model, quantization, dtype) - full).norm() / full.norm()) < most


def test_the_demo_model_says_the_same_in_fewer_bits() -> None:
    from engine.weights.source import locate

    folder = locate("demo")
    samples = exam(folder, 12)
    received = []
    for stored_format in (FULL, Way("int8", quantization="int8"), Way("int4", quantization="int4")):
        model = load_model(folder, CPU, stored_format.dtype, quantization=stored_format.quantization)
        pieces = (piece for found in predict(model, samples, stored_format) for piece in found)
        received.append(torch.cat([piece.argmax(-1) for piece in pieces]))
    eight, four = (float((one == received[0]).float().mean()) for one in received[1:])
    assert eight > 0.98 and four > 0.9


@pytest.mark.parametrize("rank", [0, 1])
def test_integers_of_a_rank_have_its_own_scales(rank: int) -> None:
    codes = torch.arange(-64, 64, dtype=torch.int8).reshape(8, 16)
    scale = torch.arange(1.0, 9.0)[:, None]
    tensors = Tensors({"x.weight": codes, "x.weight_scale": scale})
    group = {"weights": {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": True}}
    loader = WeightLoader(
        tensors,  # type: ignore[arg-type]
        torch.device("cpu"),
        torch.float32,
        tp=TPGroup(rank, 2),
        quantized_format=Int8Channels({"config_groups": {"all": group}}),
    )
    whole = codes.float() * scale
    for split, part in (("out", whole[4 * rank : 4 * rank + 4]), ("in", whole[:, 8 * rank : 8 * rank + 8])):
        read = loader.weight("x", 8, 16, split)
        assert isinstance(read, ChannelWeight)
        assert torch.equal(read.codes.float() * read.scale[:, None], part)


@pytest.mark.parametrize(
    ("wish", "rounds"),
    [
        ({"strategy": "token", "dynamic": True}, True),
        ({"strategy": "tensor", "dynamic": False}, False),
        (None, False),
    ],
)
def test_activations_are_rounded_where_the_checkpoint_wants_a_scale_for_each_token(
    wish: dict[str, Any] | None, rounds: bool
) -> None:
    common = {"type": "int", "num_bits": 8, "symmetric": True}
    group: dict[str, Any] = {"weights": {**common, "strategy": "channel"}}
    group["input_activations"] = None if wish is None else {**common, **wish}
    found = Int8Channels({"config_groups": {"all": group}})
    tensors = Tensors({"x.weight": torch.ones(4, 8, dtype=torch.int8), "x.weight_scale": torch.ones(4, 1)})
    assert found.read(tensors, "x", 4, 8).rounds_inputs is rounds
