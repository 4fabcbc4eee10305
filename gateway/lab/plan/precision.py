"""How weights and keys are kept: bytes a number, and which of a chip's speeds applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.lab.plan.errors import PlanError


@dataclass(frozen=True, slots=True)
class Precision:
    name: str
    bits: float
    """Of a weight, its share of the scales included."""
    speed: str = "bf16"
    """The speed of a chip by which products are computed: weights that are kept smaller are widened before."""


PRECISIONS: Mapping[str, Precision] = {
    one.name: one
    for one in (
        Precision("fp32", 32.0, "fp32"),
        Precision("bf16", 16.0),
        Precision("fp16", 16.0),
        Precision("fp8", 8.03, "fp8"),
        # Weights alone, each group of them with a scale: W8A16 and W4A16. One scale of two bytes for each row, or for
        # 32, 64 or 128 weights with a zero point, as in the engine (docs/engine.md) and in GPTQ and AWQ.
        Precision("int8", 8.03),
        Precision("int4", 4.25),
        Precision("int4-32", 5.0),
    )
}
KV_BYTES: Mapping[str, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
"""Of a key's or value's number. Quantized ones have a scale of four bytes for each key and value: see ``kv_number``."""
SCALED = ("fp8", "int8")


def precision(name: str, option: str = "--quantization") -> Precision:
    """Raises ``PlanError``."""
    found = PRECISIONS.get(_alias(name))
    if found is None:
        raise PlanError(f"{option}: '{name}' is not known; these are: {', '.join(PRECISIONS)}")
    return found


def kv_layer_bytes(kv_dtype: str, kept: int, head_dim: int, latent: int | None) -> int:
    """Bytes of what a layer keeps of a token; with scales where it is quantized. Raises ``PlanError``."""
    name = _alias(kv_dtype)
    if name in KV_BYTES:
        return int(kept * KV_BYTES[name])
    if name in SCALED:
        heads = 1 if latent is not None else kept // (2 * head_dim)
        return kept + heads * 2 * 4
    raise PlanError(f"--kv-dtype: '{kv_dtype}' is not known; these are: {', '.join((*KV_BYTES, *SCALED))}")


def _alias(name: str) -> str:
    plain = name.lower().removeprefix("torch.")
    return {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32"}.get(
        plain, plain
    )
