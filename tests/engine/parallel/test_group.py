from __future__ import annotations

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.parallel.group import TPGroup


def test_each_rank_cuts_its_part() -> None:
    weight = torch.arange(24).view(4, 6)
    parts = [TPGroup(rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat([tp.shard(weight, 0, "rows") for tp in parts]), weight)
    assert torch.equal(torch.cat([tp.shard(weight, 1, "columns") for tp in parts], 1), weight)
    assert TPGroup().shard(weight, 0, "rows") is weight
    with pytest.raises(UnsupportedModel, match="4 ranks cannot share 6 columns evenly"):
        TPGroup(0, 4).shard(weight, 1, "columns")
