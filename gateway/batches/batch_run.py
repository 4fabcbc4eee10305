"""One batch from its input to its files, by the process that owns it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Literal, TypeVar

from gateway.batches.batch import Batch, Status
from gateway.batches.batch_table import BatchTable, LeaseLost
from gateway.batches.host import Host
from gateway.batches.input_lines import InputLine, LineError
from gateway.batches.line import Line, LineState, failed
from gateway.batches.model_run import ModelRun
from gateway.batches.pace import Pace
from gateway.batches.result_writer import ResultWriter
from gateway.batches.validation import Checked, Validation
from gateway.databases.database import DatabaseError
from gateway.errors import BadRequest, GatewayError, Unauthenticated
from gateway.files.file_table import FileMissing
from gateway.types import Principal

log = logging.getLogger(__name__)

RETRY = 2.0
"""Seconds after which a step that failed for want of a database or a store of files is tried again."""
AFTER_BUG = 60.0

Stop = Literal["cancelled", "expired", "lost", "released"]

_T = TypeVar("_T")
_EXPIRED = "This request could not be executed before the completion window expired."
_CANCELLED = "The batch was cancelled before this request was executed."


class BatchRun:
    """``run`` it; ``stop`` ends it early. Whatever ends it, what has a result is kept."""

    def __init__(self, host: Host, table: BatchTable, owner: str, batch: Batch, pace: Pace) -> None:
        self._host = host
        self.table = table
        self._owner = owner
        self._pace = pace
        self.batch = batch
        self._stopped: Stop | None = "cancelled" if batch.status == "cancelling" else None
        self._step: asyncio.Task[None] | None = None
        self._models: list[ModelRun] = []
        self._writer: ResultWriter | None = None
        self._left = 0

    @property
    def running(self) -> int:
        """Lines."""
        return sum(len(model.queue.running) for model in self._models)

    @property
    def pending(self) -> int:
        """Lines without a result, those that run not counted."""
        if self._writer is None:
            return 0
        done = self._writer.sums.completed + self._writer.sums.failed
        return max(0, self.batch.total - done - self.running)

    def policy_changed(self) -> None:
        for model in self._models:
            model.policy_changed()

    def stop(self, why: Stop) -> None:
        """Lines in flight are cancelled."""
        if self._stopped in ("lost", "released") or self._stopped == why:
            return
        self._stopped = why
        if self._step is not None and not self._step.done():
            self._step.cancel()

    async def run(self) -> None:
        """Raises nothing but cancellation, which is taken as ``lost``."""
        try:
            if self.batch.status == "validating" and self._stopped is None:
                await self._until_stopped(self._validate())
            if self.batch.status == "in_progress" and self._stopped is None:
                await self._until_stopped(self._run_lines())
            if self._stopped == "released":
                await self._flushed()
                await asyncio.to_thread(self.table.release, self._owner, self.batch.id)
            if self._stopped in ("lost", "released") or self.batch.has_ended:
                return
            await self._flushed()
            await self._finish()
        except LeaseLost:
            log.warning("batch %s is run by another process now", self.batch.id)
        except (DatabaseError, GatewayError) as error:
            log.warning("batch %s is put off: %s", self.batch.id, error)
            await asyncio.sleep(RETRY)
        except Exception:
            log.exception("batch %s is put off, or has failed", self.batch.id)
            await self._give_up()
        finally:
            if self._writer is not None:
                await self._writer.aclose()

    async def _give_up(self) -> None:
        """A bug: what cannot be read fails, what runs already goes on a while later."""
        if self.batch.status != "validating":
            await asyncio.sleep(AFTER_BUG)
            return
        try:
            await self._fail(
                [_problem("internal_error", "The gateway failed on this input. Its log has the reason.")]
            )
        except (DatabaseError, LeaseLost):
            await asyncio.sleep(RETRY)

    async def _until_stopped(self, work: Coroutine[None, None, None]) -> None:
        self._step = step = asyncio.create_task(work)
        try:
            await asyncio.wait([step])
        finally:
            if not step.done():
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)
        if not step.cancelled():
            step.result()

    async def _flushed(self) -> None:
        if self._writer is not None:
            await self._writer.flush()

    # Validating.

    async def _validate(self) -> None:
        batch = self.batch
        try:
            principal = self._host.holder(batch.creator)
        except Unauthenticated as error:
            await self._fail([_problem("invalid_request", error.message)])
            return
        checked = Checked()
        validation = Validation(
            batch.endpoint,
            most_lines=self._host.settings().max_lines,
            parse=self._parse,
            keep=self._keep,
            refusal=self._refusal(principal),
        )
        try:
            async with aclosing(self._host.files().read(batch.tenant, batch.input_file_id)) as parts:
                checked = await validation.of(parts)
        except BadRequest as error:
            await self._fail([_problem("invalid_request", error.message)])
            return
        except FileMissing:
            message = f"The input file '{batch.input_file_id}' does not exist any more."
            await self._fail([_problem("invalid_request", message, "input_file_id")])
            return
        if checked.errors:
            await self._fail(checked.errors)
            return
        model = next(iter(checked.models)) if len(checked.models) == 1 else None
        await self._kept(self.table.begin, checked.lines, model or None, _now())
        await self._reload()

    async def _parse(self, data: bytes, endpoint: str) -> list[InputLine | LineError | None]:
        return await self._host.parse(self.batch.tenant, data, endpoint)

    async def _keep(self, lines: Sequence[Line]) -> None:
        await self._kept(self.table.add_lines, lines)

    def _refusal(self, principal: Principal) -> Callable[[str], LineError | None]:
        return lambda model: self._host.refusal(principal, model)

    async def _fail(self, errors: Sequence[object]) -> None:
        await self._kept(self.table.end, "failed", _now(), errors)
        await self._reload()

    # Running.

    async def _run_lines(self) -> None:
        paid = await self._host.charged(self.batch)
        self._writer = ResultWriter(
            self._host, self.table, self._owner, self.batch, lambda: self.stop("lost")
        )
        models = await asyncio.to_thread(self.table.models, self.batch.id)
        self._models = [
            ModelRun(self._host, self.table, self.batch, model, self._writer, paid, self._pace)
            for model in models
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for model in self._models:
                    group.create_task(model.run())
        except* Unauthenticated as refused:
            error = next(one for one in refused.exceptions if isinstance(one, Unauthenticated))
            await self._refuse_all(error)

    async def _refuse_all(self, error: Unauthenticated) -> None:
        """Every line that has no result gets this one."""
        await self._flushed()
        after = 0
        while lines := await asyncio.to_thread(self.table.lines, self.batch.id, ["pending"], after):
            for one in lines:
                if self._writer is not None:
                    message = f"This request was not executed: {error.message}"
                    code = error.code or "invalid_api_key"
                    await self._writer.add(failed(self.batch.id, one.line, code, message))
            after = lines[-1].line.number

    # Ending.

    async def _finish(self) -> None:
        """Write the files, as far as they are not there, and end."""
        while True:
            try:
                if self._stopped != "cancelled":
                    await self._kept(self.table.finish, _now())
                await self._reload()
                if self.batch.total:  # else it was cancelled before its input was known to be good
                    await self._write_file("output", self.batch.output_file_id)
                    await self._write_file("error", self.batch.error_file_id)
                await self._kept(self.table.end, await self._last_status(), _now())
                return
            except DatabaseError as error:
                log.warning("batch %s cannot be ended, which is tried again: %s", self.batch.id, error)
            except GatewayError as error:
                log.warning("files of batch %s cannot be written yet: %s", self.batch.id, error)
            await asyncio.sleep(RETRY)

    async def _last_status(self) -> Status:
        if self.batch.status == "cancelling":
            return "cancelled"
        if self._stopped == "expired":
            return "expired"
        unfinished = await asyncio.to_thread(self.table.lines, self.batch.id, ["pending"], 0, 1)
        return "expired" if unfinished else "completed"

    async def _write_file(self, kind: Literal["output", "error"], written: str | None) -> None:
        states: list[LineState] = ["completed"] if kind == "output" else ["failed", "pending"]
        if written is not None or not await asyncio.to_thread(self.table.lines, self.batch.id, states, 0, 1):
            return
        batch, now = self.batch, _now()
        expires = None if batch.output_seconds is None else now + batch.output_seconds
        file = await self._host.files().create(
            batch.tenant,
            f"{batch.id}_{kind}.jsonl",
            "batch_output",
            self._parts(states),
            key_id=batch.creator.key_id,
            expires_at=expires,
        )
        await self._kept(self.table.set_file, kind, file.id)

    async def _parts(self, states: Sequence[LineState]) -> AsyncIterator[bytes]:
        """The lines of a file, in the order of the input."""
        after = 0
        while lines := await asyncio.to_thread(self.table.lines, self.batch.id, states, after):
            after = lines[-1].line.number
            yield "".join(
                (one.result if one.state != "pending" else self._undone(one.line)) + "\n" for one in lines
            ).encode()

    def _undone(self, line: Line) -> str:
        if self.batch.status == "cancelling":
            return failed(self.batch.id, line, "batch_cancelled", _CANCELLED).written
        return failed(self.batch.id, line, "batch_expired", _EXPIRED).written

    async def _kept(self, change: Callable[..., _T], *given: object) -> _T:
        """A change by the owner, which is not given up half-way."""
        return await asyncio.shield(asyncio.to_thread(change, self._owner, self.batch.id, *given))

    async def _reload(self) -> None:
        found = await asyncio.to_thread(self.table.find, self.batch.tenant, self.batch.id)
        if found is None:
            raise LeaseLost(self.batch.id)
        self.batch = found


def _now() -> int:
    return int(time.time())


def _problem(code: str, message: str, param: str | None = None) -> dict[str, str | None]:
    return {"code": code, "line": None, "message": message, "param": param}
