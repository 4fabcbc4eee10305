"""gpt-oss's experts in MXFP4, as published, against transformers' way of reading them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.errors import UnsupportedModel
from engine.layers.linear import Linear
from engine.layers.native import NativeLinear
from engine.models.registry import load_model
from engine.parallel.group import SINGLE_RANK, TPGroup
from engine.parallel.part import Part
from engine.quantizer.recipe import Recipe
from engine.quantizer.run import quantize
from engine.weights.mxfp4 import Mxfp4, halves, in_six_bits, unpacked
from engine.weights.quantize import Int6Weight
from kernels.native.linear import Kind, available
from tests.engine.models.hub import COMMON, CPU, Paged, expected, save_model

LENGTH = 44
SHAPE = {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "sliding_window": 9,
    "intermediate_size": 96,
    "swiglu_limit": 2.0,
}
in_six = pytest.mark.skipif(not available(), reason="no C compiler, or no AVX-512 VNNI")


def tokens() -> list[int]:
    return torch.randint(2, 320, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()


def stacks(model: transformers.PreTrainedModel, spread: int) -> dict[str, Tensor]:
    """Random experts in MXFP4, by name, which ``model`` gets as transformers widens them. ``spread``: of the scales'
    exponents within an output."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for layer, block in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            weight = getattr(block.mlp.experts, name)
            count, inputs, outputs = weight.shape
            blocks = torch.randint(256, (count, outputs, inputs // 32, 16), generator=generator).byte()
            scales = 123 - torch.randint(spread + 1, blocks.shape[:3], generator=generator)
            scales = scales.byte()
            weight.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            stack = f"model.layers.{layer}.mlp.experts.{name}"
            found |= {f"{stack}_blocks": blocks, f"{stack}_scales": scales}
    return found


def write(folder: Path, spread: int = 3) -> transformers.PreTrainedModel:
    """A folder as gpt-oss is published, and the model that it holds."""
    config = transformers.GptOssConfig(**{**COMMON, **SHAPE})
    config._attn_implementation = "eager"
    model = save_model(folder, transformers.GptOssForCausalLM(config))
    packed = stacks(model, spread)
    weights = load_file(folder / "model.safetensors")
    plain = {name: weight for name, weight in weights.items() if f"{name}_blocks" not in packed}
    save_file(plain | packed, folder / "model.safetensors")
    path = folder / "config.json"
    written = json.loads(path.read_text())
    written["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    path.write_text(json.dumps(written))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_pair_with_each_scale_is_that_of_transformers_to_the_bit(dtype: torch.dtype) -> None:
    """But for scales that only float64 has room for, or none at all."""
    pairs = torch.arange(256).byte().view(1, 1, 16, 16).expand(1, 255, -1, -1).contiguous()
    scales = torch.arange(255).byte()[None, :, None].expand(1, -1, 16).contiguous()
    theirs = convert_moe_packed_tensors(pairs, scales, dtype=dtype)[0].T
    ours = unpacked(pairs[0]).float() * halves(scales[0])[..., None]
    assert torch.equal(ours.flatten(1).to(dtype), theirs)
    assert halves(torch.tensor([255]).byte()).isnan()


def test_six_bits_hold_the_same_numbers() -> None:
    """Scales an output has up to seven powers of two apart, more where the small ones' numbers are even."""

    def read(codes: list[int], exponents: list[int]) -> Int6Weight:
        scale = torch.tensor([exponents]).byte()
        doubled = torch.tensor(codes).repeat_interleave(32)[None]
        return Int6Weight((doubled + 32).byte(), halves(scale))

    for given in (read([3, -12], [127, 120]), read([12, 4], [127, 118]), read([12, 0, 1], [127, 0, 121])):
        found = in_six_bits(given)
        assert found is not None
        assert torch.equal(found.weight(), given.weight())
    assert in_six_bits(read([3, 1], [127, 119])) is None


@in_six
def test_experts_stay_in_six_bits_on_a_cpu(tmp_path: Path) -> None:
    theirs = expected(write(tmp_path), tokens())
    paged = Paged(tmp_path)
    mixture = paged.model._blocks[0][0]._mlp  # type: ignore[attr-defined]
    for expert in mixture._experts:
        for layer in (expert.gate_up, expert.down):
            assert isinstance(layer, NativeLinear)
            assert layer.packed.kind == Kind.INT6
    # 6.25 bits a weight, and a factor an output.
    assert mixture._experts[0].down.nbytes == 64 * 96 * 6.25 / 8 + 64 * 4
    ours = paged.run(tokens(), [17, *range(30, LENGTH)])
    # Sums are of activations in 16 bits, which float32 notices.
    assert (ours - theirs).abs().max() <= 2e-3
    near = torch.nn.functional.cosine_similarity(ours, theirs)
    assert near.min() > 0.999999


def test_widened_experts_are_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no product for six bits."""
    for module in ("mxfp4", "weight_loader"):
        monkeypatch.setattr(f"engine.weights.{module}.available", lambda: False)
    theirs = expected(write(tmp_path), tokens())
    assert (Paged(tmp_path).run(tokens(), [17, *range(30, LENGTH)]) - theirs).abs().max() <= 1e-4


def test_scales_too_far_apart_for_six_bits_are_widened(tmp_path: Path) -> None:
    theirs = expected(write(tmp_path, spread=20), tokens())
    assert (Paged(tmp_path).run(tokens(), [17]) - theirs).abs().max() <= 1e-4


def test_the_rest_may_be_quantized(tmp_path: Path) -> None:
    theirs = expected(write(tmp_path), tokens())
    ours = Paged(tmp_path, quantization="int8").run(tokens(), [17])
    assert torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.99


def test_a_wrong_shape_or_number_of_experts_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    for scales, said in ((weights[name][:3], "3 experts"), (weights[name][..., :2], name[:-7])):
        save_file(weights | {name: scales.contiguous()}, tmp_path / "model.safetensors")
        with pytest.raises(UnsupportedModel, match=said if said[0].isdigit() else r"experts\.0\.down_proj"):
            load_model(tmp_path, CPU, torch.float32)


def test_a_scale_that_is_none_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.mlp.experts.down_proj_scales"][2, 5, 1] = 255
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="infinities or NaN"):
        load_model(tmp_path, CPU, torch.float32)


def test_the_quantizer_does_not_write_stacked_experts(tmp_path: Path) -> None:
    config = transformers.GptOssConfig(**{**COMMON, **SHAPE})
    save_model(tmp_path / "plain", transformers.GptOssForCausalLM(config))
    with pytest.raises(UnsupportedModel, match="all experts of a layer in one tensor"):
        quantize(tmp_path / "plain", tmp_path / "out", Recipe("rtn", 4, 32, False), [])


def test_the_format_needs_blocks_and_scales() -> None:
    class Tensors(dict[str, Tensor]):
        def raw(self, name: str) -> Tensor:
            return self[name]

        def ignore(self, name: str) -> None: ...

    stored = Mxfp4({})
    assert not stored.holds(Tensors({"x.weight": torch.ones(1)}), "x")
    held = Tensors({"x.blocks": torch.zeros(4, 2, 16).byte(), "x.scales": torch.zeros(4, 2).byte()})
    assert stored.holds(held, "x")
    with pytest.raises(UnsupportedModel, match=r"x\.blocks has the shape"):
        stored.read(held, "x", 4, 96)


@in_six
def test_converted_experts_are_kept_for_the_next_start(tmp_path: Path) -> None:
    write(tmp_path / "model")
    cache = {"weights_cache": str(tmp_path / "cache")}
    first, second = (Paged(tmp_path / "model", **cache).run(tokens(), []) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first, Paged(tmp_path / "model").run(tokens(), []))
    assert any(path.is_file() for path in (tmp_path / "cache").rglob("*"))


@in_six
def test_ranks_have_whole_blocks_in_six_bits_and_the_rest_widened(tmp_path: Path) -> None:
    write(tmp_path)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(5))
    whole, shared = (
        load_model(tmp_path, CPU, torch.float32, part=Part(tp))._blocks[0][0]._mlp._experts[1]  # type: ignore[attr-defined]
        for tp in (SINGLE_RANK, TPGroup(1, 2))
    )
    gate, up = whole.gate_up(x).chunk(2, -1)
    assert shared.gate_up.packed.kind == Kind.INT6
    torch.testing.assert_close(shared.gate_up(x), torch.cat([gate[:, 48:], up[:, 48:]], 1))
    # Its inputs are three blocks, of which two ranks cannot have equal shares.
    assert isinstance(shared.down.part, Linear)
