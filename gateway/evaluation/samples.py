"""What one policy generation has judged: which answers, which of them beside a shadow's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase

from gateway.evaluation.work import Asked, Side, Work
from gateway.metering.bill import Bill
from gateway.metering.price import NANO
from gateway.observe.accounting import RequestAccounting
from gateway.observe.ended import Ended
from gateway.policy.schema import Evaluation, Policy
from gateway.recording.kept_answer import KeptAnswer
from gateway.recording.masking import TextMasker
from gateway.recording.sampling import forbids_storage, fraction
from gateway.residency import residency_of
from gateway.types import Call, Chunk

_MOST = 10_000
"""Answers that are kept while they come."""

Add = Callable[[Work], object]


class ShadowedAnswer:
    """An answer of which a copy's is on its way, too."""

    def __init__(self, call: Call, add: Add) -> None:
        self.answer = KeptAnswer(call.request, call.model)
        self.shadow = KeptAnswer(call.request, call.model)
        self.began = time.perf_counter()
        self._add = add
        self._work: Work | None = None
        """Without the shadow; it is judged so, too, where ``_alone``."""
        self._alone = False
        self._shadow: Side | None = None
        self._failed = False

    def chunk(self, chunk: Chunk) -> None:
        """Of the copy's answer."""
        self.shadow.add(chunk)

    def copy_ended(self, copy: Call, status: int, seconds: float) -> None:
        """``seconds`` from its beginning, which was the answer's as well."""
        self._failed = status != 200
        notes = copy.receipt.notes
        attempts = notes.get("fallback", {}).get("attempts") or [{}]
        target = f"{attempts[-1].get('backend')}/{attempts[-1].get('model')}"
        cost = float(notes.get("quota", {}).get("cost_usd") or 0.0)
        self._shadow = Side(copy.model, target, self.shadow, seconds, round(cost * NANO))
        self._both()

    def ended(self, work: Work, *, alone: bool) -> None:
        self._work, self._alone = work, alone
        self._both()

    def _both(self) -> None:
        if self._work is None or self._shadow is None:
            return
        if not self._failed:
            self._add(replace(self._work, shadow=self._shadow))
        elif self._alone:
            self._add(self._work)


class Samples:
    """In the place of ``accounting``, which is told of everything first."""

    def __init__(
        self, policy: Policy, config: Evaluation, accounting: RequestAccounting, masker: TextMasker, add: Add
    ) -> None:
        self._accounting = accounting
        self._masker = masker
        self._add = add
        self._config = config
        self._share, self._shadows = config.share, config.shadows
        self._models = {
            name: any(fnmatchcase(name, pattern) for pattern in config.models) for name in policy.models
        }
        self._answers: dict[int, KeptAnswer] = {}
        """Of requests that are on their way, by the receipt's identity; and those that have a copy."""
        self._shadowed: dict[str, ShadowedAnswer] = {}
        """By the request's id: what is shared by equal requests in flight has a receipt of its own."""

    def begin(self, call: Call) -> KeptAnswer | None:
        """What is to have the text of its answer; None where that is not judged."""
        if fraction(call.request_id) >= self._share or not self._may(call):
            return None
        answer = self._answers[id(call.receipt)] = KeptAnswer(call.request, call.model)
        return answer

    def begin_copy(self, call: Call) -> ShadowedAnswer | None:
        """The same where a copy of ``call`` goes to a shadow model; not of a cascade's steps."""
        if call.purpose != "answer" or fraction(call.request_id) >= self._shadows or not self._may(call):
            return None
        if call.request_id in self._shadowed:
            return None
        if len(self._shadowed) >= _MOST:  # of callers who left before their copies began
            del self._shadowed[next(iter(self._shadowed))]
        shadowed = self._shadowed[call.request_id] = ShadowedAnswer(call, self._add)
        return shadowed

    def record(self, call: Call, ended: Ended) -> None:
        self._accounting.record(call, ended)
        answer = self._answers.pop(id(call.receipt), None) if self._answers else None
        shadowed = self._shadowed.pop(call.request_id, None) if self._shadowed else None
        candidate = ended.candidate
        if (answer is None and shadowed is None) or candidate is None:
            return
        if ended.error is not None or ended.status != 200 or ended.cached is not None:
            return
        if ended.noted.get("guard_output", {}).get("cut") is not None:
            return
        if forbids_storage(call):  # which a copy's beginning may not have seen, in a flight of a cache
            return
        asked = Asked(
            call.request_id,
            call.principal,
            ended.created,
            call.route,
            _is_local_only(call),
            residency_of(call),
            self._masker,
            candidate.arm if ended.attempts == 1 else None,
            None if call.trace is None else call.trace.trace_id,
        )
        charge = ended.bill.answer
        target = f"{candidate.target.backend}/{candidate.target.model}"
        cost = charge.nanodollars if charge is not None else 0
        if shadowed is not None:
            seconds = time.perf_counter() - shadowed.began
            side = Side(candidate.model, target, shadowed.answer, seconds, cost)
            shadowed.ended(Work(asked, side), alone=answer is not None)
        elif answer is not None:
            self._add(Work(asked, Side(candidate.model, target, answer, ended.seconds, cost)))

    def record_for_house(self, call: Call, bill: Bill) -> None:
        self._accounting.record_for_house(call, bill)

    def _may(self, call: Call) -> bool:
        if call.line is not None or not call.request.generates or not self._models.get(call.model, False):
            return False
        if len(self._answers) >= _MOST or forbids_storage(call):
            return False
        tenant = call.principal.tenant
        return not any(fnmatchcase(tenant, pattern) for pattern in self._config.excluded_tenants)


def _is_local_only(call: Call) -> bool:
    tenant = call.policy.tenants.get(call.principal.tenant)
    return call.local_only or (tenant is not None and tenant.local_only)
