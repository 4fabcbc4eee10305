"""The reference of the policy's keys, as ``policies/README.md`` has it in tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gateway.policy.yaml_tree import typed

PAGE = Path(__file__).with_name("reference.md")
"""The source's policies/README.md."""
_HEADING = re.compile(r"### `kind: (\w+)`")
_ROW = re.compile(r"\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|")
_LIMIT = re.compile(r"\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|")
_LIMITS = "## Limits"
"""The section whose table says what the limits of tenants, tiers and keys count."""
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_ELSEWHERE = ("see above", "as below")
"""Effects that stand in another row."""


class Key(NamedTuple):
    kind: str | None
    """Of the backend or guard that has it; None where all have it, and for what is neither's."""
    path: str
    """``backends.<name>.base_url``, ``keys[].id``."""


class Row(NamedTuple):
    type: str
    default: str
    """As it is written, ``required`` or ``none``."""
    effect: str

    @property
    def has_default(self) -> bool:
        return self.default not in ("required", "none")

    @property
    def value(self) -> Any:
        """The default's."""
        return yaml.safe_load(self.default) if self.default[0] in '[{"' else typed(self.default)

    @property
    def description(self) -> str:
        """The effect, without links; empty where it stands in another row."""
        return "" if self.effect in _ELSEWHERE else _LINK.sub(r"\1", self.effect)


def rows(page: str) -> Mapping[Key, Row]:
    """Raises ``ValueError`` where a key has two rows."""
    found: dict[Key, Row] = {}
    limits: dict[str, str] = {}
    kind, in_limits = None, False
    for line in page.splitlines():
        if line.startswith("#"):
            heading = _HEADING.fullmatch(line)
            kind, in_limits = heading[1] if heading else None, line.startswith(_LIMITS)
        elif in_limits and (limit := _LIMIT.fullmatch(line)):
            limits |= dict.fromkeys(re.findall(r"\w+", limit[1]), limit[2].strip())
        elif match := _ROW.fullmatch(line):
            key = Key(kind, match[1])
            if key in found:
                raise ValueError(f"{key.path} is documented twice")
            effect = match[4].strip()
            if effect in _ELSEWHERE:
                effect = limits.get(key.path.rpartition(".")[2], effect)
            found[key] = Row(match[2].strip(), match[3].strip("` "), effect)
    return found
