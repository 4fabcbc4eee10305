"""The lines of a policy that decide something about a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.lab.policy_lines import PolicyLine, PolicyLines
from gateway.policy.schema import Key, Policy, Target
from gateway.quota.limits import Limit, limits_of
from gateway.types import Call, Candidate, Principal

Lines = tuple[PolicyLine, ...]
FIELDS: Mapping[tuple[str, str], tuple[str, str]] = {
    ("requests", "minute"): ("quotas", "requests_per_minute"),
    ("tokens", "minute"): ("quotas", "tokens_per_minute"),
    ("tokens", "day"): ("quotas", "tokens_per_day"),
    ("concurrent", "now"): ("quotas", "concurrent_requests"),
    ("dollars", "day"): ("budget", "usd_per_day"),
    ("dollars", "month"): ("budget", "usd_per_month"),
}
"""Where a limit is written, by its quantity and window."""
_QUEUE = {"queue_full": ("max_queue",), "queue_timeout": ("max_wait",)}
"""What of a tier decides a refusal by the queue, by its code; else what becomes of the tier where a backend is full."""


class Deciding:
    """Those of one policy."""

    def __init__(self, policy: Policy, lines: PolicyLines) -> None:
        self._policy = policy
        self._lines = lines

    def key(self, key_id: str, *inside: str | int) -> Lines:
        """Of an API key, or of what is inside of it."""
        mine = self.entry(key_id)
        line = self._lines.of_key(key_id, mine.sha256 if mine is not None else None, *inside)
        return (line,) if line is not None else ()

    def entry(self, key_id: str) -> Key | None:
        return next((one for one in self._policy.keys if one.id == key_id), None)

    def tier(self, principal: Principal) -> Lines:
        """What puts a caller into its tier."""
        mine = self.entry(principal.key_id)
        if mine is not None and mine.tier is not None:
            return self.key(principal.key_id, "tier")
        return self._lines.written("tenants", principal.tenant, "tier")

    def limit(self, limit: Limit) -> Lines:
        where = FIELDS[limit.quantity, limit.window]
        if limit.scope == "key":
            return self.key(limit.owner, *where)
        return (self._lines.of(f"{limit.scope}s", limit.owner, *where),)

    def model_of(self, principal: Principal) -> Lines:
        """Why a model is not there for a caller."""
        mine = self.entry(principal.key_id)
        if mine is None or mine.models == ("*",):
            return (self._lines.of("models"),)
        return self.key(mine.id, "models")

    def target(self, model: str, target: Target) -> Lines:
        known = self._policy.models.get(model)
        if known is None or target not in known.targets:
            return ()
        return self._lines.written("models", model, "targets", known.targets.index(target))

    def candidate(self, asked: str, tier: str, one: Candidate) -> Lines:
        """Why a target is a candidate for who asks for the model ``asked``."""
        found = self.target(one.model, one.target)
        match one.why:
            case "fallback":
                return (*self._fallback(asked, one.model), *found)
            case "downgrade":
                return (*self._lines.written("tiers", tier, "on_saturation"), *found)
            case "rollout":
                return self._lines.written("models", one.model, "rollout")
            case "spill_over" | "larger_context":
                return (*self._lines.written("models", asked, one.why), *found)
        return found

    def _fallback(self, asked: str, model: str) -> Lines:
        """The line that makes ``model`` a fallback: of the model that was asked for, or of one of its own."""
        for name in (asked, *(other for other in self._policy.models if other != asked)):
            fallbacks = self._policy.models[name].fallbacks
            if model in fallbacks:
                return self._lines.written("models", name, "fallbacks", fallbacks.index(model))
        return ()

    def cascade(self, model: str, step: str) -> Lines:
        """The step of a cascade that asks the model ``step``."""
        steps = [one.model for one in self._policy.models[model].cascade]
        return self._lines.written("models", model, "cascade", steps.index(step)) if step in steps else ()

    def guards(self, notes: Mapping[str, Any], actions: tuple[str, ...]) -> Lines:
        """Those that took one of these actions, of a receipt's notes."""
        return tuple(
            line
            for stage in ("guard_input", "guard_output")
            for name, facts in notes.get(stage, {}).get("guards", {}).items()
            if facts.get("action") in actions
            for line in self._lines.written("guards", name)
        )

    def queue(self, tier: str, code: str | None) -> Lines:
        """What of a tier makes a request wait, or refuses it with ``code``."""
        keys = _QUEUE.get(code or "", ("on_saturation",))
        return tuple(line for key in keys for line in self._lines.written("tiers", tier, key))

    def of(self, call: Call | None, status: int, code: str | None) -> Lines:
        """What decided on a request that has ended."""
        if call is None:
            return ()
        return (*self._of_end(call, status, code), *self.arm(call))

    def arm(self, call: Call) -> Lines:
        """The arm of an experiment that a request has."""
        noted = call.receipt.notes.get("experiment", {})
        if not call.arm:
            return ()
        return self._lines.written(
            "experiments", str(noted["name"]).partition("#")[0], "arms", str(noted["arm"])
        )

    def _of_end(self, call: Call, status: int, code: str | None) -> Lines:
        notes, principal = call.receipt.notes, call.principal
        if refusing := notes.get("quota", {}).get("refused"):
            limits = limits_of(self._policy, principal)
            return tuple(line for one in limits.each if str(one) == refusing for line in self.limit(one))
        blocking = self.guards(notes, ("block", "support"))
        if blocking and "route" not in notes:
            return blocking
        if call.cached is not None:
            return self._lines.written("caches", call.cached)
        changing = self.guards(notes, ("redact", "mask", "local", "block"))
        if status >= 400 and "refused" in notes.get("queue", {}):
            return (*changing, *self.queue(principal.tier, code))
        here = call.candidate
        if here is None:
            return (*changing, *self._lines.written("models", call.model))
        asked, cascade = call.model, notes.get("cascade", {})
        stepped: Lines = ()
        if cascade and self._policy.models[call.model].cascade:
            asked = str(cascade.get("answered") or here.model)
            stepped = self.cascade(call.model, asked)
        return (*changing, *stepped, *self.candidate(asked, principal.tier, here))
