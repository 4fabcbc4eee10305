"""The last steps of an explanation: which models, which backends, in which order, and what it can cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gateway.errors import Overloaded
from gateway.fallback.circuit_breaker import Caller
from gateway.lab.deciding import Deciding
from gateway.lab.explain.dry_run import DryRun
from gateway.lab.explain.explanation import Alternative, Step
from gateway.lab.explain.question import Found
from gateway.lab.explain.steps_before import refused
from gateway.lab.policy_lines import PolicyLine, PolicyLines
from gateway.metering.price import NANO, cost, price_of
from gateway.policy.loader import Loaded
from gateway.policy.schema import Target
from gateway.quota.limits import Limit, Limits
from gateway.quota.quota_request import quota_request
from gateway.quota.target_bounds import TargetBoundsCache
from gateway.routing.affinity import target_name
from gateway.types import Call, Candidate, Usage

_ANY_DOLLARS = Limits((Limit("key", "", "dollars", "month", 2**62),))
"""A limit that nothing exceeds, by which a request is measured."""

Rows = list[tuple[str, tuple[PolicyLine, ...]]]


class StepsRoute:
    """Of one question that came past the caches."""

    def __init__(self, dry: DryRun, found: Found, call: Call, lines: PolicyLines, loaded: Loaded) -> None:
        self._dry = dry
        self._found = found
        self._call = call
        self._routed = found.sent or call
        """As it was routed: a step of a cascade, where it is one."""
        self._lines = lines
        self._loaded = loaded
        self._policy = call.policy
        self._deciding = Deciding(self._policy, lines)

    def steps(self) -> Iterator[Step]:
        noted = self._call.receipt.notes
        if self._policy.models[self._call.model].cascade:
            yield self._cascade()
        shadow = self._policy.models[self._call.model].shadow
        if shadow is not None:
            said = f"a copy goes to '{shadow.model}', for {shadow.share:.0%} of requests"
            line = self._lines.written("models", self._call.model, "shadow")
            yield Step("shadow", "passes", said, line, {"model": shadow.model, "share": shadow.share})
        if "route" not in noted or not self._routed.candidates:
            if self._found.error is not None:
                yield Step(
                    *("route", "refuses", refused(self._found.error)),
                    self._lines.written("models", self._routed.model),
                    alternatives=tuple(self._passed_over()),
                )
            return
        yield self._route()
        if (queue := self._queue()) is not None:
            yield queue
        if self._found.error is None:
            yield self._fallback()
            yield self._cost()
        elif queue is None or queue.verdict != "refuses":
            yield Step("backend", "refuses", refused(self._found.error))

    def _cascade(self) -> Step:
        model = self._call.model
        noted = self._call.receipt.notes.get("cascade")
        if noted is None:
            return Step("cascade", "refuses", refused(self._found.error))
        complexity = noted.get("complexity")
        steps = self._policy.models[model].cascade
        taken = self._found.sent.model if self._found.sent is not None else None
        rows = []
        for index, step in enumerate(steps):
            line = self._lines.written("models", model, "cascade", index)
            said = f"{index + 1}. '{step.model}'"
            if step.when is not None:
                said += f", when complexity is below {step.when.complexity.below:g}"
            if index < len(steps) - 1:
                grounds = ["a refusal"] * step.escalate.on_refusal
                grounds += ["an answer of the wrong form"] * step.escalate.on_invalid_schema
                if (least := step.escalate.mean_logprob_below) is not None:
                    grounds.append(f"a mean log-probability below {least:g}")
                said += f"; the next one is asked after {', '.join(grounds) or 'failures'}"
            rows.append((said, line))
        position = next((i for i, step in enumerate(steps) if step.model == taken), None)
        policy = () if position is None else self._lines.written("models", model, "cascade", position)
        told = f"'{taken}' is asked first" if taken is not None else "no step can be asked"
        if complexity is not None:
            told += f", as its complexity is {complexity:g}"
        facts = {"complexity": complexity, "first": taken, "steps": [step.model for step in steps]}
        return Step("cascade", "passes", told, policy, facts, tuple(rows))

    def _route(self) -> Step:
        rows, facts = [], []
        caller = Caller(self._routed.principal.tenant, self._routed.principal.key_id)
        for number, one in enumerate(self._routed.candidates, 1):
            said = f"{number}. {target_name(one)}, as {_why(one)}"
            wait = 0.0
            if self._found.health is not None:
                wait = self._found.health.breaker(one.target).wait(caller)
            if wait > 0:
                said += f"; its circuit breaker is open for {wait:.3g} s more, and it is passed over"
            rows.append((said, self._line_of(one)))
            facts.append(
                {
                    "model": one.model,
                    "backend": one.target.backend,
                    "target": one.target.model,
                    "why": one.why,
                    "breaker_open_seconds": round(wait, 3) or None,
                }
            )
        first = self._routed.candidate or self._routed.candidates[0]
        model = self._policy.models[first.model]
        said = f"{target_name(first)} is asked first"
        policy: tuple[PolicyLine, ...] = self._line_of(first)
        if len(model.targets) > 1:
            said += f", chosen by {_SELECTED[model.select]}"
            policy = (*policy, self._lines.of("models", first.model, "select"))
        noted = self._call.receipt.notes.get("route", {})
        known: dict[str, Any] = {"candidates": facts}
        if "residency" in noted:
            said += f"; content stays in {', '.join(noted['residency']) or 'no region'}"
            known["residency"] = noted["residency"]
        if (scored := self._call.receipt.notes.get("score", {}).get(first.model)) is not None:
            said += f"; {_expected(scored, first)}"
            known["score"] = scored
        return Step("route", "passes", said, policy, known, tuple(rows), tuple(self._passed_over()))

    def _passed_over(self) -> Iterator[Alternative]:
        router = self._found.router
        if router is None:
            return
        disabled = {**self._loaded.disabled}
        for model, target, why in router.passed_over(self._routed):
            if target.backend in self._dry.disabled and (reason := disabled.get(target.backend)):
                why = f"its backend is not in use: {reason}"
            policy = (*self._deciding.target(model, target), *self._of_reason(why, model))
            yield Alternative(f"{target.backend}/{target.model} of '{model}'", why, policy)

    def _of_reason(self, why: str, model: str) -> tuple[PolicyLine, ...]:
        """The lines by which a target is passed over, beside its own."""
        tenant, key_id = self._routed.principal.tenant, self._routed.principal.key_id
        if "stays on local backends" in why:
            return self._lines.written("tenants", tenant, "local_only")
        if "stays in" in why:
            mine = self._deciding.entry(key_id)
            return (
                *self._lines.written("tenants", tenant, "residency"),
                *self._lines.written("models", model, "residency"),
                *self._lines.written("residency"),
                *(self._deciding.key(key_id, "residency") if mine is not None and mine.residency else ()),
            )
        if "context" in why:
            return self._lines.written("models", model, "context")
        return ()

    def _line_of(self, one: Candidate) -> tuple[PolicyLine, ...]:
        return self._deciding.candidate(self._routed.model, self._routed.principal.tier, one)

    def _queue(self) -> Step | None:
        error, tier = self._found.error, self._routed.principal.tier
        noted = self._call.receipt.notes.get("queue", {})
        lines = tuple(
            line
            for key in ("max_wait", "max_queue", "on_saturation")
            for line in self._lines.written("tiers", tier, key)
        )
        if isinstance(error, Overloaded) and "refused" in noted:
            return Step("queue", "refuses", refused(error), lines, dict(noted))
        if not noted:
            return None
        pool = str(noted["pool"])
        slots = tuple(
            line
            for key in ("max_concurrency", "max_tokens_in_flight")
            for line in self._lines.written("backends", pool, key)
        )
        facts = {"pool": pool, "saturation": noted.get("saturation"), **self._found.waits.get(pool, {})}
        if pool in self._found.waits:
            wait = self._found.waits[pool]
            known = wait["expected_seconds"]
            about = "for a time that is not known yet" if known is None else f"about {known:.3g} s"
            said = f"it waits {about} for a place at '{pool}', {wait['longest_seconds']:g} s at most"
            return Step("queue", "passes", said, (*lines, *slots), facts)
        return Step("queue", "passes", f"a place at '{pool}' is free", slots, facts)

    def _fallback(self) -> Step:
        first = self._routed.candidate or self._routed.candidates[0]
        retry = self._policy.models[first.model].retry
        others = [one for one in self._routed.candidates if one is not first]
        ordinary = [target_name(one) for one in others if one.why != "larger_context"]
        larger = [target_name(one) for one in others if one.why == "larger_context"]
        tries = "try" if retry.attempts == 2 else "tries"
        again = f"{retry.attempts - 1} more {tries} at the same one, where its error allows that"
        rows: Rows = [(again, (self._lines.of("models", first.model, "retry", "attempts"),))]
        if ordinary:
            rows.append((f"then {', '.join(ordinary)}", ()))
        if larger:
            rows.append((f"where the prompt is too long for it, {', '.join(larger)}", ()))
        limits = first.timeouts
        patience = f"it has {limits.connect:g} s to connect, {limits.first_token:g} s to the first token, "
        patience += f"{limits.idle:g} s between two, {limits.total:g} s in all"
        rows.append((patience, self._lines.written("models", first.model, "timeouts")))
        facts = {"retries": retry.attempts - 1, "then": ordinary, "larger_context": larger}
        return Step("if it fails", "passes", "what follows a failure", (), facts, tuple(rows))

    def _cost(self) -> Step:
        rows: Rows = []
        facts: list[dict[str, Any]] = []
        estimator = self._dry.runtime.quotas.estimator
        bounds = TargetBoundsCache()
        for one in self._routed.candidates:
            call = replace(self._routed, candidate=one, estimate=None, estimator=estimator)
            estimate = estimator.estimate(call)
            asked = quota_request(
                call, estimate, bounds.target(self._policy, one.model, one.target), _ANY_DOLLARS
            )
            cap = asked.cap if self._routed.cap is None else min(asked.cap, self._routed.cap)
            most = asked.at(cap).nanodollars
            usual = cost(self._policy, one.target, Usage(estimate.prompt, estimate.expected))
            price = price_of(self._policy, one.target)
            if price is None:
                rows.append((f"{target_name(one)} has no price, and is counted as $0", ()))
            else:
                said = f"{target_name(one)}: about ${usual / NANO:.6f}, ${most / NANO:.6f} at most"
                said += f" (an answer of up to {cap:,} tokens)" if cap else ""
                rows.append((said, self._of_price(one.target)))
            facts.append(
                {
                    "backend": one.target.backend,
                    "target": one.target.model,
                    "expected_usd": usual / NANO,
                    "most_usd": None if price is None else most / NANO,
                    "max_answer_tokens": cap,
                }
            )
        first = facts[0]
        most_usd = first["most_usd"]
        told = (
            "nothing that has a price"
            if most_usd is None
            else f"${most_usd:.6f} at most, at the first of them"
        )
        return Step("cost", "passes", told, (), {"targets": facts}, tuple(rows))

    def _of_price(self, target: Target) -> tuple[PolicyLine, ...]:
        name = f"{target.backend}/{target.model}"
        for key in (name, target.model, f"{target.backend}/*"):
            if written := self._lines.written("prices", key):
                return written
        if (listed := self._loaded.listed.get(name)) is not None:
            return (PolicyLine(f"the catalogue, read {listed.read}", listed.source, written=True),)
        return self._lines.written("default_price")


_SELECTED = {
    "weighted": "weight, at random",
    "least_loaded": "the least load",
    "prefix_affinity": "the prompt's beginning",
    "score": "the expected time to the first token",
}


def _expected(scored: Mapping[str, Any], first: Candidate) -> str:
    looks = {look["backend"]: look for look in scored["looked_at"]}
    if (look := looks.get(first.target.backend)) is None:
        return "nothing was expected of it"
    return (
        f"its first token is expected after {look['first_token_seconds']:.3g} s, with about {look['held_tokens']:,} of "
        f"{scored['prompt_tokens']:,} tokens cached"
    )


def _why(one: Candidate) -> str:
    return {
        "primary": f"target of '{one.model}'",
        "fallback": f"fallback '{one.model}'",
        "larger_context": f"'{one.model}', which has more context",
        "downgrade": f"'{one.model}', to which its tier is downgraded",
        "spill_over": f"'{one.model}', as the first is full",
    }.get(one.why, one.why)
