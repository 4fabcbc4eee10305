from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same numbers every time: a bound on rounding errors holds for these or does not, whatever ran before."""
    torch.manual_seed(0)
