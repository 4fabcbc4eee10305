"""What one replay is told: a file between the command and the process that runs it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CACHE_TOKENS = 500_000


@dataclass(frozen=True, slots=True)
class Job:
    trace: str
    policies: str
    tenants: dict[str, float]
    """Of whom requests are that name nobody, with their shares."""
    models: dict[str, float]
    """Of those that name none."""
    seed: int = 0
    speed: float = 1.0
    most: int | None = None
    stream: bool | None = None
    """None: as recorded."""
    services: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    cache_tokens: int = CACHE_TOKENS
    also: tuple[str, ...] = ()
    """Files with more of the policy: keys of the state folder."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name in ("services", "faults", "also"):
            given[name] = tuple(given[name])
        return cls(**given)
