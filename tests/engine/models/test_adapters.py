"""LoRA adapters over families whose layers have names, or an order of rows, of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.errors import InvalidRequest
from engine.layers.lora import AdapterBank
from engine.parallel.group import SINGLE_RANK
from tests.engine.lora import ALL, load, merge, write_adapter
from tests.engine.models.hub import CPU, Paged, expected, save
from tests.engine.models.test_families import CASES, tokens

NAMES = (
    "granite",
    "glm-4",
    "cohere-2",
    "starcoder2",
    "ernie-4.5",
    "olmo-2",
    "apertus",
    "hunyuan",
    "gpt-oss",
    "llama-4",
)
LATENT = ("deepseek-v2", "glm-4.7-flash", "youtu")
TARGETS = (*ALL, "gate_up_proj", "c_fc", "c_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa")


@pytest.mark.parametrize(("family", "changes"), [one for one in CASES if one.id in NAMES + LATENT])
def test_an_adapter_changes_what_merged_weights_change(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    model = save(tmp_path / "model", family, **changes)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    layers = {
        name: weight for name, weight in weights.items() if weight.dim() == 2 and name.endswith(".weight")
    }
    layers = {name: one for name, one in layers.items() if ".experts." not in name}
    adapter = write_adapter(tmp_path / "one", layers, rank=4, targets=TARGETS)
    bank = AdapterBank(1, 8, SINGLE_RANK)
    paged = Paged(tmp_path / "model", adapters=bank)
    load(bank, "one", adapter)
    plain = paged.run(tokens(), [])
    bank.select([("one", 0, len(tokens()))], CPU)
    ours = paged.run(tokens(), [])
    model.load_state_dict(merge(layers, adapter), strict=False)
    theirs = expected(model, tokens())
    assert (ours - theirs).abs().max() <= 5e-4
    assert not torch.allclose(ours, plain, atol=0.1)


def test_an_adapter_of_what_latents_are_expanded_with_is_refused(tmp_path: Path) -> None:
    [(family, changes)] = [one.values for one in CASES if one.id == "youtu"]
    save(tmp_path / "model", family, **changes)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    adapter = write_adapter(tmp_path / "one", weights, rank=4, targets=("kv_b_proj", "o_proj"))
    bank = AdapterBank(1, 8, SINGLE_RANK)
    Paged(tmp_path / "model", adapters=bank)
    with pytest.raises(InvalidRequest, match=r"kv_b_proj.*not linear layers"):
        load(bank, "one", adapter)
