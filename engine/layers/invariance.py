"""Batch invariance with library products: the number of rows to pad to, so that a row's result never changes.

Libraries split the sum over the inputs differently for one row, or a few, than for many. Where, and up to how many
rows, depends on the processor, the number of threads and the shape, so it is measured with each of the model's shapes.
The sums that are tried cancel exactly, so that only rounding remains and any other order of summation shows. If no
padding helps, each row is multiplied alone.

For machines without the C of kernels/native/dense.c, whose sums always have the same order.
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
"""Each row is multiplied alone."""
_ROWS = (*range(1, 18), 24, 31, 33, 48, 64, 65, 96, 127, 200, 256, 511)
"""Numbers of rows that are tried; libraries split more rows into blocks."""
_MULTIPLES = (1, 2, 4, 8, 16)
_OUTPUTS = 4096
"""The most outputs that are tried: libraries split more into columns that are summed alike."""


def row_multiple(
    make: Callable[[Tensor], Product], out_features: int, in_features: int, dtype: torch.dtype
) -> int:
    """The multiple that rows are to be padded to, or ``ALONE``, for the layer that ``make`` builds from a weight
    [out, in]."""
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
            torch.equal(padded(product, x[first : first + rows], multiple), whole[first : first + rows])
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


def padded(product: Product, x: Tensor, multiple: int) -> Tensor:
    """``product(x)``, with rows padded to a multiple of ``multiple``, or each row ``ALONE``."""
    if multiple == ALONE:
        # Copies, as alignment in memory may matter, too.
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
