"""Numbers of a config.json by the names that families give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.lab.plan.errors import PlanError

_MOST = 2**31


class Fields:
    def __init__(self, raw: Mapping[str, Any], name: str) -> None:
        self.raw = raw
        self.name = name

    def number(self, *keys: str, default: int | None = None) -> int:
        """The first that is there; null counts as missing, and of a list with one for each layer it is the mean.

        Raises ``PlanError``.
        """
        for key in keys:
            if (value := self.raw.get(key)) is None:
                continue
            if isinstance(value, list) and value and all(isinstance(one, int | float) for one in value):
                value = round(sum(value) / len(value))  # another in each layer
            whole = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
            if not whole or not (0 if default is not None else 1) <= value < _MOST:
                raise PlanError(f"{self.name}: '{key}' is {value!r}: a whole number above 0 is expected")
            return int(value)
        if default is None:
            raise PlanError(
                f"{self.name}: there is no '{keys[0]}': is it the config.json of a language model? Numbers can be "
                "given in its place: --model params=7B,layers=32,kv_heads=8,head_dim=128"
            )
        return default
