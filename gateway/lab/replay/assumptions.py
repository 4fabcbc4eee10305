"""What a replay takes as given, as neither the trace nor the policy tells: for the end of each report."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gateway.lab.replay.callers import Callers
from gateway.lab.replay.job import Job
from gateway.lab.replay.survey import Survey
from gateway.policy.loader import Loaded
from gateway.policy.schema import EngineBackend, LengthGuard, Policy

ALWAYS = (
    "callers ask when they did, whatever they are answered: nobody tries again",
    "limits, caches, breakers and queues are empty when it begins; one worker serves",
)


def assumptions(
    policy: Policy, loaded: Loaded, known: Survey, callers: Callers, job: Job, unpriced: Collection[str] = ()
) -> Iterator[str]:
    """``unpriced``: targets that answered, and have no price."""
    yield from ALWAYS
    if known.left_out:
        yield f"{known.left_out:,} requests of other APIs (speech, pictures, files …) are left out"
    if (nameless := known.requests - known.have_callers) > 0:
        shares = _shares(job.tenants)
        yield f"of {nameless:,} requests nobody knows who asked: tenants are drawn, {shares}, seed {job.seed}"
    if (nameless := known.requests - known.have_models) > 0:
        yield f"{nameless:,} requests name no model: they ask for {_shares(job.models)}"
    if known.unsent:
        yield (
            f"of {known.unsent:,} answers nobody noted how long they waited before they were sent: where most waited, "
            "that is taken to be their backend's time (--service gives it)"
        )
    if callers.unknown_keys:
        names = callers.unknown_keys
        some = ", ".join(sorted(names)[:3]) + (" …" if len(names) > 3 else "")
        yield (
            f"keys of the trace that are not in the policy ({len(names):,}: {some}) are valid, and have no limits of "
            "their own"
        )
    if policy.caches.exact is not None and known.have_prompts < known.requests:
        yield (
            f"of {known.requests - known.have_prompts:,} prompts nobody knows whether they are repeated: "
            "the exact cache has none of them"
        )
    if policy.adapters is not None:
        yield "adapters that were asked are there, and loaded, wherever the policy lets them be"
    semantic = policy.caches.semantic
    if semantic is not None and semantic.mode == "on":
        yield "which questions mean the same is not recorded: the semantic cache finds nothing"
    unjudged = [name for name, guard in policy.guards.items() if not isinstance(guard, LengthGuard)]
    if unjudged:
        found = (
            f"what {known.have_findings:,} records say"
            if known.have_findings
            else "nothing, as the trace has none"
        )
        yield f"guards ({', '.join(unjudged)}) find {found}; what they would make of other texts is not known"
    if any(model.cascade for model in policy.models.values()):
        yield "texts are not recorded: a cascade takes all prompts to be alike, and is sure of each answer"
    if any(model.rollout for model in policy.models.values()):
        yield "roll-outs have not begun: all users are on the old side"
    if policy.experiments:
        yield (
            "arms of experiments are those of the records; who was in none has one by user, or by the prompt's "
            "beginning"
        )
    if any(isinstance(one, EngineBackend) for one in policy.backends.values()):
        yield "engines tell nothing of their load, and do not preempt"
    if known.have_blocks and job.cache_tokens:
        yield (
            f"a backend's prompt cache holds {job.cache_tokens:,} tokens, the least recently used go first"
            "; one that was recorded without any hit has none"
        )
    if unpriced:
        yield f"no price is known of {', '.join(sorted(unpriced))}: they cost nothing here"
    if loaded.disabled:
        yield f"backends without credentials are out of use, as a gateway here has them: {', '.join(loaded.disabled)}"


def _shares(weights: dict[str, float]) -> str:
    whole = sum(weights.values())
    if len(weights) == 1:
        return f"'{next(iter(weights))}'"
    return ", ".join(f"'{name}' {weight / whole:.0%}" for name, weight in weights.items())
