"""An explanation of a request, from what a dry run of it found."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.adapters.adapter import is_adapter_id
from gateway.lab.explain.dry_run import DryRun
from gateway.lab.explain.explanation import Explanation, Outcome, Step
from gateway.lab.explain.question import Found, Question
from gateway.lab.explain.steps_before import StepsBefore, refused
from gateway.lab.explain.steps_route import StepsRoute
from gateway.lab.policy_lines import PolicyLines
from gateway.policy.loader import Loaded
from gateway.routing.affinity import target_name
from gateway.types import Call


async def explain(dry: DryRun, question: Question, loaded: Loaded, lines: PolicyLines) -> Explanation:
    """What would become of ``question`` now. ``loaded`` is the policy of ``dry``."""
    found = await dry.ask(question)
    steps = tuple(_steps(dry, found, loaded, lines))
    asked = {"path": question.path, "key": found.principal.key_id if found.principal else None}
    return Explanation(asked, _outcome(found), steps, tuple(_assumed(dry, found)))


def _steps(dry: DryRun, found: Found, loaded: Loaded, lines: PolicyLines) -> Iterator[Step]:
    goes_on = True
    for step in StepsBefore(dry, found, lines).steps():
        yield step
        goes_on = step.verdict in ("passes", "changes")
    if goes_on and found.call is not None:
        yield from StepsRoute(dry, found, found.call, lines, loaded).steps()


def _outcome(found: Found) -> Outcome:
    headers = dict(found.context.reply_headers)
    if found.sent is not None:
        sent = found.sent
        here = sent.candidate
        if here is None:
            return Outcome(None, "a model would be asked", sent.model)
        headers.setdefault("x-tollgate-model", here.model)
        said = f"It would be sent to {target_name(here)}, for the model '{here.model}'."
        return Outcome(None, said, here.model, here.target.backend, here.target.model, headers=headers)
    if found.error is not None:
        error = found.error
        said = f"It would be {refused(error)}"
        told = {**headers, **error.headers}
        if error.retry_after is not None:
            told["retry-after"] = f"{max(1, round(error.retry_after + 0.4999))}"
        return Outcome(error.status, said, error=error.code, message=error.message, headers=told)
    call = found.call
    model = call.candidate.model if call is not None and call.candidate is not None else None
    who = "a cache" if call is not None and call.cached else "a guard"
    return Outcome(
        found.status, f"It would be answered by {who}, and no model asked.", model, headers=headers
    )


def _assumed(dry: DryRun, found: Found) -> Iterator[str]:
    yield from sorted(found.unjudged)
    if found.principal is None:
        return
    if not dry.at_rest:
        workers = dry.state.pools.workers
        if workers > 1:
            yield (
                f"load, breakers and caches in memory are those of worker {dry.state.worker}, one of {workers}; "
                "another may decide otherwise"
            )
        return
    if found.used:
        yield "nothing is used of any limit: what is spent is known to the running gateway alone"
    yield "every backend is idle and answers, no circuit breaker is open, nobody waits"
    if (call := found.call) is not None and _is_listed_adapter(dry, call):
        yield f"servers list the adapter '{call.model}': which they do is known to the running gateway alone"
    if dry.runtime.policy.caches.exact or dry.runtime.policy.caches.semantic:
        yield "the caches are empty"
    if found.call is not None and dry.runtime.policy.files.enabled is False and found.sent is not None:
        yield "nothing is known of files and stored responses"


def _is_listed_adapter(dry: DryRun, call: Call) -> bool:
    """Whether what is asked is an adapter, and none that a tenant has uploaded."""
    if call.model in dry.runtime.policy.models:
        return False
    return not any(is_adapter_id(one.model) for one in call.policy.models[call.model].targets)
