"""The first steps of an explanation: the caller, the request, its limits, guards and caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.errors import GatewayError, NotCached, RateLimited
from gateway.guards.guards import Guard
from gateway.lab.deciding import Deciding
from gateway.lab.explain.dry_run import DryRun
from gateway.lab.explain.explanation import Alternative, Step, Verdict
from gateway.lab.explain.question import Found
from gateway.lab.policy_lines import PolicyLine, PolicyLines
from gateway.metering.price import NANO
from gateway.policy.problems import suggestion
from gateway.policy.schema import Policy
from gateway.policy.schema.any_guard import AnyGuard
from gateway.quota.limits import Limit
from gateway.types import Call, Principal


class StepsBefore:
    """Of one question."""

    def __init__(self, dry: DryRun, found: Found, lines: PolicyLines) -> None:
        self._found = found
        self._lines = lines
        self._policy: Policy = found.call.policy if found.call is not None else dry.runtime.policy
        self._experiments = dry.experiments
        self._deciding = Deciding(self._policy, lines)

    def steps(self) -> Iterator[Step]:
        principal, call = self._found.principal, self._found.call
        if principal is None:
            yield self._unknown()
            return
        yield self._caller(principal)
        if call is None:
            yield Step("request", "refuses", refused(self._found.error), self._of_refused_model(principal))
            return
        yield self._request(call)
        if self._policy.experiments:
            yield self._experiment(call)
        yield self._limits(principal, call)
        if not self._limited(call):
            yield from self._guards(call)
            if not self._blocked(call):
                yield from self._caches(call)

    def _unknown(self) -> Step:
        asked, known = self._found.question.key, [one.id for one in self._policy.keys]
        if asked in known:
            return Step("caller", "refuses", refused(self._found.error), self._deciding.key(asked))
        hint = f"no key of the policy has this id{suggestion(asked, known)}"
        return Step("caller", "refuses", refused(self._found.error), rows=((hint, ()),))

    def _caller(self, principal: Principal) -> Step:
        key_id = principal.key_id
        mine = self._deciding.entry(key_id)
        rows: list[tuple[str, tuple[PolicyLine, ...]]] = []
        tenant = principal.tenant
        known = tenant in self._policy.tenants
        said = f"tenant '{tenant}'" + ("" if known else ", of which the policy says nothing")
        rows.append((said, self._lines.written("tenants", tenant)))
        rows.append((f"tier '{principal.tier}'", self._deciding.tier(principal)))
        if principal.models != ("*",):
            said = f"may ask for {', '.join(principal.models)}"
            rows.append((said, self._deciding.key(key_id, "models")))
        if mine is not None and mine.allow_ips:
            addresses = ", ".join(map(str, mine.allow_ips))
            rows.append((f"may come from {addresses} only, which is not looked at here", ()))
        facts = {
            "key": key_id,
            "tenant": tenant,
            "tier": principal.tier,
            "models": list(principal.models),
            "scopes": list(principal.scopes),
        }
        return Step("caller", "passes", f"key '{key_id}'", self._deciding.key(key_id), facts, tuple(rows))

    def _of_refused_model(self, principal: Principal) -> tuple[PolicyLine, ...]:
        """The key's ``models``, where they are why the model is not there."""
        if self._found.error is None or self._found.error.code != "model_not_found":
            return ()
        return self._deciding.model_of(principal)

    def _request(self, call: Call) -> Step:
        asked = call.request.model
        model = self._policy.resolve(asked) or call.model  # before an experiment put another there
        policy = self._lines.written("models", model)
        if asked != model:
            aliases = self._policy.models[model].aliases
            policy = self._lines.written("models", model, "aliases", aliases.index(asked))
        alias = f", an alias of '{model}'" if asked != model else ""
        how = "streamed" if call.request.stream else "whole"
        estimate = call.estimated()
        rows: tuple[tuple[str, tuple[PolicyLine, ...]], ...] = ()
        facts: dict[str, Any] = {
            "route": call.route,
            "model": model,
            "asked": asked,
            "stream": call.request.stream,
        }
        if estimate is not None:
            facts |= {"prompt_tokens": estimate.prompt, "expected_tokens": estimate.expected}
            text = f"about {estimate.prompt:,} tokens of prompt; an answer of some {estimate.expected:,} is expected"
            rows = ((text, ()),)
        return Step("request", "passes", f"{call.route}, model '{asked}'{alias}, {how}", policy, facts, rows)

    def _experiment(self, call: Call) -> Step:
        noted = call.receipt.notes.get("experiment", {})
        run, arm_name = str(noted.get("name", "")), str(noted.get("arm", ""))
        name = run.partition("#")[0] if call.arm else ""
        others = tuple(
            Alternative(f"experiment '{one}'", why, self._lines.written("experiments", one))
            for one, why in self._experiments.passed_over(call, name)
        )
        if not call.arm:
            return Step("experiment", "passes", "part of none", alternatives=others)
        one = self._policy.experiments[name]
        arm, at = one.arms[arm_name], ("experiments", name, "arms", arm_name)
        rows: list[tuple[str, tuple[PolicyLine, ...]]] = []
        if arm.model is not None:
            said = f"'{arm.model}' is asked in place of '{call.request.model}'"
            rows.append((said, self._lines.written(*at, "model")))
        if arm.prompt is not None:
            place = "before its" if arm.prompt_place == "before" else "in place of its"
            said = f"the prompt '{arm.prompt}' ({noted['digest']}) goes {place} system prompt"
            rows.append((said, self._lines.written("prompts", arm.prompt)))
        rows += [
            (f"guard '{guard}' {what}", self._lines.written(*at, key, index))
            for key, what, guards in (
                ("guards", "is the arm's own", arm.guards),
                ("without", "does not look after it", arm.without),
            )
            for index, guard in enumerate(guards)
        ]
        said = f"arm '{arm_name}' of '{name}', as all of this {one.key}"
        facts = {"experiment": name, **noted}
        return Step(
            "experiment",
            "changes" if rows else "passes",
            said,
            self._lines.written(*at),
            facts,
            tuple(rows),
            others,
        )

    def _limits(self, principal: Principal, call: Call) -> Step:
        error, reservation = self._found.error, self._found.reservation
        rows = []
        facts: list[dict[str, Any]] = []
        refusing: tuple[PolicyLine, ...] = ()
        for limit, used, reset in self._found.used:
            line = self._deciding.limit(limit)
            held = limit.amount(reservation.held) if reservation is not None else None
            holds = f", this request holds {_amount(limit, held)}" if held is not None else ""
            rows.append((f"{limit}: {_amount(limit, used)} used{holds}", line))
            facts.append(
                {
                    "limit": str(limit),
                    "maximum": limit.maximum,
                    "used": used,
                    "holds": held,
                    "reset_seconds": round(reset, 3),
                }
            )
            if isinstance(error, RateLimited) and getattr(error, "limit", None) == str(limit):
                refusing = line
        if self._limited(call):
            return Step("limits", "refuses", refused(error), refusing, {"limits": facts}, tuple(rows))
        said = "within all of its limits" if rows else "no limits"
        return Step("limits", "passes", said, (), {"limits": facts}, tuple(rows))

    def _limited(self, call: Call) -> bool:
        """Whether it is refused before it comes to the guards."""
        if self._found.error is None or self._found.reservation is not None:
            return False
        return not ({"guard_input", "cache", "route", "cascade"} & call.receipt.notes.keys())

    def _blocked(self, call: Call) -> bool:
        """Whether the guards let it go no further."""
        reached = {"cache", "route", "cascade"} & call.receipt.notes.keys()
        return self._found.sent is None and not reached

    def _guards(self, call: Call) -> Iterator[Step]:
        mine, policy = self._found.guards, self._policy
        noted: Mapping[str, Mapping[str, Any]] = call.receipt.notes.get("guard_input", {}).get("guards", {})
        looking = [*mine.input, *mine.input_flags]
        others = tuple(
            Alternative(f"guard '{name}'", why, self._lines.written("guards", name))
            for name, guard in policy.guards.items()
            if name not in {one.name for one in (*mine.input, *mine.input_flags)}
            and (why := self._why_not(name, guard, call))
        )
        if looking:
            rows = [self._judged(guard, noted.get(guard.name, {})) for guard in looking]
            changed = any(fact.get("action") in ("mask", "redact") for fact in noted.values())
            verdict: Verdict = "changes" if changed else "passes"
            said = f"{len(looking)} look at the request"
            deciding: tuple[PolicyLine, ...] = ()
            if self._blocked(call):
                verdict, said = "refuses", refused(self._found.error)
                deciding = tuple(
                    line
                    for guard in looking
                    if noted.get(guard.name, {}).get("action") in ("block", "support")
                    for line in self._lines.written("guards", guard.name)
                )
                if self._found.status is not None:
                    verdict, said = "answers", "a guard answers in the model's place"
            if call.local_only:
                said += "; it stays on local backends"
            yield Step("guards (request)", verdict, said, deciding, dict(noted), tuple(rows), others)
        elif others:
            yield Step("guards (request)", "passes", "none looks at the request", alternatives=others)
        answering = [*mine.output, *mine.output_flags]
        if answering and not self._blocked(call):
            rows = [
                (
                    f"'{guard.name}' ({guard.config.action}"
                    + (f", {guard.config.stream})" if call.request.stream and guard.acts else ")"),
                    self._lines.written("guards", guard.name),
                )
                for guard in answering
            ]
            said = f"{len(answering)} will look at the answer"
            names = [guard.name for guard in answering]
            yield Step("guards (answer)", "passes", said, (), {"guards": names}, tuple(rows))

    def _why_not(self, name: str, guard: AnyGuard, call: Call) -> str:
        if name in self._policy.guards_of_arms:
            return "it looks after arms of experiments that name it"
        return _why_not(guard, call) or "this arm of its experiment goes without it"

    def _judged(self, guard: Guard, facts: Mapping[str, Any]) -> tuple[str, tuple[PolicyLine, ...]]:
        labels = ", ".join(f"{label} ({count})" for label, count in facts.get("labels", {}).items())
        action = facts.get("action", "not asked any more")
        said = f"'{guard.name}' ({guard.config.action}): " + (f"{action}, for {labels}" if labels else action)
        if facts.get("score"):
            said += f", score {facts['score']:g}"
        if facts.get("unscanned"):
            said += f"; could not judge: {facts['unscanned']}"
        elif facts.get("check") not in (None, "none"):
            said += f", by the {facts['check']} check"
        return said, self._lines.written("guards", guard.name)

    def _caches(self, call: Call) -> Iterator[Step]:
        noted = call.receipt.notes.get("cache")
        if noted is None:
            if isinstance(self._found.error, NotCached):
                yield Step("cache", "refuses", refused(self._found.error))
            return
        facts = {name: value for name, value in noted.items() if name not in ("began", "seconds")}
        result = noted.get("result")
        lines = tuple(line for one in ("exact", "semantic") for line in self._lines.written("caches", one))
        if isinstance(self._found.error, NotCached):
            yield Step("cache", "refuses", refused(self._found.error), lines, facts)
        elif call.cached is not None:
            said = f"an answer is there ({result}), and is given again"
            yield Step("cache", "answers", said, self._lines.written("caches", str(call.cached)), facts)
        elif result == "bypass":
            why = f"'cache-control: {call.cache_control}'" if call.cache_control else "no cache may have it"
            yield Step("cache", "passes", f"not looked at: {why}", lines, facts)
        elif self._found.shared_flight:
            said = "the same request is in flight: its answer is waited for, and no model is asked again"
            yield Step("cache", "answers", said, self._lines.written("caches", "exact"), facts)
        else:
            kind = noted.get("semantic")
            said = "no answer is there" + (f" (semantic: {kind})" if kind else "")
            yield Step("cache", "passes", said, lines, facts)


def refused(error: GatewayError | None) -> str:
    """What it is refused with, in a line."""
    if error is None:
        return "refused"
    code = f" {error.code}" if error.code else ""
    wait = f" (retry after {error.retry_after:.3g} s)" if error.retry_after is not None else ""
    return f"refused with {error.status}{code}: {error.message}{wait}"


def _why_not(guard: AnyGuard, call: Call) -> str:
    """Why it does not look at the request; empty where it does."""
    principal = call.principal
    if "input" not in guard.on:
        return "it looks at answers only" if _looks(guard, call) else "it does not look after this caller"
    if _looks(guard, call):
        return ""
    everybody: dict[str, Any] = {"key_id": principal.key_id, "model": call.model, "route": call.route}
    if not guard.model_copy(update={"keys": ("*",), "models": ("*",), "routes": None}).looks_after(
        principal.tenant, **everybody
    ):
        return f"it looks after tenants {', '.join(guard.tenants)}"
    if guard.routes is not None and guard.model_copy(update={"routes": None}).looks_after(
        principal.tenant, **everybody
    ):
        return f"it looks at {', '.join(guard.routes)}"
    if guard.model_copy(update={"keys": ("*",)}).looks_after(principal.tenant, **everybody):
        return f"it looks after keys {', '.join(guard.keys)}"
    return f"it looks after models {', '.join(guard.models)}"


def _looks(guard: AnyGuard, call: Call) -> bool:
    who = call.principal
    return guard.looks_after(who.tenant, key_id=who.key_id, model=call.model, route=call.route)


def _amount(limit: Limit, amount: int | None) -> str:
    if amount is None:
        return "-"
    return f"${amount / NANO:,.6g}" if limit.quantity == "dollars" else f"{amount:,}"
