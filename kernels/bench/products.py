"""Matrix products with few rows: quantized weights, experts, adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels.bench.case import Case
from kernels.bench.ceilings import COPY, MATMUL
from kernels.bench.rivals import linear_rivals
from kernels.linear_fp8 import linear_fp8
from kernels.linear_w4a16 import PackedInt4Weight, counters_w4, linear_w4a16, pack_w4, widen_w4
from kernels.linear_w8a16 import counters_w8, linear_w8a16
from kernels.lora import Bank, lora, lora_reference
from kernels.moe import mixture, mixture_reference

LAYERS = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096))
"""Llama-3-8B's layers: inputs and outputs."""
FEW = 16
"""Rows up to which a product is bound by reading the weights, and has a target."""


def _dtype(tiny: bool) -> torch.dtype:
    """The interpreter has no bfloat16 products."""
    return torch.float32 if tiny else torch.bfloat16


def w4_cases(tiny: bool) -> Iterator[Case]:
    if tiny:
        shapes = [(1, 128, 64, 64, True), (3, 256, 128, 128, False)]
    else:
        shapes = [(rows, *layer, 128, True) for layer in LAYERS for rows in (1, FEW)]
        shapes += [(FEW, 1024, 4096, 128, True), (64, 4096, 4096, 128, True), (512, 4096, 4096, 128, True)]
        shapes += [
            (rows, 4096, 4096, group, False) for rows, group in ((3, 32), (17, 64), (33, 128), (65, 128))
        ]
        shapes += [(5, 4160, 136, 32, False)]
    for rows, inputs, outputs, group, timed in shapes:

        def make(
            device: torch.device,
            rows: int = rows,
            inputs: int = inputs,
            outputs: int = outputs,
            group: int = group,
        ) -> tuple[Any, ...]:
            codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8, device=device)
            scale, offset = (
                torch.randn(outputs, inputs // group, device=device).abs() / inputs**0.5 for _ in range(2)
            )
            weight = pack_w4(codes, scale, offset)
            x = torch.randn(rows, inputs, device=device).to(_dtype(tiny))
            return x, weight, counters_w4(weight)

        packed = inputs * outputs // 2 + 4 * outputs * inputs // group
        many = rows > FEW
        yield Case(
            "linear_w4a16",
            f"{rows} x {inputs} x {outputs} group={group}",
            make,
            lambda x, weight, counters: linear_w4a16(x, weight, None, counters),
            _w4_reference,
            bytes=packed if timed and not many else 0,
            flops=2 * rows * inputs * outputs if timed and many else 0,
            ceiling=MATMUL if many else COPY,
            target=0.7 if timed and not many else None,
            rivals=linear_rivals(lambda weight, counters: widen_w4(weight, torch.float32)) if timed else (),
        )


def _w4_reference(x: Tensor, weight: PackedInt4Weight, counters: Tensor) -> Tensor:
    return functional.linear(x.float(), widen_w4(weight, torch.float32))


def w8_cases(tiny: bool) -> Iterator[Case]:
    if tiny:
        shapes = [(1, 128, 64, True), (3, 144, 80, False)]
    else:
        shapes = [(rows, *layer, True) for layer in LAYERS for rows in (1, FEW)]
        shapes += [(FEW, 1024, 4096, True), (64, 4096, 4096, True), (512, 4096, 4096, True)]
        shapes += [
            (3, 4096, 4096, False),
            (17, 4112, 144, False),
            (33, 4096, 4096, False),
            (65, 4096, 4096, False),
        ]
    for op, run, dtype in (
        ("linear_w8a16", linear_w8a16, torch.int8),
        ("linear_fp8", linear_fp8, torch.float8_e4m3fn),
    ):
        for rows, inputs, outputs, timed in shapes:

            def make(
                device: torch.device,
                shape: tuple[int, ...] = (rows, inputs, outputs),
                dtype: torch.dtype = dtype,
            ) -> tuple[Tensor, ...]:
                rows, inputs, outputs = shape
                if dtype == torch.int8:
                    codes = torch.randint(-127, 128, (outputs, inputs), dtype=dtype, device=device)
                else:
                    codes = (64 * torch.randn(outputs, inputs, device=device)).clamp(-448, 448).to(dtype)
                scale = (torch.rand(outputs, device=device) + 0.5) / (64 * inputs**0.5)
                return (
                    torch.randn(rows, inputs, device=device).to(_dtype(tiny)),
                    codes,
                    scale,
                    counters_w8(codes),
                )

            many = rows > FEW
            yield Case(
                op,
                f"{rows} x {inputs} x {outputs}",
                make,
                lambda x, codes, scale, counters, run=run: run(x, codes, scale, None, counters),
                lambda x, codes, scale, counters: x.float() @ codes.float().T * scale,
                bytes=inputs * outputs + 4 * outputs if timed and not many else 0,
                flops=2 * rows * inputs * outputs if timed and many else 0,
                ceiling=MATMUL if many else COPY,
                target=0.8 if timed and not many else None,
                rivals=linear_rivals(lambda codes, scale, counters: codes.float() * scale[:, None])
                if timed
                else (),
                # Many rows are themselves rounded to three bits of mantissa.
                tolerance=0.25 if many and dtype == torch.float8_e4m3fn else None,
            )


def mixture_cases(tiny: bool) -> Iterator[Case]:
    """Mixtral's and Qwen3-30B-A3B's."""
    if tiny:
        shapes = [(3, 4, 2, 32, 16)]
    else:
        shapes = [(tokens, 8, 2, 4096, 14336) for tokens in (1, 16, 2048)]
        shapes += [(tokens, 128, 8, 2048, 768) for tokens in (1, 16, 64, 4096)]
        shapes += [(5, 5, 1, 200, 72), (33, 24, 8, 96, 80)]
    for tokens, count, top, hidden, width in shapes:

        def make(
            device: torch.device,
            tokens: int = tokens,
            count: int = count,
            hidden: int = hidden,
            width: int = width,
        ) -> tuple[Tensor, ...]:
            # No ties: the formula does not define which expert is taken.
            scores = torch.linspace(-3, 3, count, device=device)[
                torch.rand(tokens, count, device=device).argsort(-1)
            ]
            gate_up = torch.randn(count, 2 * width, hidden, dtype=_dtype(tiny), device=device) / hidden**0.5
            down = torch.randn(count, hidden, width, dtype=_dtype(tiny), device=device) / width**0.5
            x = torch.randn(tokens, hidden, device=device)
            return x.to(_dtype(tiny)), scores.to(_dtype(tiny)), gate_up, down

        # The expected number of experts that this many random choices touch.
        read = round(6 * hidden * width * count * (1 - (1 - top / count) ** tokens))
        timed, many = tiny or hidden >= 2048, tokens > 64
        yield Case(
            "moe",
            f"{tokens} x {hidden}, {top} of {count} x {width}",
            make,
            lambda *inputs, top=top: mixture(*inputs, top, True),
            lambda *inputs, top=top: mixture_reference(*(x.float() for x in inputs), top, True),
            bytes=read if timed and not many else 0,
            flops=6 * tokens * top * hidden * width if timed and many else 0,
            ceiling=MATMUL if many else COPY,
        )


def lora_cases(tiny: bool) -> Iterator[Case]:
    """All adapters have rows, and some rows have no adapter."""
    if tiny:
        shapes = [(5, 32, 40, 2, 8)]
    else:
        shapes = [(tokens, inputs, outputs, 8, 16) for inputs, outputs in LAYERS for tokens in (16, 64)]
        shapes += [(4096, 4096, 4096, 8, 16), (64, 4096, 4096, 32, 64), (7, 520, 130, 3, 5)]
    for tokens, inputs, outputs, places, rank in shapes:

        def make(
            device: torch.device, shape: tuple[int, ...] = (tokens, inputs, outputs, places, rank)
        ) -> tuple[Any, ...]:
            tokens, inputs, outputs, places, rank = shape
            bank = Bank.empty(places, rank, inputs, outputs, device, _dtype(tiny))
            for place in range(places):
                down, up = torch.randn(rank, inputs, device=device), torch.randn(outputs, rank, device=device)
                bank.put(place, down / inputs**0.5, up / rank**0.5)
            index = torch.arange(tokens, dtype=torch.int32, device=device) % (places + 1) - 1
            y, x = (torch.randn(tokens, width, device=device).to(_dtype(tiny)) for width in (outputs, inputs))
            return y, x, index[torch.randperm(tokens, device=device)], bank

        yield Case(
            "lora",
            f"{tokens} x {inputs} x {outputs}, {places} of rank {rank}",
            make,
            lambda y, *others: _changed(y, lora, *others),
            lambda y, x, index, bank: _changed(y.float(), lora_reference, x.float(), index, _wide(bank)),
            bytes=2 * (places * rank * (inputs + outputs) + tokens * (inputs + 2 * outputs))
            if tiny or inputs >= 4096
            else 0,
            ceiling=COPY,
        )


def _changed(y: Tensor, add: Any, *others: Any) -> Tensor:
    add(y, *others)
    return y


def _wide(bank: Bank) -> Bank:
    return Bank(bank.down.float(), bank.up.float(), bank.ranks, bank.spans)
