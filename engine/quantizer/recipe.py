"""What is asked of the quantizer."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import StartupError

METHODS = ("gptq", "awq", "smoothquant", "rtn", "plain")
CALIBRATED = ("gptq", "awq", "smoothquant")
_BITS = {"gptq": (4, 8), "rtn": (4, 8), "awq": (4,), "smoothquant": (8,), "plain": (16,)}


@dataclass(frozen=True, slots=True)
class Recipe:
    method: str
    """``rtn``: rounded to nearest, in GPTQ's layout. ``plain``: only widened, as of a GGUF file."""
    bits: int
    size: int
    """Inputs of a group; -1: one group for a whole row."""
    symmetric: bool = False
    """Whether all zero points are in the middle, which some kernels for GPUs require."""


def checked(method: str, bits: int | None, size: int, symmetric: bool) -> Recipe:
    """Raises ``StartupError`` for what no published layout stores."""
    allowed = _BITS[method]
    bits = allowed[0] if bits is None else bits
    if bits not in allowed:
        raise StartupError(
            f"--method {method} writes {' or '.join(map(str, allowed))} bits, not {bits}: no published layout "
            "has others."
        )
    if size != -1 and (size <= 0 or size % 32):
        raise StartupError(f"--group-size must be -1 or a multiple of 32, not {size}.")
    if method == "awq" and symmetric:
        raise StartupError("--method awq has zero points: leave out --symmetric, or take gptq.")
    return Recipe(method, bits, size, symmetric)
