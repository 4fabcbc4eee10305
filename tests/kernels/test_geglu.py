from __future__ import annotations

import torch

from kernels.geglu import geglu


def test_equals_the_formula_and_leaves_its_input() -> None:
    x = torch.randn(3, 10)
    before = x.clone()
    gate, up = x[:, :5].double(), x[:, 5:].double()
    gelu = gate / 2 * (1 + ((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)).tanh())
    torch.testing.assert_close(geglu(x).double(), gelu * up, rtol=1e-5, atol=1e-6)
    assert torch.equal(x, before)
