"""``/admin/api/rollouts``: how far they have come and what was seen of them; and stopping one, or beginning it anew."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.admin.site import actor_of
from gateway.errors import Conflict, NotFound, Overloaded
from gateway.experiments.assignment import CONTROL, NEW
from gateway.experiments.evidence import ArmCounts
from gateway.experiments.keeper import NoSuchRollout, NotNow
from gateway.experiments.rollout_state import RolloutState, enough
from gateway.intervals import wilson
from gateway.metering.price import NANO
from gateway.policy.schema import Rollout
from gateway.runtime.rollouts import Rollouts
from gateway.stores.store import StoreDown
from gateway.web.operation import Operation


class ArmSeen(Told):
    """What was seen of one side in the present run."""

    requests: int
    errors: float
    """Their share of requests; between ``errors_low`` and ``errors_high`` with 95 % confidence."""
    errors_low: float
    errors_high: float
    refusals: float
    """The share of requests that the model declined."""
    ttft_p95: float | None = None
    """Seconds."""
    cost: float | None = None
    """Dollars of a usual request (the median)."""
    mean_cost: float | None = None
    scored: int
    """Answers that a judge or a caller gave a score."""
    score: float | None = None
    """Their mean, from 0 to 1."""


class GuardSeen(Told):
    name: str
    tolerated: float
    """How many times the control's."""
    evidence: float
    """That it is exceeded: at 1 the roll-out returns."""


class DecisionTold(Told):
    at: float
    """Unix time."""
    run: int
    what: str
    share: float
    """Per cent, from then on."""
    why: str
    by: dict[str, str] | None = None
    """Left out where the gateway decided."""


class RolloutSeen(Told):
    model: str
    backend: str
    target: str
    """What is rolled out."""
    status: str
    """``running``, ``completed``, ``returned``, ``stopped``; ``unknown`` while its state cannot be read."""
    run: int
    share: float
    """Per cent of keys that go to it."""
    steps: list[float]
    hold: float
    """Seconds."""
    key: str
    since: float
    """When the present step, or the end, began."""
    waits_for: str
    """What has to happen before the next step."""
    control: ArmSeen
    new: ArmSeen
    guards: list[GuardSeen]
    decisions: list[DecisionTold]
    """Newest first."""


class RolloutList(Told):
    rollouts: list[RolloutSeen]


def operations(rollouts: Rollouts) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> RolloutList:
        return RolloutList(
            rollouts=[
                _seen(model, rollout, rollouts.state(experiment))
                for experiment, (model, rollout) in rollouts.of_policy.items()
            ]
        )

    async def stop(request: Request) -> RolloutSeen:
        return await change(request, begins=False)

    async def begin(request: Request) -> RolloutSeen:
        return await change(request, begins=True)

    async def change(request: Request, *, begins: bool) -> RolloutSeen:
        model = str(request.path["name"])
        found = next(
            ((one, rollout) for one, (name, rollout) in rollouts.of_policy.items() if name == model), None
        )
        if found is None:
            raise NotFound(f"The model '{model}' has no roll-out.")
        _, rollout = found
        actor = actor_of(request.scope, request.context.caller())
        try:
            state = await (rollouts.begin if begins else rollouts.stop)(model, actor)
        except NoSuchRollout:
            raise NotFound(f"The model '{model}' has no roll-out any more.") from None
        except NotNow as error:
            raise Conflict(
                f"The roll-out of '{model}' is running. Stop it before you begin it anew."
                if begins
                else f"The roll-out of '{model}' is not running, but {error.status}."
            ) from None
        except StoreDown as error:
            raise Overloaded(
                f"The roll-out's state cannot be changed ({error}). Try again.", retry_after=2.0
            ) from None
        return _seen(model, rollout, state)

    about = "How far roll-outs have come, and what was seen of them"
    path = "/rollouts/{name:path}"
    stops, begins = "Send nothing more to the new target", "From the first step, without what was seen before"
    return [
        (operation("GET", "/rollouts", "listRollouts", about, RolloutList), show),
        (operation("POST", f"{path}/stop", "stopRollout", stops, RolloutSeen, errors=(404, 409, 503)), stop),
        (
            operation("POST", f"{path}/begin", "beginRollout", begins, RolloutSeen, errors=(404, 409, 503)),
            begin,
        ),
    ]


def _seen(model: str, rollout: Rollout, state: RolloutState | None) -> RolloutSeen:
    known = state or RolloutState()
    guards = rollout.guard.tolerated
    needed = enough(len(guards))
    return RolloutSeen(
        model=model,
        backend=rollout.to.backend,
        target=rollout.to.model,
        status=known.status if state is not None else "unknown",
        run=known.run,
        share=known.share,
        steps=[*rollout.steps],
        hold=rollout.hold,
        key=rollout.key,
        since=known.since,
        waits_for=known.waits_for(rollout, time.time()) if state is not None else "",
        control=_arm(known, CONTROL),
        new=_arm(known, NEW),
        guards=[
            GuardSeen(
                name=name,
                tolerated=tolerated,
                evidence=min(1.0, max(0.0, known.evidence.log_evidence(name, tolerated) / needed)),
            )
            for name, tolerated in guards.items()
        ],
        decisions=[_decision(asdict(one)) for one in reversed(known.decisions)],
    )


def _decision(content: Mapping[str, object]) -> DecisionTold:
    return DecisionTold.model_validate({**content})


def _arm(state: RolloutState, arm: str) -> ArmSeen:
    counts = ArmCounts()
    for part in (state.evidence.total, state.evidence.block):
        counts.merge(part[arm])
    errors = counts.errors / counts.requests if counts.requests else 0.0
    low, high = wilson(errors, counts.requests)
    median = counts.cost.quantile(0.5)
    scored, score = state.evidence.scored(arm)
    return ArmSeen(
        requests=counts.requests,
        errors=errors,
        errors_low=low,
        errors_high=high,
        refusals=counts.refusals / counts.requests if counts.requests else 0.0,
        ttft_p95=counts.ttft_p95.quantile(0.95),
        cost=median / NANO if median is not None else None,
        mean_cost=counts.nanodollars / NANO / counts.requests if counts.nanodollars else None,
        scored=scored,
        score=score,
    )
