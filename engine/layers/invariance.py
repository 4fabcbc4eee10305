"""How many rows a matrix product must have for each row's result to be the same to the last bit in all products.

Libraries cut the sum over many inputs in another way for one row, or for a few, than for many. Where they do, and up
to how many rows, depends on the processor, the number of threads and the shape: it is found out by trying. In the
sums that are tried everything cancels, so that what remains is rounding alone, and any other order of adding shows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from engine.errors import StartupError

Product = Callable[[Tensor], Tensor]

_ROWS = (*range(1, 18), 24, 31, 33, 48, 64, 65)
"""Numbers of rows tried; of more, libraries make blocks."""
_FILLED = (1, 2, 4, 8, 16)
_OUTPUTS = 4096
"""More are not tried: they are shared out in columns, each of which is summed alike."""


def least_rows(
    make: Callable[[Tensor], Product], out_features: int, in_features: int, dtype: torch.dtype
) -> int:
    """Rows to which fewer are to be filled up, for the layer that ``make`` makes of a weight [out, in].

    Raises ``StartupError`` if no number will do.
    """
    return _least(make, min(out_features, _OUTPUTS), in_features, dtype, torch.get_num_threads())


@cache
def _least(
    make: Callable[[Tensor], Product], out_features: int, in_features: int, dtype: torch.dtype, threads: int
) -> int:
    x, weight = cancelling(_ROWS[-1] + 1, out_features, in_features)
    x, product = x.to(dtype), make(weight.to(dtype))
    whole = product(x)
    for least in _FILLED:
        if all(
            torch.equal(filled(product, x[first : first + rows], least), whole[first : first + rows])
            for rows in _ROWS
            for first in (0, 1)
        ):
            return least
    raise StartupError(
        f"--deterministic cannot be kept: on this processor a product of {in_features} inputs in {dtype} with "
        f"{threads} threads depends on how many rows it has. Take --threads 1 or another --dtype."
    )


def filled(product: Product, x: Tensor, least: int) -> Tensor:
    """``product(x)``, computed with at least so many rows."""
    missing = least - len(x)
    return product(x) if missing <= 0 else product(functional.pad(x, (0, 0, 0, missing)))[: len(x)]


def cancelling(rows: int, out_features: int, in_features: int) -> tuple[Tensor, Tensor]:
    """``x`` [rows, in] and a weight [out, in] whose exact product is zero, in float32."""
    generator = torch.Generator().manual_seed(0)
    half = in_features // 2
    x, weight = (torch.randn(size, half, generator=generator) for size in (rows, out_features))
    order = torch.randperm(half, generator=generator)
    x = torch.cat([x, -x[:, order]], 1)
    weight = torch.cat([weight, weight[:, order]], 1)
    return functional.pad(x, (0, in_features % 2)), functional.pad(weight, (0, in_features % 2))
