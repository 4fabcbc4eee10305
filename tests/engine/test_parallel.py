from __future__ import annotations

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.parallel import Ranks


def test_each_rank_cuts_its_part() -> None:
    weight = torch.arange(24).view(4, 6)
    parts = [Ranks(rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat([ranks.cut(weight, 0, "rows") for ranks in parts]), weight)
    assert torch.equal(torch.cat([ranks.cut(weight, 1, "columns") for ranks in parts], 1), weight)
    assert Ranks().cut(weight, 0, "rows") is weight
    with pytest.raises(UnsupportedModel, match="4 ranks cannot share 6 columns evenly"):
        Ranks(0, 4).cut(weight, 1, "columns")
