"""What the tests of Triton kernels share. Kernels run in Triton's interpreter, on any machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

interpreted = pytest.importorskip("triton", reason="triton is installed on Linux alone")

TOLERANCES = {torch.float32: (1e-5, 1e-5), torch.float16: (2e-3, 2e-3), torch.bfloat16: (1.6e-2, 1e-2)}
"""Relative and absolute, of results against float64, by the dtype that is stored. The interpreter cuts bfloat16 off
where a GPU rounds it."""


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """``actual`` of any dtype against ``expected`` in float64."""
    rtol, atol = TOLERANCES[actual.dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=rtol, atol=atol)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What launchers allocate is full of NaN (or the largest integer) until a kernel writes it."""
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *size, **kwargs: _poison(empty(*size, **kwargs)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: _poison(empty_like(*args, **kwargs)))


def _poison(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.fill_(float("nan"))
    return tensor.fill_(torch.iinfo(tensor.dtype).max) if tensor.dtype != torch.bool else tensor.fill_(True)


@pytest.fixture
def bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter has bfloat16 as raw bits, and would multiply these."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.create_dot

    def widened(handle: TensorHandle) -> TensorHandle:
        if handle.dtype.scalar != interpreted.language.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return TensorHandle(bits.view(np.float32), interpreted.language.float32)

    def create_dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *others: Any) -> TensorHandle:
        return plain(self, widened(a), widened(b), *others)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
