"""A sample of a table of cases for `make test`; the whole of it is for `make test-all`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def diagonal(*axes: Sequence[Any]) -> list[Any]:
    """Every combination of the axes' values, slow but for as many as the longest axis has: those of the diagonal.

    So each value of each axis is in one that is not slow. A tuple, or a ``pytest.param``, stands for several arguments.
    """
    longest = max(map(len, axes))
    quick = {tuple(i % len(axis) for axis in axes) for i in range(longest)}
    cases = []
    for places in product(*(range(len(axis)) for axis in axes)):
        chosen = [axis[place] for axis, place in zip(axes, places, strict=True)]
        values = [value for one in chosen for value in _values(one)]
        ids = [getattr(one, "id", None) or "-".join(map(_name, _values(one))) for one in chosen]
        slow = [] if places in quick else [pytest.mark.slow]
        cases.append(pytest.param(*values, id="-".join(ids), marks=slow))
    return cases


def _values(one: Any) -> tuple[Any, ...]:
    return tuple(getattr(one, "values", one)) if isinstance(one, tuple) else (one,)


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def slow(*values: Any) -> list[Any]:
    """Values for ``parametrize`` whose tests are slow; a tuple stands for several arguments."""
    return [pytest.param(*_values(value), marks=pytest.mark.slow) for value in values]
