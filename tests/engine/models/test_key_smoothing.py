"""What is done to keys with a bias before a cache in 8 bits changes no score, and makes them round better."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.layers.key_smoothing import SmoothedRotation, StoredKeys, smoothed
from engine.layers.lora import AdapterBank
from engine.layers.rope import Rope, RotaryTable
from engine.models.registry import load_model
from engine.parallel.group import SINGLE_RANK, TPGroup
from engine.parallel.part import Part
from kernels.rope import rope as rotate
from tests.engine.lora import load, write_adapter
from tests.engine.models.hub import CPU, Paged, expected, save
from tests.engine.models.test_families import CASES, tokens

NAMES = (
    "qwen2",
    "qwen2-yarn",
    "llama-biases-head-dim",
    "glm-4",
    "cohere-2",
    "smollm3-window",
    "starcoder2",
    "gemma-2",
    "gpt-oss",
)
"""Of one, three and all KV heads, pairs side by side, rotated in part or not at all, scores with a cap or a sink."""
BIASED = {"glm-4": "attention_bias", "cohere-2": "attention_bias", "gemma-2": "attention_bias"}
FAMILIES = [one for one in CASES if one.id in NAMES]


def saved(folder: Path, family: str, large: float, fast: float = 4.0, **changes: Any) -> Any:
    """With a large bias of channels that turn slowly, and of one that turns fast, in each head of each layer's keys."""
    model = save(folder, family, **changes)
    for name, parameter in model.named_parameters():
        if name.endswith("k_proj.bias"):
            with torch.no_grad():
                heads = parameter.view(model.config.num_key_value_heads, -1)
                middle = heads.shape[1] // 2
                heads[:, middle - 2 : middle] = large
                heads[:, 0] = fast
    model.save_pretrained(folder)
    return model


def rotations(model: Any) -> list[Any]:
    return [block._attention._rotate for block, _ in model._blocks]


@pytest.mark.parametrize(("family", "changes"), FAMILIES)
def test_a_plain_cache_holds_the_same_answers(
    tmp_path: Path, family: str, changes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    if key := BIASED.get(request.node.callspec.id):
        changes = {**changes, key: True}
    theirs = expected(saved(tmp_path, family, 9.0, **changes), tokens())
    ours = Paged(tmp_path, kv_cache_dtype="int8")
    assert all(isinstance(one, SmoothedRotation) for one in rotations(ours.model))
    plain = Paged(tmp_path).run(tokens(), [17])
    found = ours.run(tokens(), [17])
    assert (plain - theirs).abs().max() <= 5e-4
    assert (found - plain).abs().max() <= 1e-4


@pytest.mark.parametrize(("stored", "times"), [("int8", 8), ("fp8", 4)])
def test_less_is_rounded_away_of_keys_with_large_biases(tmp_path: Path, stored: str, times: float) -> None:
    saved(tmp_path, "Qwen2", 80.0, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    exact = Paged(tmp_path).run(tokens(), [17])
    before = Paged(tmp_path, stored=stored).run(tokens(), [17])
    after = Paged(tmp_path, stored=stored, kv_cache_dtype=stored).run(tokens(), [17])
    assert (before - exact).abs().mean() > times * (after - exact).abs().mean()


def test_models_without_large_biases_stay_as_they_are(tmp_path: Path) -> None:
    for family, changes in [("Llama", {}), ("Qwen3", {"attention_bias": True}), ("Qwen2", {})]:
        save(tmp_path / family, family, **changes)
        model = load_model(tmp_path / family, CPU, torch.float32, kv_cache_dtype="int8")
        assert not any(isinstance(one, SmoothedRotation) for one in rotations(model))
    saved(tmp_path / "large", "Qwen2", 9.0)
    for dtype in ("auto", "int4"):
        model = load_model(tmp_path / "large", CPU, torch.float32, kv_cache_dtype=dtype)
        assert not any(isinstance(one, SmoothedRotation) for one in rotations(model))


@pytest.mark.parametrize(("ranks", "copies"), [(2, 1), (4, 2)])
def test_ranks_have_the_parts_of_their_heads(tmp_path: Path, ranks: int, copies: int) -> None:
    saved(tmp_path, "Qwen2", 9.0)
    x = torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(0))
    rotation = RotaryTable(Rope(16, 1e4, 128, 128), 128, CPU, torch.float32)(torch.arange(3))
    whole = load_model(tmp_path, CPU, torch.float32, kv_cache_dtype="int8")
    queries, keys = rotations(whole)[0](x, *rotation).split([4, 2], 1)
    parts = [
        load_model(tmp_path, CPU, torch.float32, kv_cache_dtype="int8", part=Part(TPGroup(rank, ranks)))
        for rank in range(ranks)
    ]
    for rank, model in enumerate(parts):
        own = slice(rank * 4 // ranks, (rank + 1) * 4 // ranks)
        head = slice(rank // copies, rank // copies + 1)
        shared = torch.cat([x[:, :4][:, own], x[:, 4:][:, head]], 1)
        found = rotations(model)[0](shared, *rotation)
        assert torch.equal(found, torch.cat([queries[:, own], keys[:, head]], 1))


def test_an_adapter_of_queries_and_keys_changes_what_it_changed_before(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", "Qwen2", 9.0)
    weights = {name: one for name, one in model.state_dict().items() if name.endswith("proj.weight")}
    adapter = write_adapter(tmp_path / "one", weights, rank=4, targets=("q_proj", "k_proj"))
    answers = []
    for dtype in ("auto", "int8"):
        bank = AdapterBank(1, 8, SINGLE_RANK)
        paged = Paged(tmp_path / "model", adapters=bank, kv_cache_dtype=dtype)
        load(bank, "one", adapter)
        answers.append(paged.run(tokens(), []))
        bank.select([("one", 0, len(tokens()))], CPU)
        answers.append(paged.run(tokens(), []))
    without, plain, _, smooth = answers
    assert (smooth - plain).abs().max() <= 1e-4
    assert not torch.allclose(plain, without, atol=0.1)


def turned(bias: Tensor, positions: int, rope: Rope) -> Tensor:
    """[positions, kv_heads, head_dim]"""
    table = RotaryTable(rope, positions, CPU, torch.float32)
    return rotate(bias.expand(positions, -1, -1).contiguous(), *table(torch.arange(positions)))


def test_what_is_subtracted_is_the_mean_over_the_context_and_factors_round_nothing() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    rope = Rope(12, 1e4, 2048, 512, yarn)
    bias = torch.randn(2, 16, generator=torch.Generator().manual_seed(0)) * 30
    made = smoothed(bias, 4, rope, StoredKeys(2048, True), shifts=True)
    assert isinstance(made, SmoothedRotation)
    queries, keys = made._factors.split([4, 2])
    assert torch.equal(queries, (1 / keys).repeat_interleave(2, 0))
    assert torch.equal(keys.log2(), keys.log2().round()) and keys.min() < keys.max() == 1
    assert torch.equal(keys[:, :6], keys[:, 6:12])
    found = made._shift[4:] / keys
    assert (found - turned(bias, 2048, rope).mean(0)).abs().max() <= 0.05
    # What is not rotated is subtracted as a whole.
    assert torch.allclose(found[:, 12:], bias[:, 12:])


def test_factors_leave_queries_within_float16() -> None:
    made = smoothed(torch.full((1, 4), 1e4), 1, None, StoredKeys(16, True), shifts=False)
    assert isinstance(made, SmoothedRotation) and made._factors.max() <= 64


def test_a_row_is_the_same_to_the_bit_however_its_prompt_is_cut(tmp_path: Path) -> None:
    saved(tmp_path, "Qwen2", 80.0)
    paged = Paged(tmp_path, torch.bfloat16, stored="int8", kv_cache_dtype="int8", invariant=True)
    assert isinstance(rotations(paged.model)[0], SmoothedRotation)
    whole = paged.run(tokens(), [], tiled=True)
    assert torch.equal(paged.run(tokens(), [1, 7, 32, 43], tiled=True), whole)
