"""Which product plain weights in bfloat16 take on a CPU: that of kernels/native/dense.c, or oneDNN's.

Which one is faster depends on the processor, the shape and the number of rows, so both are measured, once for each
shape, threads, processor and version; what was found is kept beside the compiled C, so that every later start chooses
the same. Both read more weights than a core's caches hold, and take turns.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from engine.layers.library_product import LibraryProduct
from kernels.native.dense import DenseWeight
from kernels.native.library import SOURCES, cache_folder, fingerprint

log = logging.getLogger("engine.layers")

_FEW = (1, 2, 4, 8, 16)
"""Rows of decode steps."""
_MANY = (32, 128, 384)
"""Rows of prompts."""
_MARGIN = 1.05
"""What oneDNN's must gain: that in C gives a row the same bits in any batch, which is worth a little."""
_WEIGHT = 8 * 2**20
"""Bytes of a weight that is measured: of a larger one a part."""
_SMALLEST = 2**19
"""Bytes of a weight below which its product is too short to be measured, and C is taken."""
_ALL = 32 * 2**20
"""Bytes of all weights of a way."""
_REPEATS, _FEWEST = 7, 3
_SECONDS = 0.1
"""After which there are no more than the fewest repeats."""

Ways = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class ProductChoice:
    native: bool = True
    """Whether weights are laid out for C; if not, oneDNN multiplies."""
    many: int | None = None
    """Rows from which oneDNN multiplies, though they are laid out for C: in pieces that are laid out for it each
    time."""


def choose(out_features: int, in_features: int) -> ProductChoice:
    """On a machine that has both."""
    if 2 * out_features * in_features < _SMALLEST:
        return ProductChoice()
    most = max(64, _WEIGHT // (2 * in_features) // 64 * 64)
    return _choose(min(out_features, most), in_features, torch.get_num_threads())


@cache
def _choose(out_features: int, in_features: int, threads: int) -> ProductChoice:
    shape = f"{out_features}x{in_features}"
    file = _file(threads)
    known = _read(file)
    choice, how = known.get(shape), "known"
    if choice is None:
        began = time.monotonic()
        choice = measure(out_features, in_features)
        how = f"measured in {time.monotonic() - began:.2f} s"
        _write(file, {**known, shape: choice})
    also = f", from {choice.many} rows on oneDNN's" if choice.many else ""
    product = "that in C" if choice.native else "oneDNN's"
    log.info("products of bfloat16 weights %s take %s%s (%s)", shape, product, also, how)
    return choice


@torch.inference_mode()
def measure(out_features: int, in_features: int) -> ProductChoice:
    weight = torch.ones(out_features, in_features, dtype=torch.bfloat16)
    count = max(1, _ALL // weight.nbytes)
    native = [DenseWeight(weight) for _ in range(count)]
    library = [LibraryProduct(weight) for _ in range(count)]
    gains = [
        gain({"C": partial(_all, native, x), "oneDNN": partial(_all, library, x)}, "C", "oneDNN")
        for x in (torch.ones(rows, in_features, dtype=torch.bfloat16) for rows in _FEW)
    ]
    if statistics.fmean(map(math.log, gains)) > math.log(_MARGIN):
        return ProductChoice(native=False)
    for rows in _MANY:
        x = torch.ones(rows, in_features, dtype=torch.bfloat16)
        ways: Ways = {"C": partial(native[0], x), "pieces": partial(native[0].product_by_library, x)}
        if gain(ways, "C", "pieces") > _MARGIN:
            return ProductChoice(many=rows)
    return ProductChoice()


def gain(ways: Ways, one: str, other: str) -> float:
    """How many times as fast the other is: the median of what each turn shows."""
    ratios: list[float] = []
    began = time.monotonic()
    for turn in range(1 + _REPEATS):
        took = {}
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            ways[name]()
            took[name] = time.perf_counter() - start
        if turn:  # the first one warms up
            ratios.append(took[one] / took[other])
        if len(ratios) >= _FEWEST and time.monotonic() - began > _SECONDS:
            break
    return statistics.median(ratios)


def _all(products: Sequence[Callable[[Tensor], Tensor]], x: Tensor) -> None:
    for product in products:
        product(x)


def _file(threads: int) -> Path | None:
    """``None`` if there is no folder to keep it in."""
    parts = [
        fingerprint(SOURCES / "dense.c"),
        torch.__version__,
        str(threads),
        *map(str, (_FEW, _MANY, _MARGIN)),
    ]
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    try:
        return cache_folder() / f"products-{name}.json"
    except (OSError, RuntimeError):
        return None


def _read(file: Path | None) -> dict[str, ProductChoice]:
    try:
        known = json.loads(file.read_text()) if file else {}
        return {shape: ProductChoice(**fields) for shape, fields in known.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(file: Path | None, choices: Mapping[str, ProductChoice]) -> None:
    if file is None:
        return
    try:
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as made:
            json.dump({shape: asdict(choice) for shape, choice in choices.items()}, made, indent=1)
        os.replace(made.name, file)
    except OSError as error:
        log.info("what was measured of products is not kept: %s", error)
