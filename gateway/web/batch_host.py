"""What batches run in: the policy in force, and the endpoints that answer requests of callers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from starlette.routing import Route
from starlette.types import Message, Scope

from gateway.batches.batch import Batch, Creator
from gateway.batches.batch_table import BatchTable
from gateway.batches.host import LineAnswer, LineRequest
from gateway.batches.input_lines import InputLine, LineError, read_lines
from gateway.children.process_pool import PoolBusy, ProcessDied, ProcessPool
from gateway.databases.database import Database
from gateway.errors import BadRequest, GatewayError, Internal, UpstreamUnavailable
from gateway.files.stored_files import StoredFiles
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import reason_of
from gateway.policy.schema import BatchSettings
from gateway.server.cycle import CONNECTION_STATE, ConnectionState
from gateway.server.headers import by_name
from gateway.sidecar.api import TENANT
from gateway.types import Principal
from gateway.web.context import RequestContext
from gateway.wire.openai.errors import error_body

if TYPE_CHECKING:
    from gateway.runtime.runtime import Runtime

log = logging.getLogger(__name__)

PARSING = 60.0
"""Seconds of processor time that a megabyte of lines may take."""
RECORDING = 5.0
"""Seconds for which the ledger is waited for. What it has not written by then may be lost with the process."""


class BatchHost:
    """A ``gateway.batches.host.Host``. Lines are requests to ``endpoints``, without a connection."""

    def __init__(
        self,
        current: Callable[[], Runtime],
        endpoints: Mapping[str, Route],
        pool: ProcessPool,
        metrics: Metrics,
    ) -> None:
        self._current = current
        self._endpoints = endpoints
        self._pool = pool
        self._metrics = metrics

    def table(self) -> BatchTable:
        return self._current().batches

    def files(self) -> StoredFiles:
        files = self._current().files
        if files is None:
            raise UpstreamUnavailable("The policy has files switched off ('files: {enabled: false}').")
        return files

    def settings(self) -> BatchSettings:
        return self._current().policy.batches

    def holder(self, creator: Creator) -> Principal:
        known = Principal(creator.key_id, creator.tenant, creator.models, creator.tier)
        return self._current().authenticator.still(known)

    def refusal(self, principal: Principal, model: str) -> LineError | None:
        runtime = self._current()
        known = runtime.policy.resolve(model)
        if known is not None and (principal.may_use(known) or principal.may_use(model)):
            return None
        if runtime.adapters is not None and runtime.adapters.find(principal, model) is not None:
            return None
        return LineError(
            "model_not_found",
            f"The model '{model[:128]}' does not exist, or this key may not use it.",
            "body.model",
        )

    async def parse(self, tenant: str, data: bytes, endpoint: str) -> list[InputLine | LineError | None]:
        try:
            return await self._pool.run(tenant, PARSING, read_lines, data, endpoint)
        except TimeoutError:
            raise BadRequest("The input takes too long to check. Send fewer values in it.") from None
        except (PoolBusy, ProcessDied) as error:
            raise UpstreamUnavailable(f"The input could not be checked: {error!r}.") from error

    async def answer(self, asked: LineRequest) -> LineAnswer:
        runtime = self._current()
        received = _Received(asked.body)
        scope = _scope(asked, self._endpoints[asked.endpoint])
        headers = by_name(scope["headers"])
        context = RequestContext(
            asked.request_id, runtime, headers, principal=asked.principal, line=asked.line
        )
        context.put(scope)
        TENANT.set(asked.principal.tenant)
        with runtime.in_use():
            try:
                await self._endpoints[asked.endpoint].app(scope, received.receive, received.send)
            except GatewayError as error:
                return self._refused(context, error)
            except Exception:
                log.exception("%s failed inside the gateway", asked.request_id)
                fault = Internal(
                    f"The gateway failed on this request. Its log has the reason under {asked.request_id}."
                )
                return self._refused(context, fault)
        return LineAnswer(received.status, bytes(received.body))

    async def recorded(self) -> None:
        ledger = self._current().ledger
        if ledger is not None and ledger.waiting:
            await asyncio.to_thread(ledger.wait_drained, RECORDING)

    async def charged(self, batch: Batch) -> frozenset[str]:
        ledger = self._current().ledger
        return (
            frozenset()
            if ledger is None
            else await asyncio.to_thread(_charged, ledger.database, *batch.request_ids)
        )

    def count(self, outcome: str, lines: int = 1) -> None:
        self._metrics.batch_lines_ended[(outcome,)].inc(lines)

    def show(self, lines: Mapping[str, int], batches: Mapping[str, int]) -> None:
        self._metrics.batch_lines.sample({(state,): float(count) for state, count in lines.items()})
        self._metrics.batches.sample({(status,): float(count) for status, count in batches.items()})

    def _refused(self, context: RequestContext, error: GatewayError) -> LineAnswer:
        line = context.line
        if not error.logged and (line is None or line.is_final(error)):
            context.runtime.accounting.record_refusal(
                context.request_id, context.principal, error.status, reason_of(error), is_question=True
            )
        return LineAnswer(error.status, error_body(error, context.request_id), error)


class _Received:
    """Both ends of a connection that is not there: nobody leaves it."""

    def __init__(self, body: bytes) -> None:
        self._asked: bytes | None = body
        self.status = 0
        self.body = bytearray()

    async def receive(self) -> Message:
        if self._asked is None:
            await asyncio.get_running_loop().create_future()
        body, self._asked = self._asked, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self.body += message.get("body", b"")


def _scope(asked: LineRequest, route: Route) -> Scope:
    return {
        "type": "http",
        "method": "POST",
        "path": asked.endpoint,
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"user-agent", asked.user_agent.encode("latin-1", "replace")),
        ],
        "route": route,
        CONNECTION_STATE: ConnectionState(),
    }


def _charged(database: Database, low: str, high: str) -> frozenset[str]:
    if not database.exists():
        return frozenset()
    query = "SELECT request_id FROM requests WHERE request_id BETWEEN :low AND :high"
    with database.reading() as reader:
        if "requests" not in reader.tables():
            return frozenset()
        found = reader.rows(query, {"low": low, "high": high})
    return frozenset(str(row["request_id"]) for row in found)
