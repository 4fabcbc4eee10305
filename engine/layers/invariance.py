"""How many rows matrix products must have for each row's result to be the same to the last bit in all of them.

Libraries cut the sum over many inputs in another way for one row, or for a few, than for many. Where they do, and up
to how many rows, depends on the processor, the number of threads and the shape: it is found out by trying, with each of
the model's own shapes. In the sums that are tried everything cancels, so that what remains is rounding alone, and any
other order of adding shows. Where no number will do, each row is a product of its own.

This is for machines without the C of kernels/native/dense.c, in which all sums run in one order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from engine.layers.product import Product

log = logging.getLogger("engine.layers")

ALONE = 0
"""Each row is a product of its own."""
_ROWS = (*range(1, 18), 24, 31, 33, 48, 64, 65, 96, 127, 200, 256, 511)
"""Numbers of rows tried; of more, libraries make blocks."""
_MULTIPLES = (1, 2, 4, 8, 16)
_OUTPUTS = 4096
"""More are not tried: they are shared out in columns, each of which is summed alike."""


def whole_rows(
    make: Callable[[Tensor], Product], out_features: int, in_features: int, dtype: torch.dtype
) -> int:
    """To a multiple of how many rows products are to be filled up, or ``ALONE``, for the layer that ``make`` makes of
    a weight [out, in]."""
    return _multiple(make, min(out_features, _OUTPUTS), in_features, dtype, torch.get_num_threads())


@cache
def _multiple(
    make: Callable[[Tensor], Product], out_features: int, in_features: int, dtype: torch.dtype, threads: int
) -> int:
    x, weight = cancelling(_ROWS[-1] + 1, out_features, in_features)
    x, product = x.to(dtype), make(weight.to(dtype))
    whole = product(x)
    for multiple in _MULTIPLES:
        if all(
            torch.equal(filled(product, x[first : first + rows], multiple), whole[first : first + rows])
            for rows in _ROWS
            for first in (0, 1)
        ):
            return multiple
    log.warning(
        "products of %d inputs in %s with %d threads depend on how many rows they have on this processor: "
        "each row is multiplied alone, and prompts are slow for it. A C compiler, or another --dtype, helps.",
        in_features,
        dtype,
        threads,
    )
    return ALONE


def filled(product: Product, x: Tensor, multiple: int) -> Tensor:
    """``product(x)``, computed with a multiple of so many rows, or with each ``ALONE``."""
    if multiple == ALONE:
        # Copies, as where a row lies in memory may matter as well.
        return torch.cat([product(row.clone()) for row in x.split(1)]) if len(x) else product(x)
    missing = -len(x) % multiple
    return product(functional.pad(x, (0, 0, 0, missing)))[: len(x)] if missing else product(x)


def cancelling(rows: int, out_features: int, in_features: int) -> tuple[Tensor, Tensor]:
    """``x`` [rows, in] and a weight [out, in] whose exact product is zero, in float32."""
    generator = torch.Generator().manual_seed(0)
    half = in_features // 2
    x, weight = (torch.randn(size, half, generator=generator) for size in (rows, out_features))
    order = torch.randperm(half, generator=generator)
    x = torch.cat([x, -x[:, order]], 1)
    weight = torch.cat([weight, weight[:, order]], 1)
    return functional.pad(x, (0, in_features % 2)), functional.pad(weight, (0, in_features % 2))
