"""What all kernels share: the optional import of Triton, the choice of an implementation, and ahead-of-time variants.

An operation has up to three implementations: a Triton kernel for GPUs, C for CPUs (kernels/native), and a reference in
plain torch for any device. ``TOLLGATE_KERNELS=triton`` forces the first, which on a CPU needs
``TRITON_INTERPRET=1`` as well; ``TOLLGATE_KERNELS=reference`` the last. ``native`` is ``auto`` without
Triton, whose import takes 70 MiB: the engine sets it for itself on a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

try:
    if os.environ.get("TOLLGATE_KERNELS") == "native":
        raise ImportError("there is no GPU")
    import triton
    import triton.language as tl
except ImportError:
    # Kernels are then plain functions that are never launched: a machine without a GPU needs no Triton.
    triton = tl = None

ARCHS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""The chips that kernels are tuned and compiled for: A100, H100 and H200, B200, MI300X. Others use the nearest
below."""

PATHS = ("auto", "triton", "reference")


def jit(function: Callable[..., Any] | None = None, *, varying: Iterable[str] = ()) -> Any:
    """``triton.jit``, or the plain function without Triton.

    ``varying``: arguments that change between steps, such as a number of sequences. For other arguments Triton compiles
    separate versions if they are 1, or multiples of 16, which would stall a server for seconds.
    """
    if function is None:
        return partial(jit, varying=varying)
    if triton is None:
        return function
    if os.environ.get("TRITON_INTERPRET") == "1":
        patch_interpreter()
    return triton.jit(function, do_not_specialize=list(varying))


def patch_interpreter() -> None:
    """Fixes loops in Triton's interpreter before 3.7: its scalars are arrays of one element, which numpy 2.4 no longer
    accepts as integers."""
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor
    if getattr(original, "patched", False):
        return

    def patch(tensor: Any, *scope: Any) -> None:
        original(tensor, *scope)
        # As in Triton 3.7. The interpreter resets what it has patched.
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    patch.patched = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch


@cache
def path() -> str:
    """One of ``PATHS``. Raises ``ValueError`` for another, or for one that is not available."""
    wanted = os.environ.get("TOLLGATE_KERNELS", "auto")
    if wanted == "native":
        wanted = "auto"
    if wanted not in PATHS:
        raise ValueError(f"TOLLGATE_KERNELS={wanted} is not one of {', '.join(PATHS)}.")
    if wanted == "triton" and triton is None:
        raise ValueError("TOLLGATE_KERNELS=triton, but triton is not installed: pip install triton.")
    return wanted


def on_triton(x: Tensor) -> bool:
    """Whether operations on ``x`` launch their Triton kernels."""
    wanted = path()
    return wanted == "triton" or (wanted == "auto" and x.is_cuda and triton is not None)


@cache
def arch(device: torch.device) -> str:
    """The key in ``ARCHS`` for launch configurations. The interpreter uses sm_90's."""
    if device.type != "cuda":
        return "sm_90"
    if torch.version.hip:
        return "gfx942"
    capability = torch.cuda.get_device_capability(device)
    return "sm_100" if capability >= (10, 0) else "sm_90" if capability >= (9, 0) else "sm_80"


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of a kernel, as a launcher launches it for some shape and chip."""

    name: str
    """Unique in its file, such as ``bf16 head_dim=128 group=4``."""
    kernel: Any
    types: Mapping[str, str]
    """Types of the arguments that are not constants, in Triton's notation: ``*bf16``, ``*i64``, ``i32``, ``fp32``."""
    constants: Mapping[str, Any]
    """All ``tl.constexpr`` arguments."""
    num_warps: int = 4
    num_stages: int = 2
    dot: bool = False
    """Whether it multiplies matrices, so that the code must contain matrix instructions."""
    unaligned: frozenset[str] = field(default_factory=frozenset)
    """Arguments in ``types`` that may not be multiples of 16; all others are compiled as multiples."""
