"""Plans as rank 0 tells them to the others: without the histories of requests, and of block tables only what is new."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.core.plan import PENDING, Plan, ScheduledRequest
from engine.core.table_changes import TableChanges
from engine.worker.feed import FedPlan, Feed


@dataclass(slots=True)
class PlanDelta:
    """In columns, as numbers are packed faster than objects."""

    request_ids: list[int]
    starts: list[int]
    counts: list[int]
    """New tokens of each."""
    tokens: list[int]
    """Those of the first, then those of the next."""
    adapters: dict[int, str] = field(default_factory=dict)
    """By request."""
    tables: dict[int, tuple[int, list[list[int]]]] = field(default_factory=dict)
    """By request, where there is anything new: (first entry, it and those after it in each group's table)."""
    copies: list[tuple[int, int]] = field(default_factory=list)
    altered: dict[int, int] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    swaps: list[tuple[int, str]] = field(default_factory=list)
    fed: dict[int, int] = field(default_factory=dict)
    """By request whose last token is pending, its place among what the step before samples,"""
    samples: int = 0
    """how many these are,"""
    width: int = 1
    """and what is known of each."""
    slack: dict[int, int] = field(default_factory=dict)
    """By request, where it may begin earlier."""


class PlanSender:
    """Has to see each plan that is sent, in their order."""

    def __init__(self, block_size: int) -> None:
        self._known = TableChanges(block_size)

    def delta(self, plan: Plan, feed: Feed | None = None) -> PlanDelta:
        """``feed``: of the step before, if a token of it is still pending."""
        known, requests = self._known, plan.requests
        known.forget(plan.ended)
        known.alter(plan.altered)
        delta = PlanDelta(
            [scheduled.request_id for scheduled in requests],
            [scheduled.start for scheduled in requests],
            [len(scheduled.tokens) for scheduled in requests],
            [token for scheduled in requests for token in scheduled.tokens],
            copies=plan.copies,
            altered=plan.altered,
            ended=plan.ended,
            swaps=plan.swaps,
        )
        for scheduled in requests:
            first, end = known.since(scheduled)
            if first < end:
                tables = (scheduled.blocks, *scheduled.others)
                delta.tables[scheduled.request_id] = first, [table[first:end] for table in tables]
            if scheduled.adapter is not None:
                delta.adapters[scheduled.request_id] = scheduled.adapter
            if feed is not None and scheduled.tokens[-1] == PENDING:
                delta.fed[scheduled.request_id] = feed.rows[scheduled.request_id]
                delta.samples, delta.width = feed.count, feed.width
                if scheduled.slack:
                    delta.slack[scheduled.request_id] = scheduled.slack
        return delta


class PlanReceiver:
    def __init__(self) -> None:
        self._tables: dict[int, list[list[int]]] = {}
        """By request, in each group."""

    def plan(self, delta: PlanDelta) -> Plan | FedPlan:
        """What a rank that does not sample needs of the plan."""
        for request_id in delta.ended:
            self._tables.pop(request_id, None)
        for request_id, (first, entries) in delta.tables.items():
            if first == 0:
                self._tables[request_id] = entries
                continue
            for table, new in zip(self._tables[request_id], entries, strict=True):
                table[first:] = new
        plan = Plan(copies=delta.copies, altered=delta.altered, ended=delta.ended, swaps=delta.swaps)
        place = 0
        for request_id, start, count in zip(delta.request_ids, delta.starts, delta.counts, strict=True):
            blocks, *others = self._tables[request_id]
            plan.requests.append(
                ScheduledRequest(
                    request_id,
                    delta.tokens[place : place + count],
                    start,
                    blocks,
                    None,
                    False,
                    adapter=delta.adapters.get(request_id),
                    others=others,
                    slack=delta.slack.get(request_id, 0),
                )
            )
            place += count
        return FedPlan(plan, Feed(delta.fed, delta.samples, None, delta.width)) if delta.fed else plan
