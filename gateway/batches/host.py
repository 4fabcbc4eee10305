"""What running batches needs of the gateway around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.batches.batch import Batch, Creator
from gateway.batches.batch_table import BatchTable
from gateway.batches.input_lines import InputLine, LineError
from gateway.errors import GatewayError
from gateway.files.stored_files import StoredFiles
from gateway.policy.schema import BatchSettings
from gateway.types import BatchLine, Principal


@dataclass(frozen=True, slots=True)
class LineRequest:
    """One line, as a request of its caller's."""

    request_id: str
    endpoint: str
    body: bytes
    principal: Principal
    user_agent: str
    line: BatchLine


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """What a caller would have got."""

    status: int
    body: bytes
    error: GatewayError | None = None
    """What the body tells of, where it is one of ours."""


class Host(Protocol):
    """By the policy in force at each call."""

    def table(self) -> BatchTable: ...

    def files(self) -> StoredFiles: ...

    def settings(self) -> BatchSettings: ...

    def holder(self, creator: Creator) -> Principal:
        """Who made a batch, as the policy has them now. Raises ``Unauthenticated`` where their credential is no longer
        accepted, and ``AuthUnavailable``."""
        ...

    def refusal(self, principal: Principal, model: str) -> LineError | None:
        """Why lines may not ask ``model``."""
        ...

    async def parse(self, tenant: str, data: bytes, endpoint: str) -> list[InputLine | LineError | None]:
        """``read_lines``, past the event loop."""
        ...

    async def answer(self, asked: LineRequest) -> LineAnswer:
        """Have it pass all stages that a request of its caller's would. Raises nothing but cancellation."""
        ...

    async def recorded(self) -> None:
        """Wait until the ledger has written what was recorded so far."""
        ...

    async def charged(self, batch: Batch) -> frozenset[str]:
        """The ids of lines' requests that the ledger has."""
        ...

    def count(self, outcome: str, lines: int = 1) -> None:
        """For metrics: ``completed``, ``failed``, ``reclaimed``, ``repeated``."""
        ...

    def show(self, lines: Mapping[str, int], batches: Mapping[str, int]) -> None:
        """For metrics: how many are in which state here."""
        ...
