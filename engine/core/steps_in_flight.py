"""Steps that were submitted and are not committed yet: what they do for requests, and the blocks they may write to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.core.block_tables import BlockTables
from engine.core.plan import Plan
from engine.core.request import Request


class StepsInFlight:
    """Steps are numbered, and committed in the order in which they were submitted.

    A request that ends while a step with it is in flight keeps its blocks until that step has landed: no block is given
    to another while something writes to it.
    """

    def __init__(self, tables: BlockTables, *, separate: bool = False) -> None:
        """``separate``: none reads what another samples, as that is not known where it is computed."""
        self._separate = separate
        self.submitted = 0
        """The number of the last step that was submitted,"""
        self.landed = 0
        """and of the last one whose results are there."""
        self.last = Plan()
        """What the last one computes."""
        self.ended: list[Request] = []
        """Those that have ended, and hold their blocks until they are out of all steps."""
        self.parking: dict[int, Request] = {}
        """By id: those to be parked when they are out of all steps."""
        self.spoiled: list[Request] = []
        """Those whose states they have changed, or will, for nothing: these start again when they are out of all
        steps."""
        self._tables = tables

    def __contains__(self, request: Request) -> bool:
        return request.step > self.landed

    def __len__(self) -> int:
        return self.submitted - self.landed

    def submit(self, plan: Plan, requests: Mapping[int, Request]) -> None:
        """What it is to compute for ``requests`` need not be planned again."""
        self.submitted += 1
        self.last = plan
        for scheduled in plan.requests:
            request = requests.get(scheduled.request_id)
            if request is None:
                continue
            request.step = self.submitted
            request.in_flight += len(scheduled.tokens)
            if scheduled.sampling is not None:
                request.pending += 1 + scheduled.num_draft_tokens
                request.unverified += scheduled.num_draft_tokens

    def land(self, plan: Plan, requests: Mapping[int, Request]) -> None:
        """The first of them is done. What it did for requests is about to be recorded."""
        self._land(1)
        for scheduled in plan.requests:
            request = requests.get(scheduled.request_id)
            if request is None or request.void >= self.landed:
                continue
            request.in_flight -= len(scheduled.tokens)
            if scheduled.sampling is not None:
                request.pending -= 1 + scheduled.num_draft_tokens
                request.unverified -= scheduled.num_draft_tokens

    def correct(self, requests: Mapping[int, Request]) -> None:
        """What has landed is recorded: by now it is known where the last of them goes on."""
        for scheduled in self.last.requests if len(self) else ():
            request = requests.get(scheduled.request_id)
            if scheduled.slack and request is not None and request.void < self.submitted:
                scheduled.start, scheduled.slack = request.computed, 0

    def retract(self, running: Iterable[Request]) -> None:
        """They had no effect, and can be planned again."""
        for request in running:
            if request in self:
                self.void(request)
        self._land(len(self))

    def void(self, request: Request) -> None:
        """Whatever they do for it does not count."""
        request.in_flight = request.pending = request.unverified = 0
        request.draft_tokens = []
        request.void = self.submitted

    def dropped(self, plan: Plan, requests: Mapping[int, Request]) -> set[int]:
        """Requests whose samples in ``plan``, the first of them, do not count any more."""
        found: set[int] = set()
        for scheduled in plan.requests:
            request = requests.get(scheduled.request_id)
            if request is None or request.void > self.landed:
                found.add(scheduled.request_id)
                found.update(sibling.id for sibling in scheduled.siblings)
        return found

    def must_wait(self, request: Request) -> bool:
        """Whether what they do for it must be known before more is planned: it then ends for sure, or if all draft
        tokens are accepted; or its siblings begin, or it is parked, or starts again."""
        if request.id in self.parking or request in self.spoiled:
            return True
        if not request.pending:
            return False
        if self._separate:
            return True
        return bool(request.siblings) or request.generated + request.pending >= request.params.max_tokens

    def close(self, request: Request) -> None:
        """Gives its blocks back, now or when they are written."""
        if request in self:
            self.ended.append(request)
        else:
            self._tables.close(request)

    def _land(self, steps: int) -> None:
        self.landed += steps
        if self.ended:
            for request in self.ended:
                if request not in self:
                    self._tables.close(request)
            self.ended = [request for request in self.ended if request in self]
