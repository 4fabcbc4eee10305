"""What families with Mamba 2 beside attention have in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import UnsupportedModel
from engine.models.config import Raw, integer
from engine.models.mixers import Mamba2Mixer

_DEFAULTS = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}


def mamba2_mixers(raw: Raw, attending: Sequence[bool]) -> tuple[Mamba2Mixer | None, ...]:
    """``attending``: which layers have attention.

    Raises ``UnsupportedModel`` if none has, or if a setting would be ignored.
    """
    if not any(attending):
        raise UnsupportedModel("Models without a layer that has attention are not supported.")
    raw = {**_DEFAULTS, **raw}
    limit = [_number(end) for end in raw.get("time_step_limit") or (0.0, math.inf)]
    if limit[0] > 0 or limit[1] != math.inf:
        raise UnsupportedModel(f"time_step_limit {limit!r} is not supported: [0.0, Infinity] is.")
    heads, inner = integer(raw, "mamba_n_heads"), integer(raw, "mamba_expand") * integer(raw, "hidden_size")
    if inner % heads or raw.get("mamba_d_head", "auto") not in ("auto", inner // heads):
        raise UnsupportedModel(
            f"mamba_n_heads ({heads}) heads of mamba_d_head ({raw.get('mamba_d_head')}) are not mamba_expand times "
            f"hidden_size ({inner})."
        )
    mixer = Mamba2Mixer(
        kernel=integer(raw, "mamba_d_conv"),
        heads=heads,
        head_dim=inner // heads,
        groups=integer(raw, "mamba_n_groups"),
        size=integer(raw, "mamba_d_state"),
        bias=bool(raw.get("mamba_proj_bias")),
        conv_bias=bool(raw.get("mamba_conv_bias", True)),
    )
    return tuple(None if attends else mixer for attends in attending)


def _number(value: Any) -> float:
    """transformers 5 writes infinity as an object, as JSON has none."""
    return float(value["__float__"] if isinstance(value, Mapping) else value)
