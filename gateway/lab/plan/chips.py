"""The table of chips: ``chips.yaml``, and rows of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.numbers import parse_number

_NEEDED = ("memory", "bandwidth", "flops", "usd_per_hour")
_KNOWN = (*_NEEDED, "link", "per_node", "specs", "specs_verified", "price", "price_verified", "read")
_FORM = "h100: {memory: 80GB, bandwidth: 3350GB, flops: {bf16: 989T, fp8: 1979T}, usd_per_hour: 3.35}"


@dataclass(frozen=True, slots=True)
class Chip:
    name: str
    memory: float
    """Bytes,"""
    bandwidth: float
    """bytes a second from there,"""
    flops: Mapping[str, float]
    """and operations a second, by the precision of their inputs."""
    usd_per_hour: float
    link: float = 32e9
    """Bytes a second to its neighbours, in one direction."""
    per_node: int = 1
    """How many share such links."""
    source: str = ""
    price_source: str = ""
    read: str = ""

    def speed(self, precision: str) -> float:
        """Of products; a chip without an own speed for them widens what it reads to bf16."""
        return self.flops.get(precision) or self.flops["bf16"]


def read_chips(own: str | None) -> Mapping[str, Chip]:
    """By name; rows of the file ``own`` replace those that ship. Raises ``PlanError``."""
    shipped = (resources.files("gateway.lab.plan") / "chips.yaml").read_text("utf-8")
    found = dict(_rows(shipped, "chips.yaml"))
    if own is not None:
        try:
            found |= _rows(Path(own).read_text("utf-8"), own)
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"--chips {own}: {getattr(error, 'strerror', None) or error}") from None
    return found


def _rows(text: str, where: str) -> Mapping[str, Chip]:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PlanError(f"--chips {where}: {' '.join(str(error).split())}") from None
    rows = tree.get("chips") if isinstance(tree, dict) else None
    if not isinstance(rows, dict) or not rows:
        raise PlanError(f"--chips {where}: there must be 'chips:' with a row for each, as {_FORM}")
    return {str(name): _chip(str(name), row, where, str(tree.get("read", ""))) for name, row in rows.items()}


def _chip(name: str, row: Any, where: str, read: str) -> Chip:
    said = f"--chips {where}: {name}"
    if not isinstance(row, dict) or (missing := [key for key in _NEEDED if key not in row]):
        lacking = f"there is no {', '.join(missing)}" if isinstance(row, dict) else "is no row"
        raise PlanError(f"{said}: {lacking}; a row is {_FORM}")
    if unknown := sorted(set(map(str, row)) - set(_KNOWN)):
        raise PlanError(f"{said}: {', '.join(unknown)} is not known; there are {', '.join(_KNOWN)}")
    flops = row["flops"]
    if not isinstance(flops, dict) or "bf16" not in flops:
        raise PlanError(f"{said}: flops must have bf16, and may have fp8, as {_FORM}")
    try:
        return Chip(
            name,
            _positive(row["memory"], "B"),
            _positive(row["bandwidth"], "B"),
            {str(key): _positive(value) for key, value in flops.items()},
            float(row["usd_per_hour"]),
            _positive(row.get("link", "32GB"), "B"),
            int(row.get("per_node", 1)),
            f"{row.get('specs', '')}",
            f"{row.get('price', '')}",
            str(row.get("read", read)),
        )
    except (ValueError, TypeError) as error:
        raise PlanError(f"{said}: {error}") from None


def _positive(value: Any, unit: str = "") -> float:
    found = float(value) if isinstance(value, int | float) else parse_number(str(value), unit)
    if not found > 0:
        raise ValueError(f"{value!r} is not above 0")
    return found
