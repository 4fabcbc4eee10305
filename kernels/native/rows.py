"""Norms, rotary embeddings and gated activations over rows of bfloat16 on a CPU, in C: one call in place of three to
eight torch operations, whose overhead dominates with the few rows of a decode step.

Formulas and shapes are in rms_norm.py, rope.py, swiglu.py and geglu.py. Here they are computed in float32 and
rounded once; a row's result depends on that row alone.
"""

from __future__ import annotations

from ctypes import Structure, c_float, c_int64, c_void_p
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.launch import path
from kernels.native.calls import Function
from kernels.native.library import load

_LANES = 16


class _Norm(Structure):
    """As in rows.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "residual", "weight", "out", "total")),
        *((name, c_int64) for name in ("rows", "size")),
        ("eps", c_float),
    )


class _Rotation(Structure):
    """As in rows.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "weight", "cos", "sin", "out")),
        *((name, c_int64) for name in ("stride", "tokens", "heads", "dim", "turned")),
        ("eps", c_float),
    )


class _Shifted(Structure):
    """As in rows.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("x", "cos", "sin", "bias", "factors", "shift", "out")),
        *((name, c_int64) for name in ("stride", "tokens", "heads", "dim", "turned")),
    )


class _Gate(Structure):
    """As in rows.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("gate_up", "out")),
        *((name, c_int64) for name in ("rows", "width", "is_gelu")),
    )


class _Functions(NamedTuple):
    """In C."""

    rms_norm: Function
    norm_rope: Function
    shifted_rope: Function
    gated: Function


@cache
def _library() -> _Functions | None:
    library = load("rows", *_Functions._fields) if path() == "auto" else None
    return (
        None
        if library is None
        else _Functions(*(Function(getattr(library, name)) for name in _Functions._fields))
    )


def takes(x: Tensor, *sizes: int) -> bool:
    """Whether rows of ``x`` are computed here; ``sizes``: what is passed over in whole vectors."""
    return (
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and all(size % _LANES == 0 for size in sizes)
        and _library() is not None
    )


def _functions() -> _Functions:
    functions = _library()
    if functions is None:
        raise RuntimeError("The C code of kernels/native/rows.c is not available on this machine.")
    return functions


def rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised ``x + residual``, and that sum. ``weight`` float32, as of rms_norm.py."""
    x = x.contiguous()
    out, total = torch.empty_like(x), x
    if residual is not None:
        residual, total = residual.contiguous(), torch.empty_like(x)
    _functions().rms_norm(
        _Norm(
            x.data_ptr(),
            None if residual is None else residual.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            total.data_ptr(),
            x.numel() // x.shape[-1] if x.numel() else 0,
            x.shape[-1],
            eps,
        )
    )
    return out, total


def norm_rope(x: Tensor, weight: Tensor | None, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """``weight``: as of rope.py, or none: then nothing is normalised."""
    tokens, heads, dim = x.shape
    x, cos, sin = _adjacent(x), cos.contiguous(), sin.contiguous()
    out = x.new_empty(tokens, heads, dim)
    _functions().norm_rope(
        _Rotation(
            x.data_ptr(),
            None if weight is None else weight.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            out.data_ptr(),
            x.stride(0),
            tokens,
            heads,
            dim,
            cos.shape[-1],
            eps,
        )
    )
    return out


def shifted_rope(x: Tensor, bias: Tensor, factors: Tensor, shift: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As of rope.py."""
    tokens, heads, dim = x.shape
    x, cos, sin = _adjacent(x), cos.contiguous(), sin.contiguous()
    out = x.new_empty(tokens, heads, dim)
    given = (one.data_ptr() for one in (x, cos, sin, bias, factors, shift, out))
    _functions().shifted_rope(_Shifted(*given, x.stride(0), tokens, heads, dim, cos.shape[-1]))
    return out


def _adjacent(x: Tensor) -> Tensor:
    """Tokens may lie apart, but not the heads of one."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def gated(gate_up: Tensor, *, gelu: bool = False) -> Tensor:
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    rows = out.numel() // width if width else 0
    _functions().gated(_Gate(gate_up.data_ptr(), out.data_ptr(), rows, width, gelu))
    return out
