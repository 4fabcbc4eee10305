"""What all kernels share: Triton if it is there, which path an operation takes, and what is compiled ahead of time.

An operation takes one of three paths: its Triton kernel on a GPU, C on a CPU where there is some (kernels/native), and
its reference in plain torch anywhere. ``TOLLGATE_KERNELS=triton`` forces the first, which on a CPU needs
``TRITON_INTERPRET=1`` as well; ``TOLLGATE_KERNELS=reference`` the last.
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
    import triton
    import triton.language as tl
except ImportError:
    # Kernels are then functions that nobody launches: a machine without a GPU needs no Triton.
    triton = tl = None

ARCHS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""What kernels are tuned and compiled for: A100, H100 and H200, B200, MI300X. Others take the nearest below."""

PATHS = ("auto", "triton", "reference")


def jit(function: Callable[..., Any] | None = None, *, varying: Iterable[str] = ()) -> Any:
    """``triton.jit``, or the function as it is where there is no Triton.

    ``varying``: arguments that are not the same in every step, such as a number of sequences. Of others a kernel is
    compiled anew once they are 1, or are (or are no longer) multiples of 16, which in a server is a pause of seconds.
    """
    if function is None:
        return partial(jit, varying=varying)
    if triton is None:
        return function
    if os.environ.get("TRITON_INTERPRET") == "1":
        mend_interpreter()
    return triton.jit(function, do_not_specialize=list(varying))


def mend_interpreter() -> None:
    """Lets Triton's interpreter count in loops. All its numbers are arrays of one, which numpy 2.4 no longer takes for
    numbers, and Triton before 3.7 relies on that."""
    from triton.runtime import interpreter

    theirs = interpreter._patch_lang_tensor
    if getattr(theirs, "mended", False):
        return

    def patch(tensor: Any, *scope: Any) -> None:
        theirs(tensor, *scope)
        # As Triton 3.7 has it. What they set they take back themselves.
        tensor.__index__ = lambda self: int(self.handle.data.squeeze())

    patch.mended = True  # type: ignore[attr-defined]
    interpreter._patch_lang_tensor = patch


@cache
def path() -> str:
    """One of ``PATHS``. Raises ``ValueError`` for another, or for one that cannot be taken here."""
    wanted = os.environ.get("TOLLGATE_KERNELS", "auto")
    if wanted not in PATHS:
        raise ValueError(f"TOLLGATE_KERNELS={wanted} is not one of {', '.join(PATHS)}.")
    if wanted == "triton" and triton is None:
        raise ValueError("TOLLGATE_KERNELS=triton, but triton is not installed: pip install triton.")
    return wanted


def on_triton(x: Tensor) -> bool:
    """Whether an operation on ``x`` is to launch its Triton kernel."""
    wanted = path()
    return wanted == "triton" or (wanted == "auto" and x.is_cuda and triton is not None)


@cache
def arch(device: torch.device) -> str:
    """Which of ``ARCHS`` the tables of launch configurations are read for. The interpreter takes sm_90's."""
    if device.type != "cuda":
        return "sm_90"
    if torch.version.hip:
        return "gfx942"
    capability = torch.cuda.get_device_capability(device)
    return "sm_100" if capability >= (10, 0) else "sm_90" if capability >= (9, 0) else "sm_80"


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of a kernel: what a launcher launches for some shape on some chip."""

    name: str
    """Unique in its file, such as ``bf16 head_dim=128 group=4``."""
    kernel: Any
    types: Mapping[str, str]
    """Of each argument that is no constant, in Triton's spelling: ``*bf16``, ``*i64``, ``i32``, ``fp32``."""
    constants: Mapping[str, Any]
    """All ``tl.constexpr`` arguments."""
    num_warps: int = 4
    num_stages: int = 2
    dot: bool = False
    """Whether it multiplies matrices: then their instructions must be in the code."""
    unaligned: frozenset[str] = field(default_factory=frozenset)
    """Arguments in ``types`` that need not be multiples of 16, as launched. All others are compiled as such."""
