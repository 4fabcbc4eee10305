"""``/v1/requests/{id}/feedback``: what a caller thinks of the answer to one of its own requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from gateway.databases.database import DatabaseError
from gateway.errors import BadRequest, NotFound, UpstreamUnavailable
from gateway.experiments.scores import CALLERS
from gateway.feedback.feedback import Feedback
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.ledger.request_search import RequestFilter, find_requests
from gateway.observe.ledger.score import write_score
from gateway.observe.metrics import Metrics
from gateway.policy.schema import Policy
from gateway.residency import allowed
from gateway.runtime.runtime import Runtime
from gateway.stores.store import StoreDown
from gateway.types import Arm, Principal
from gateway.web.body import read_body
from gateway.web.context import RequestContext
from gateway.web.counted import counted
from gateway.web.sending import send_body
from gateway.wire import json_body

NAME = "feedback"
"""Under which limits know these requests."""
SCORE = "user_feedback"
"""What its scores are called where traces are."""
MAX_BODY = 2**15
LONGEST_COMMENT, LONGEST_LABEL = 4000, 64
_ROW = 5.0
"""Seconds for which the ledger's row is waited for."""


class FeedbackBody(BaseModel):
    """At least one of the three. A request has one opinion: another replaces it."""

    model_config = ConfigDict(extra="forbid")
    score: Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)] | None = None
    """From 0 (useless) to 1 (right); thumbs are 0 and 1."""
    label: (
        Annotated[str, Field(min_length=1, max_length=LONGEST_LABEL, pattern=r"^[\w.:/-][\w .:/-]*$")] | None
    ) = None
    comment: Annotated[str, Field(min_length=1, max_length=LONGEST_COMMENT)] | None = None


class WrittenFeedback(BaseModel):
    id: str
    """The request's."""
    object: str = "tollgate.feedback"
    created: float
    """Unix time."""
    model: str
    score: float | None
    label: str | None
    comment: str | None


class SendFeedback:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST. Raises ``NotFound`` for requests of others, and for those that nobody remembers."""
        async with counted(scope, NAME) as headers:
            context = RequestContext.of(scope)
            caller, runtime = context.caller(), context.runtime
            request_id: str = scope["path_params"]["request_id"]
            data = await read_body(context.headers, receive, MAX_BODY)
            body = json_body.check(FeedbackBody, json_body.read_json(data, runtime.policy.limits))
            if body.score is None and body.label is None and body.comment is None:
                raise BadRequest("Feedback has a 'score' (0 to 1), a 'label' or a 'comment'.", param="score")
            answered = await _answered(context, caller.tenant, request_id)
            told = Feedback(
                tenant=caller.tenant,
                request_id=request_id,
                created=time.time(),
                key_id=caller.key_id,
                model=answered.model,
                backend=answered.backend,
                score=body.score,
                label=body.label,
                comment=body.comment,
            )
            try:
                before = await asyncio.to_thread(runtime.feedback.find, told.tenant, request_id)
                await asyncio.to_thread(runtime.feedback.write, told)
                had_score = before is not None and before.score is not None
                if runtime.ledger is not None and (told.score is not None or had_score):
                    # A label or a comment alone leaves the score of a judge there.
                    await asyncio.to_thread(_write_score, runtime.ledger, told)
            except DatabaseError as error:
                raise UpstreamUnavailable(
                    "Feedback cannot be kept now. Send it again.", retry_after=1.0
                ) from error
            await _tell_telemetry(context, caller, told)
            if told.score is not None and (before is None or before.score is None):
                _tell_rollouts(runtime, answered, told.score)
            if told.score is not None and told.model in runtime.policy.models:
                self._metrics.feedback_score[(told.model,)].observe(told.score)
            answer = WrittenFeedback(
                id=request_id,
                created=told.created,
                model=answered.model,
                score=body.score,
                label=body.label,
                comment=body.comment,
            )
            await send_body(send, orjson.dumps(answer.model_dump()), headers=headers)


async def _tell_telemetry(context: RequestContext, caller: Principal, told: Feedback) -> None:
    """To where the request's trace went, if any did."""
    telemetry = context.runtime.telemetry
    if telemetry is None or not telemetry.takes_scores:
        return
    trace_id = receipt = None
    with suppress(StoreDown):
        receipt = await context.runtime.receipts.find(caller.tenant, told.request_id)
        if receipt is not None:
            noted = receipt["stages"].get("trace", {})
            if not noted.get("sampled"):
                return
            trace_id = noted.get("trace_id")
    policy = context.runtime.policy
    may_leave = _may_leave(policy, caller, told.model) and not _was_kept(policy, receipt)
    comment = told.comment if may_leave else None
    telemetry.scored(told.request_id, SCORE, told.score, told.label, comment, trace_id=trace_id)


def _may_leave(policy: Policy, caller: Principal, model: str) -> bool:
    """Whether what is said of ``model``'s answer may be where traces are; as their contents, a comment may quote."""
    tenant = policy.tenants.get(caller.tenant)
    within = allowed(policy, caller, model) if policy.has_residency else None
    is_local = tenant is not None and tenant.local_only
    return not is_local and (within is None or policy.regions.get("telemetry") in within)


def _was_kept(policy: Policy, receipt: Mapping[str, Any] | None) -> bool:
    """Whether a guard (``action: local``) kept the request's content here; yes where nobody knows any more."""
    if receipt is None:
        return any(guard.action == "local" for guard in policy.guards.values())
    found = receipt["stages"].get("guard_input", {}).get("guards", {})
    return any(one.get("action") == "local" for one in found.values())


class _Answered(NamedTuple):
    """Who answered, as what: ``arm`` of a roll-out where its own target did, to a request that came ``at``."""

    model: str
    backend: str
    at: float = 0.0
    arm: Arm | None = None


def _tell_rollouts(runtime: Runtime, answered: _Answered, score: float) -> None:
    """The first score of a request; what a caller thinks of it later says the same request twice."""
    if runtime.rollouts is not None and answered.arm is not None:
        runtime.rollouts.scored(answered.arm, CALLERS, answered.at, score)


def _write_score(ledger: Ledger, told: Feedback) -> None:
    """Into the request's row, which this worker may be about to write."""
    if not write_score(ledger.database, told.tenant, told.request_id, told.score):
        ledger.wait_drained(_ROW)
        write_score(ledger.database, told.tenant, told.request_id, told.score)


async def _answered(context: RequestContext, tenant: str, request_id: str) -> _Answered:
    """Who answered the tenant's request: by the ledger, or by a receipt that is ahead of it."""
    runtime = context.runtime
    if runtime.ledger is not None:
        where = RequestFilter(request_id=request_id, tenant=tenant)
        try:
            rows = (await asyncio.to_thread(find_requests, runtime.ledger.database, where, limit=1)).rows
        except DatabaseError as error:
            raise UpstreamUnavailable(
                "The ledger cannot be read now. Send it again.", retry_after=1.0
            ) from error
        if rows:
            row = rows[0]
            arm = Arm(row["experiment"], row["arm"]) if row["arm"] and row["attempts"] == 1 else None
            if arm is not None and runtime.policy.experiments and runtime.rollouts is not None:
                arm = await _rolled_out(runtime, tenant, request_id) or arm
            return _Answered(row["answered_model"] or row["model"], row["backend"] or "", row["created"], arm)
    try:
        receipt = await runtime.receipts.find(tenant, request_id)
    except StoreDown as error:
        raise UpstreamUnavailable(f"Receipts cannot be read now. {error}", retry_after=1.0) from error
    if receipt is None:
        raise NotFound(f"No request '{request_id[:128]}' of yours is on record.")
    stages = receipt["stages"]
    attempts = stages.get("fallback", {}).get("attempts") or [{}]
    found = stages.get("rollout") or stages.get("experiment")
    arm = Arm(found["name"], found["arm"]) if found is not None and len(attempts) == 1 else None
    return _Answered(
        stages.get("route", {}).get("model", ""), attempts[-1].get("backend", ""), receipt["created"], arm
    )


async def _rolled_out(runtime: Runtime, tenant: str, request_id: str) -> Arm | None:
    """The side of a roll-out within an arm of an experiment: only the receipt knows, for as long as it is kept."""
    with suppress(StoreDown):
        receipt = await runtime.receipts.find(tenant, request_id)
        if receipt is not None and (found := receipt["stages"].get("rollout")) is not None:
            return Arm(found["name"], found["arm"])
    return None
