"""Kernels with a fault each, that ``python -m kernels report`` must find; the variant's name says which."""

from __future__ import annotations

import os
from collections.abc import Iterator

from kernels.launch import Variant, jit, tl


@jit
def _dot_kernel(a, b, out, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    product = tl.dot(
        tl.load(a + m[:, None] * K + k), tl.load(b + k[:, None] * N + n), input_precision=PRECISION
    )
    tl.store(out + m[:, None] * N + n, product)


@jit
def _loop_kernel(a, b, out, size, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, size, K):
        x = tl.load(a + m[:, None] * size + start + k)
        total = tl.dot(x, tl.load(b + (start + k[:, None]) * N + n), total)
    tl.store(out + m[:, None] * N + n, total)


@jit
def _copy_kernel(x, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.load(x + i))


@jit
def _wrong_kernel(x, SIZE: tl.constexpr):
    tl.store(x + tl.arange(0, SIZE), tl.no_such_function(SIZE))


class _Crash:
    """In the place of a kernel: what compiles it dies."""

    @property
    def arg_names(self) -> list[str]:
        os._exit(1)


def _dot(name: str, dtype: str, precision: str) -> Variant:
    constants = {"PRECISION": precision, "M": 32, "N": 32, "K": 32}
    return Variant(
        name, _dot_kernel, {"a": f"*{dtype}", "b": f"*{dtype}", "out": "*fp32"}, constants, dot=True
    )


def _loop(name: str, m: int, n: int, k: int, warps: int, stages: int) -> Variant:
    types = {"a": "*bf16", "b": "*bf16", "out": "*fp32", "size": "i32"}
    return Variant(name, _loop_kernel, types, {"M": m, "N": n, "K": k}, warps, stages, dot=True)


def _copy(name: str, size: int = 4096, **changes: object) -> Variant:
    return Variant(
        name, _copy_kernel, {"x": "*bf16", "out": "*bf16"}, {"SIZE": size}, **{"num_warps": 4, **changes}
    )


def variants(arch: str) -> Iterator[Variant]:
    yield _dot("good dot", "bf16", "tf32")
    yield _loop("good loop", 64, 64, 64, 4, 2)
    yield _copy("good copy")
    yield _copy("good copy of single numbers", unaligned=frozenset({"x"}))
    yield _loop("spills", 256, 256, 32, 4, 1)
    yield _loop("too much shared memory", 128, 256, 128, 8, 4)
    yield _copy("too many threads", num_warps=32 if arch.startswith("gfx") else 64)
    yield _copy("no dot where one is promised", dot=True)
    yield _copy("twice")
    yield _copy("twice", 2048)
    yield Variant("does not compile", _wrong_kernel, {"x": "*bf16"}, {"SIZE": 64})
    yield Variant("misnamed argument", _copy_kernel, {"x": "*bf16", "y": "*bf16"}, {"SIZE": 64})
    if arch != "gfx942":  # There matrix instructions take float32 as it is.
        yield _dot("dot without matrix instructions", "fp32", "ieee")
    else:  # Once, and last: what is under way then is compiled again, one by one.
        yield Variant("crashes the compiler", _Crash(), {}, {})
