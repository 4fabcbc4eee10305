from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.models.builder import reordered
from engine.weights.quantize import Int4Weight, to_int4, to_int6, to_int8


def whole(weight: object) -> Tensor:
    if isinstance(weight, Tensor):
        return weight
    if hasattr(weight, "weight"):
        return weight.weight()
    return weight.codes.float() * weight.scale[:, None]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["plain", "int8", "int6", "int4", "int4-ordered"])
def test_rows_take_their_scales_with_them(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(12, 64, generator=generator) * torch.arange(1, 13)[:, None]
    grouped = to_int4(plain, 32)
    ordered = Int4Weight(
        grouped.codes, grouped.scale, grouped.offset, torch.randperm(64, generator=generator)
    )
    weight = {
        "plain": plain,
        "int8": to_int8(plain),
        "int6": to_int6(plain),
        "int4": grouped,
        "int4-ordered": ordered,
    }[kind]
    order = torch.randperm(12, generator=generator)
    found = reordered(weight, order)
    assert type(found) is type(weight)
    assert torch.equal(whole(found), whole(weight)[order])
    assert reordered(weight, None) is weight
