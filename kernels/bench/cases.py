"""All cases, those that matter most first: what time is left for runs out at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernels.bench import attention, ceilings, drawing, elementwise, products
from kernels.bench.case import Case

SOURCES: tuple[Callable[[bool], Iterator[Case]], ...] = (
    ceilings.cases,
    attention.decode_cases,
    attention.prefill_cases,
    products.w4_cases,
    products.w8_cases,
    products.mixture_cases,
    drawing.sample_cases,
    drawing.edit_cases,
    drawing.verify_cases,
    products.lora_cases,
    attention.store_cases,
    elementwise.rms_norm_cases,
    elementwise.rope_cases,
    elementwise.gated_cases,
)


def all_cases(tiny: bool = False) -> list[Case]:
    """``tiny``: of the same kinds, as small as they can be, for a trial on a CPU."""
    return [case for source in SOURCES for case in source(tiny)]
