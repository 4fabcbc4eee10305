from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same numbers every time: a bound on rounding errors holds for these or does not, whatever ran before."""
    torch.manual_seed(0)


@pytest.fixture
def products_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's products, each row by itself.

    It takes numpy's for the whole tile, and on some processors that one's BLAS adds up a row in another order by its
    place in the tile, as no chip's matrix unit does.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")

    def create_dot(self: Any, a: Any, b: Any, d: Any, *how: object) -> Any:
        rows, columns = a.data[..., :, None, :], b.data[..., None, :, :]
        product = np.matmul(rows, columns, dtype=d.data.dtype)[..., 0, :]
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
