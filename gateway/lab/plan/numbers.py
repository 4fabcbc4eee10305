"""Numbers as people write and read them: 7B, 80GB, 3.35TB/s."""

from __future__ import annotations

import math
import re

_FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "p": 1e15}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmbgtp]?|[kmgt]i)", re.IGNORECASE)


def parse_number(text: str, unit: str = "") -> float:
    """``7B``, ``80GB`` (with ``unit`` "B"), ``3.35T``, ``1e12``. Raises ``ValueError``."""
    plain = text.strip()
    found = _NUMBER.fullmatch(plain)
    if found is None and unit and plain.lower().endswith(unit.lower()):
        found = _NUMBER.fullmatch(plain[: -len(unit)].strip())
    if found is None:
        raise ValueError(f"'{text}' is no number such as 7B, 1.5T or 4096{unit}")
    factor = found[2].lower()
    value = float(found[1]) * (_BINARY[factor] if factor in _BINARY else _FACTORS[factor])
    if not math.isfinite(value):
        raise ValueError(f"'{text}' is too large")
    return value


def with_unit(value: float, unit: str = "") -> str:
    """Three digits: ``14 GB``, ``328 kB``, ``6.74 B``."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:
            return f"{_three(value / factor)} {prefix}{unit}"
    return f"{_three(value)} {unit}".rstrip()


def count(value: float) -> str:
    """Of parameters: ``6.74B``, ``494M``."""
    for factor, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * factor:
            return f"{_three(value / factor)}{suffix}"
    return _three(value)


def money(dollars: float) -> str:
    if dollars >= 100:
        return f"${dollars:,.0f}"
    return f"${dollars:.2f}" if dollars >= 1 else f"${dollars:.3f}"


def seconds(value: float) -> str:
    """``0.4 ms``, ``38 ms``, ``1.25 s``."""
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"


def _three(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
