"""All cases, in order of importance: a run may end before the last ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernels.bench import attention, ceilings, elementwise, products, sampling
from kernels.bench.case import Case

SOURCES: tuple[Callable[[bool], Iterator[Case]], ...] = (
    ceilings.cases,
    attention.decode_cases,
    attention.prefill_cases,
    products.w4_cases,
    products.w8_cases,
    products.mixture_cases,
    sampling.sample_cases,
    sampling.edit_cases,
    products.lora_cases,
    attention.store_cases,
    attention.store_int4_cases,
    elementwise.rms_norm_cases,
    elementwise.rope_cases,
    elementwise.gated_cases,
)


def all_cases(tiny: bool = False) -> list[Case]:
    """``tiny``: the smallest shapes of each kind, for a dry run on a CPU."""
    return [case for source in SOURCES for case in source(tiny)]
