"""The linear layers alone of a model of Qwen3-0.6B's shape, random weights: ``python -m benchmarks.linear``.

Ways of keeping weights take turns, and each one's shortest time counts, so that what else the machine does weighs on
all of them alike. A prompt's rows pass the head once, as in the engine. *Of reading* is how fast one row's products
read their weights, beside how fast memory is read in the same turns.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.streaming import Stream
from engine.layers.library_product import LibraryProduct
from engine.layers.linear import Linear
from engine.layers.native import Int6Linear
from engine.layers.quantized import Int4Linear, Int8Linear
from engine.weights.quantize import to_int4, to_int6, to_int8
from kernels.native.linear import available

LAYERS, HIDDEN, WIDTH, VOCAB = 28, 1024, 3072, 151_936
SHAPES = ((4096, HIDDEN), (HIDDEN, 2048), (2 * WIDTH, HIDDEN), (HIDDEN, WIDTH))
"""Of a layer's products [out, in]: queries, keys and values; their output; gate and up; down."""
ROWS = (1, 2, 4, 8, 16, 512)
PROMPT = ROWS[-1]
READING = "reading"

Product = Callable[[Tensor], Tensor]


def ways() -> dict[str, tuple[Callable[[Tensor], Product], Callable[[Tensor], Product]]]:
    """How a layer and how the head are kept."""

    def plain(weight: Tensor) -> Product:
        return lambda x: functional.linear(x, weight)

    def int8(weight: Tensor) -> Product:
        return Int8Linear(to_int8(weight))

    def w8a8(weight: Tensor) -> Product:
        return Int8Linear(to_int8(weight, rounds_inputs=True))

    def int6(weight: Tensor) -> Product:
        return Int6Linear(to_int6(weight)) if available() else int8(weight)

    return {
        "bfloat16, torch's linear": (plain, plain),
        "bfloat16, oneDNN's": (LibraryProduct, LibraryProduct),
        "bfloat16": (Linear, Linear),
        "int8": (int8, int8),
        "w8a8, head int8": (w8a8, int8),
        "int4 (32), head int6": (lambda weight: Int4Linear(to_int4(weight, 32)), int6),
        "int4 (128), head int6": (lambda weight: Int4Linear(to_int4(weight, 128)), int6),
    }


@torch.inference_mode()
def measure(layers: int, repeats: int) -> tuple[dict[str, dict[int, float]], dict[str, float]]:
    """Seconds a step, by way and rows, and of reading a byte; bytes of a way's weights, where they are known.
    ``layers`` are timed and scaled to all of them."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return (torch.randn(size, generator=generator) * 0.02).bfloat16()

    made: dict[str, tuple[list[tuple[Product, ...]], Product]] = {}
    for name, (layer, head) in ways().items():
        blocks = [tuple(layer(random(*shape)) for shape in SHAPES) for _ in range(layers)]
        made[name] = blocks, head(random(VOCAB, HIDDEN))
    stream = Stream()
    inputs = {rows: {size: random(rows, size) for size in (HIDDEN, 2048, WIDTH)} for rows in ROWS}

    def step(name: str, rows: int) -> float:
        blocks, head = made[name]
        start = time.perf_counter()
        for block in blocks:
            for product, (_, size) in zip(block, SHAPES, strict=True):
                product(inputs[rows][size])
        between = time.perf_counter()
        head(inputs[1 if rows == PROMPT else rows][HIDDEN])
        return (between - start) * LAYERS / layers + time.perf_counter() - between

    times: dict[str, dict[int, float]] = {name: dict.fromkeys(ROWS, float("inf")) for name in made}
    times[READING] = {1: float("inf")}
    for rows in ROWS:
        for _ in range(repeats + 1):
            for name in made:
                times[name][rows] = min(times[name][rows], step(name, rows))
            start = time.perf_counter()
            stream()
            took = (time.perf_counter() - start) / stream.nbytes
            times[READING][1] = min(times[READING][1], took)
    sizes = {}
    for name, (blocks, head) in made.items():
        layer = [getattr(product, "nbytes", None) for product in blocks[0]]
        if None not in layer:
            sizes[name] = sum(layer) * LAYERS + head.nbytes
    return times, sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=LAYERS, help="so many are timed, and scaled to 28")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    times, sizes = measure(options.layers, options.repeats)
    reading = times.pop(READING)[1]
    speeds = {name: {rows: rows / took for rows, took in found.items()} for name, found in times.items()}
    told = f"{options.threads} threads, load {os.getloadavg()[0]:.1f}, memory is read at {1e-9 / reading:.1f} GB/s"
    print(f"{told}: tokens/s, all rows together\n")
    print(f"| weights | {' | '.join(f'{rows} rows' for rows in ROWS)} | 8 rows to 1 | one row, of reading |")
    print("|---|" + "--:|" * (len(ROWS) + 2))
    for name, found in speeds.items():
        figures = " | ".join(f"{found[rows]:.0f}" for rows in ROWS)
        share = f"{sizes[name] * reading / times[name][1]:.0%}" if name in sizes else ""
        print(f"| {name} | {figures} | {found[8] / found[1]:.1f}x | {share} |")
    if options.json:
        options.json.write_text(json.dumps(speeds, indent=2) + "\n")


if __name__ == "__main__":
    main()
