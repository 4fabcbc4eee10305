"""A batch, as it is kept: who made it, what it runs, how far it has come."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from operator import add
from typing import Literal

from gateway.types import Json

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})
ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/moderations",
)
MOST_NUMBER = 0xFFFFF
"""Lines of a file are counted up to here, empty ones included."""
WINDOW = 86_400
"""Seconds of ``completion_window: 24h``, the only one."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Over all lines with a result."""

    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class Creator:
    """Who made it, as far as their credential said so: a token's claims are not to be had again."""

    key_id: str
    tenant: str
    tier: str
    models: tuple[str, ...]
    user_agent: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Times are Unix time, in whole seconds; None is not yet."""

    id: str
    creator: Creator
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    metadata: Mapping[str, str] | None = None
    output_seconds: int | None = None
    """For how long its files are kept; None: until they are deleted."""
    total: int = 0
    """Lines; 0 until they are known."""
    model: str | None = None
    """None where its lines name several, or none."""
    sums: Sums = field(default_factory=Sums)
    errors: tuple[Mapping[str, Json], ...] = ()
    """Of its input: ``code``, ``line`` (from 1), ``message`` and ``param``."""
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None

    @property
    def tenant(self) -> str:
        return self.creator.tenant

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def request_id(self, number: int) -> str:
        """Of line ``number`` (from 1): the ledger has one row under it, however often the line runs."""
        return f"{self._request_ids}{number:05x}"

    @property
    def request_ids(self) -> tuple[str, str]:
        """The least and the greatest of its lines."""
        return f"{self._request_ids}00000", f"{self._request_ids}fffff"

    @property
    def _request_ids(self) -> str:
        """As other requests' ids, which begin with the time, too: when the batch was made, and 32 random bits."""
        return f"req_{self.id.removeprefix('batch_')[:19]}"


def new_id() -> str:
    """Later ones are greater, so that a list by id is one by time."""
    return f"batch_{time.time_ns() // 1_000_000:011x}{random.getrandbits(84):021x}"
