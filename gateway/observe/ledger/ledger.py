"""The ledger: one row for every request and what it cost, in a database that all workers share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from gateway.databases.database import Database, DatabaseError, Row
from gateway.databases.tables import SPENDINGS
from gateway.metering.bill import NOTHING, Charge
from gateway.observe.batch_writer import BatchWriter, TryAgain
from gateway.observe.ended import Ended
from gateway.observe.ledger.end_users import EndUsers
from gateway.types import Principal, Usage

RETRY = 1.0
"""Seconds after which a failed write is tried again."""

_LONGEST_NAME = 256
_NOTHING_HAPPENED = (None, None, "", False, 0, "", "", "", "", None, "")
"""The columns ``HAPPENED`` of a request that was no call."""

log = logging.getLogger(__name__)

_Entry = Row | Ended
"""A request that has ended is made a row, or several, where it is written."""


class Ledger:
    """Rows are queued by ``record`` and written in batches (``gateway.observe.batch_writer``).

    When the database fails or falls far behind, rows are lost, not requests. One for each process and database.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._table = database.writer()
        self._end_users = EndUsers(database)
        self._writer = BatchWriter("ledger", self._write, end=self._table.close)
        self._away = False
        """Whether the last attempt to write failed."""
        self.refusals: Counter[str] = Counter()
        """Requests that the model declined, by its public name, of those that were written; counted in the thread."""

    @property
    def lost(self) -> int:
        """Requests that were not recorded."""
        return self._writer.lost

    @property
    def waiting(self) -> int:
        """Rows that are not yet written."""
        return self._writer.backlog

    @property
    def closed(self) -> bool:
        return self._writer.closed

    def record(self, ended: Ended) -> None:
        """Record a request that has ended, with its last attempt. Repeating it changes nothing."""
        if not self._writer.add(ended):
            self._warn_behind()

    def record_charges(
        self,
        request_id: str,
        created: float,
        principal: Principal,
        charges: Iterable[Charge],
        user_agent: str = "",
    ) -> None:
        """Record charges of ``principal`` other than answers, on account of a request. ``created`` is Unix time."""
        for row in _spendings(request_id, created, principal, charges, user_agent):
            self._add(row)

    def record_refusal(self, request_id: str, principal: Principal, status: int, error: str) -> None:
        """Record a request that was refused before it was a call: for its key, its path or its body."""
        who = (principal.tenant, principal.key_id, principal.tier)
        nothing = (None, None, None, status, False, 0, 0, 0, 0, 0, False, 0.0, 0, error, 0, 0, "", "", 0.0)
        self._add((request_id, time.time(), *who, "", *nothing, *_NOTHING_HAPPENED))

    def wait_drained(self, timeout: float) -> bool:
        """Block until no row is waiting to be written; False if it takes longer than ``timeout`` seconds."""
        return self._writer.flush(timeout)

    async def aclose(self) -> None:
        """Write what is still waiting, within a few seconds."""
        await asyncio.to_thread(self._writer.close)
        if self._writer.waiting():
            log.error("%d requests are missing from the ledger '%s'", self.lost, self.database)

    def _add(self, row: Row) -> None:
        if not self._writer.add(row):
            self._warn_behind()

    def _warn_behind(self) -> None:
        message = "the ledger '%s' falls behind: %d requests are not recorded so far"
        self._writer.warn(log, message, self.database, self.lost)

    def _write(self, entries: list[_Entry]) -> None:
        rows: list[Row] = []
        try:
            for entry in entries:
                try:
                    rows += _rows(entry, self._end_users) if isinstance(entry, Ended) else [entry]
                except DatabaseError:
                    raise
                except Exception:
                    self._writer.lost += 1
                    log.exception("a row of the ledger '%s' is lost to a bug", self.database)
            self._insert(rows)
            self._count_refusals(entries)
            if self._away:
                self._away = False
                log.info(
                    "the ledger '%s' can be written again: %d requests that waited are entered",
                    self.database,
                    len(self._writer.waiting()),
                )
        except DatabaseError as error:
            message = "the ledger '%s' cannot be written (%s); it is tried again, %d requests wait"
            self._writer.warn(log, message, self.database, error, len(self._writer.waiting()))
            self._away = True
            raise TryAgain(RETRY) from error
        except Exception as error:
            # Such as a count that is too large for the database: the rest of the batch must not fail with it for ever.
            log.error(
                "a row of the ledger '%s' cannot be written: %s: %s",
                self.database,
                type(error).__name__,
                error,
            )
            for row in rows:
                self._insert_alone(row)

    def _count_refusals(self, entries: list[_Entry]) -> None:
        for entry in entries:
            if isinstance(entry, Ended) and entry.model_refused and entry.candidate is not None:
                self.refusals[entry.candidate.model] += 1

    def _insert(self, rows: list[Row]) -> None:
        spendings = [row for row in rows if len(row) == len(SPENDINGS)]
        requests = [row for row in rows if len(row) != len(SPENDINGS)] if spendings else rows
        self._table.insert(requests, spendings)

    def _insert_alone(self, row: Row) -> None:
        try:
            self._insert([row])
        except Exception:
            self._writer.lost += 1


def _rows(ended: Ended, end_users: EndUsers) -> Iterator[Row]:
    """A request's own row, and those of what was charged beside its answer."""
    principal, candidate, bill = ended.principal, ended.candidate, ended.bill
    answer = bill.answer
    used = answer.upstream.usage if answer is not None else NOTHING
    yield (
        ended.request_id,
        ended.created,
        principal.tenant,
        principal.key_id,
        principal.tier,
        ended.asked[:_LONGEST_NAME],
        candidate.model if candidate else None,
        candidate.target.backend if candidate else None,
        candidate.target.model if candidate else None,
        ended.status,
        ended.stream,
        used.prompt,
        used.cached,
        used.completion,
        used.reasoning,
        answer.nanodollars if answer is not None else 0,
        answer is not None and answer.upstream.estimated,
        ended.seconds,
        ended.attempts or len(bill.charges),
        ended.error,
        used.cache_write,
        used.cache_write_1h,
        ended.user_agent,
        *_units(used),
        *_happened(ended, end_users),
    )
    yield from _spendings(ended.request_id, ended.created, principal, bill.others, ended.user_agent)


def _happened(ended: Ended, end_users: EndUsers) -> Row:
    """The columns ``HAPPENED``."""
    chosen = ended.noted.get("experiment", {})
    return (
        ended.first_token,
        ended.inter_token,
        ended.finish_reason or "",
        ended.model_refused,
        ended.usage.completion if ended.usage is not None else 0,
        end_users.hash_of(ended.principal.tenant, ended.end_user),
        ended.tags,
        str(chosen.get("name", ""))[:_LONGEST_NAME],
        str(chosen.get("arm", ""))[:_LONGEST_NAME],
        None,
        end_users.hash_of(ended.principal.tenant, str(chosen.get("assignee", ""))),
    )


def _spendings(
    request_id: str, created: float, principal: Principal, charges: Iterable[Charge], user_agent: str
) -> Iterator[Row]:
    for number, (upstream, nanodollars) in enumerate(charges):
        used = upstream.usage
        yield (
            request_id,
            number,
            created,
            principal.tenant,
            principal.key_id,
            principal.tier,
            upstream.purpose,
            upstream.model[:_LONGEST_NAME],
            upstream.target.backend,
            upstream.target.model,
            used.prompt,
            used.cached,
            used.completion,
            used.reasoning,
            nanodollars,
            upstream.estimated,
            used.cache_write,
            used.cache_write_1h,
            user_agent,
            *_units(used),
        )


def _units(used: Usage) -> tuple[str, float]:
    return ("", 0.0) if used.units is None else (used.units.unit, float(used.units.amount))
