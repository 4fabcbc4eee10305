"""What rules read, and what they find."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from gateway.policy.content import mappings_at
from gateway.policy.problems import Diagnostic
from gateway.policy.schema import Key, Policy

Findings = Iterator[Diagnostic]


@dataclass(frozen=True, slots=True)
class Draft:
    """A policy as it is written, valid or not, so that one mistake does not hide the others."""

    content: Mapping[str, Any]
    folder: Path | None = None
    """Where the files that it names must exist and the engines that it launches must start; None: neither is looked at.
    """

    @property
    def guards(self) -> dict[str, dict[str, Any]]:
        """Each with its kind."""
        return {name: {"kind": name, **guard} for name, guard in mappings_at(self.content, "guards").items()}


def _today() -> date:
    return datetime.now(UTC).date()


@dataclass(frozen=True, slots=True)
class Valid:
    """A valid policy."""

    policy: Policy
    written: Mapping[str, Any]
    """What is written, as far as it makes ``policy``."""
    keys: tuple[Key, ...]
    """Those of the YAML files, which are the first of the policy's. Those of tables were checked when they were read.
    """
    disabled: Collection[str] = ()
    folder: Path | None = None
    """Where the files lie that it names."""
    today: date = field(default_factory=_today)

    @classmethod
    def of(cls, policy: Policy, written: Mapping[str, Any] | None = None) -> Valid:
        """With nothing known but the policy."""
        return cls(policy, written or {}, policy.keys)
