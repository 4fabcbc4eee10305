"""A benchmark case: an operation with one shape, to be checked and timed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 6e-3, torch.bfloat16: 2e-2}
"""The largest error of an element, by the result's dtype, relative to its size plus the mean of its row."""


@dataclass(frozen=True, slots=True)
class Rival:
    """Another project's implementation of the same operation."""

    name: str
    prepare: Callable[..., tuple[Any, ...]]
    """From the case's inputs to its own, in the layout that it likes; not timed. Raises ``ImportError`` where the
    library is not installed, and whatever else where the operation is not one that it has."""
    run: Callable[..., Any]
    """Returns the same as the case."""
    tolerance: float = 5e-2
    """A wrong layout or mask gives a far larger error."""


@dataclass(frozen=True, slots=True)
class Case:
    op: str
    name: str
    make: Callable[[torch.device], tuple[Any, ...]]
    """Fresh random inputs for ``run`` and ``reference``."""
    run: Callable[..., Any]
    """Returns one tensor or several, even if it writes into its inputs."""
    reference: Callable[..., Any] | None = None
    """The same in float32 or float64; ``None``: nothing is checked."""
    bytes: int = 0
    """Bytes that a run must read and write at least; its rate is then in GB/s."""
    flops: int = 0
    """Operations of a run; its rate is then in TFLOP/s. Without either it is only checked."""
    ceiling: str = ""
    """The case that its rate is compared with."""
    target: float | None = None
    """The share of the ceiling that the project aims at."""
    tolerance: float | None = None
    """Overrides ``TOLERANCES``; for integers, the share of elements that may differ, by default none."""
    rivals: tuple[Rival, ...] = ()

    @property
    def timed(self) -> bool:
        return bool(self.bytes or self.flops)


def check(case: Case, device: torch.device, *, twice: bool = True) -> tuple[float, str]:
    """The largest error, and a description of what is wrong, or "". ``twice``: two runs on the same inputs must be
    equal to the bit, as no kernel's summation order is random."""
    if case.reference is None:
        return 0.0, ""
    inputs = case.make(device)
    expected = case.reference(*deepcopy(inputs))
    again = deepcopy(inputs) if twice else None
    with poisoned():
        actual = case.run(*inputs)
    worst, fault = compare(actual, expected, case.tolerance)
    if not fault and again is not None and not _same(actual, case.run(*again)):
        fault = "two runs on the same inputs differ: a race"
    return worst, fault


def compare(actual: Any, expected: Any, tolerance: float | None) -> tuple[float, str]:
    """The largest error of all results, and what is wrong."""
    worst, faults = 0.0, []
    actual, expected = (list(x) if isinstance(x, tuple | list) else [x] for x in (actual, expected))
    for place, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        error, fault = _compare(got, wanted, tolerance)
        worst = max(worst, error)
        if fault:
            faults.append(f"result {place}: {fault}" if len(actual) > 1 else fault)
    return worst, "; ".join(faults)


def _same(one: Any, other: Any) -> bool:
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(tensors(one), tensors(other), strict=True)
    )


def _compare(actual: Tensor, expected: Tensor, tolerance: float | None) -> tuple[float, str]:
    if actual.shape != expected.shape:
        return math.inf, f"its shape is {tuple(actual.shape)} and should be {tuple(expected.shape)}"
    if not actual.numel():
        return 0.0, ""
    if not actual.is_floating_point():
        wrong = (actual != expected).sum().item()
        share = wrong / actual.numel()
        return share, f"{wrong} of {actual.numel()} numbers differ" if share > (tolerance or 0.0) else ""
    allowed = TOLERANCES[actual.dtype] if tolerance is None else tolerance
    wide, right = actual.double(), expected.double()
    finite = right.where(right.isfinite(), 0.0)
    mean = finite.square().mean(-1 if finite.dim() else (), keepdim=True).sqrt()
    size = finite.abs() + mean + torch.finfo(torch.float64).tiny
    errors = torch.where(wide == right, 0.0, (wide - right).abs() / size).nan_to_num(math.inf, math.inf)
    worst = errors.max().item()
    if worst <= allowed:
        return worst, ""
    beyond = (errors > allowed).sum().item()
    where = tuple(int(i) for i in torch.unravel_index(errors.argmax(), errors.shape))
    return worst, (
        f"{beyond} of {actual.numel()} numbers are off by more than {allowed:g}, most at {where}: "
        f"{wide[where].item():g} for {right[where].item():g}"
    )


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in some inputs."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif dataclasses.is_dataclass(value):
        yield from tensors([getattr(value, field.name) for field in dataclasses.fields(value)])


def size(value: Any) -> int:
    """Bytes of all tensors in some inputs."""
    return sum(tensor.nbytes for tensor in tensors(value))


@contextmanager
def poisoned() -> Iterator[None]:
    """Fills tensors allocated meanwhile with NaN, or the largest integer."""
    kept = {
        owner: getattr(*owner) for owner in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty"))
    }

    def spoiling(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *args, **kwargs: _spoil(allocate(*args, **kwargs))

    try:
        for (owner, name), allocate in kept.items():
            setattr(owner, name, spoiling(allocate))
        yield
    finally:
        for (owner, name), allocate in kept.items():
            setattr(owner, name, allocate)


def _spoil(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point() and tensor.itemsize > 1:
        return tensor.fill_(math.nan)
    if (
        tensor.is_floating_point()
    ):  # All bits set are NaN in 8 bits as well, which not all devices can fill with.
        tensor.view(torch.uint8).fill_(255)
        return tensor
    return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)
