from __future__ import annotations

import torch

from kernels.swiglu import swiglu


def test_equals_the_formula() -> None:
    x = torch.randn(3, 10)
    gate, up = x[:, :5].double(), x[:, 5:].double()
    torch.testing.assert_close(swiglu(x).double(), gate / (1 + (-gate).exp()) * up, rtol=1e-5, atol=1e-6)
