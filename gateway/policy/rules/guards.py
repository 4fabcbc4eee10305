"""``guards``: models that may not judge, and keys that have no effect."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from gateway.policy.content import mapping_at, may_be_adapter
from gateway.policy.problems import Diagnostic, suggestion
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import (
    AnyGuard,
    InjectionGuard,
    PiiGuard,
    Policy,
    SecretsGuard,
    TopicsGuard,
    ToxicityGuard,
    WebhookGuard,
)

_STREAM_KEYS = ("stream", "window", "interval")


def foreign_embedder(draft: Draft) -> Findings:
    if mapping_at(draft.content, "sidecar").get("embedder", "builtin") == "builtin":
        return
    for name, guard in draft.guards.items():
        uses_head = guard.get("kind") in ("injection", "toxicity") and "model" in _checks(guard)
        if uses_head and not guard.get("classifier"):
            message = (
                "was trained for 'sidecar.embedder: builtin'; name a 'classifier', or write 'checks: [fast]'"
            )
            yield Diagnostic(("guards", name), message)


def _checks(guard: Mapping[str, Any]) -> list[Any]:
    checks = guard.get("checks", ["fast", "model"])
    return checks if isinstance(checks, list) else []


def unused_guard_keys(valid: Valid) -> Findings:
    policy = valid.policy
    for name, guard in policy.guards.items():
        written = valid.written["guards"][name]
        for key in _STREAM_KEYS:
            if key in written and guard.action == "flag":
                yield Diagnostic(
                    ("guards", name, key), "has no effect with 'action: flag', which delays nothing"
                )
            elif key in written and "output" not in guard.on:
                message = "has no effect on requests; write 'on: [input, output]' to scan answers"
                yield Diagnostic(("guards", name, key), message)
        obeys = isinstance(guard, WebhookGuard) and guard.has_remedies
        if "message" in written and guard.action != "block" and (guard.action == "flag" or not obeys):
            message = f"has no effect with 'action: {guard.action}', which refuses nothing"
            yield Diagnostic(("guards", name, "message"), message)
        if "on_error" in written and guard.action == "flag":
            message = "has no effect with 'action: flag', which refuses nothing"
            yield Diagnostic(("guards", name, "on_error"), message)


def unused_self_harm(valid: Valid) -> Findings:
    """What is written on self-harm, where another key decides."""
    policy = valid.policy
    for name, guard in policy.guards.items():
        if not isinstance(guard, ToxicityGuard):
            continue
        written, action = valid.written["guards"][name].get("self_harm"), guard.self_harm.action
        if isinstance(written, Mapping):
            if guard.action != "block":
                message = f"has no effect with 'action: {guard.action}', which refuses nothing"
                yield Diagnostic(("guards", name, "self_harm"), message)
            elif action != "support" and "message" in written:
                message = f"has no effect with 'action: {action}'; write 'action: support' to send it"
                yield Diagnostic(("guards", name, "self_harm", "message"), message)
        only_answers = guard.action == "block" and action != "block" and "input" not in guard.on
        if only_answers and "self_harm" in guard.categories:
            message = (
                "has no effect on answers, which pass; write 'self_harm: {action: block}' to have them cut"
            )
            yield Diagnostic(("guards", name, "categories", "self_harm"), message)


def guard_of_no_model(valid: Valid) -> Findings:
    """Models of guards that nobody can ask for by that name."""
    policy = valid.policy
    for name, guard in policy.guards.items():
        for index, pattern in enumerate(guard.models):
            if any(fnmatchcase(model, pattern) for model in policy.models):
                continue
            if may_be_adapter(pattern, policy.models, policy.adapters):
                continue
            meant = policy.resolve(pattern)
            hint = (
                f"; it is an alias of '{meant}', write that"
                if meant
                else suggestion(pattern, tuple(policy.models))
            )
            yield Diagnostic(("guards", name, "models", index), f"no model is named '{pattern}'{hint}")


def remote_webhook(valid: Valid) -> Findings:
    """Servers that see what other guards keep from models elsewhere."""
    policy = valid.policy
    hiding = {
        name: guard
        for name, guard in policy.guards.items()
        if isinstance(guard, PiiGuard | SecretsGuard)
        and guard.action in ("redact", "mask")
        and "input" in guard.on
    }
    for name, guard in policy.guards.items():
        if not isinstance(guard, WebhookGuard) or guard.local or "texts" in guard.model_fields_set:
            continue
        if "input" not in guard.on or guard.format == "presidio":
            continue
        hides = next((one for one, other in hiding.items() if _may_meet(policy, guard, other)), None)
        if hides is not None:
            yield Diagnostic(
                ("guards", name),
                f"its server sees what guard '{hides}' hides from models. Write 'texts: masked' (or 'texts: raw', "
                "if that is meant, or 'local: true')",
            )


def _may_meet(policy: Policy, one: AnyGuard, other: AnyGuard) -> bool:
    """Whether both look after some model at some path. Patterns of tenants and keys are not compared."""
    shared = any(
        all(any(fnmatchcase(model, pattern) for pattern in guard.models) for guard in (one, other))
        for model in policy.models
    )
    return shared and (
        one.routes is None or other.routes is None or not {*one.routes}.isdisjoint(other.routes)
    )


def remote_judge(valid: Valid) -> Findings:
    """Judges that may not see texts that must stay on local backends."""
    policy = valid.policy
    keepers = [name for name, guard in policy.guards.items() if guard.action == "local"]
    for name, guard in policy.guards.items():
        if not isinstance(guard, InjectionGuard | ToxicityGuard) or guard.judge is None:
            continue
        if _is_local(policy, guard.judge.model):
            continue
        tenants = [
            tenant
            for tenant, one in policy.tenants.items()
            if one.local_only and any(fnmatchcase(tenant, pattern) for pattern in guard.tenants)
        ]
        whose = (
            "this guard's texts, any of which it may find must stay"
            if name in keepers
            else f"those of tenant '{tenants[0]}' (local_only)"
            if tenants
            else f"those that guard '{keepers[0]}' keeps local"
            if keepers
            else ""
        )
        if whose:
            yield Diagnostic(
                ("guards", name, "judge"),
                f"'{guard.judge.model}' has no local target, so it cannot judge {whose}: there "
                f"'on_error: {guard.on_error}' decides. Give it a target or fallback with 'local: true'",
            )


def _is_local(policy: Policy, model: str) -> bool:
    """Whether the model, or one of its fallbacks, has a target on a local backend."""
    to_check = [model]
    for name in to_check:  # grows while it is read
        known = policy.models[policy.resolve(name) or name]
        if any(policy.backends[target.backend].local for target in known.targets):
            return True
        to_check += [other for other in known.fallbacks if other not in to_check]
    return False


def held_and_windowed(valid: Valid) -> Findings:
    """``hold`` scans an answer once, at its end."""
    for name, guard in valid.policy.guards.items():
        if guard.stream != "hold" or guard.action == "flag" or "output" not in guard.on:
            continue
        # These find nothing that is longer than the window, however they scan.
        by_window = isinstance(guard, WebhookGuard | TopicsGuard) or (
            isinstance(guard, PiiGuard) and bool(guard.patterns)
        )
        for key in ("interval",) if by_window else ("window", "interval"):
            if key in guard.model_fields_set:
                message = (
                    "has no effect with 'stream: hold', which scans an answer once; write 'stream: windowed'"
                )
                yield Diagnostic(("guards", name, key), message)


def origins_of_answers(valid: Valid) -> Findings:
    for name, guard in valid.policy.guards.items():
        if guard.origins is not None and "input" not in guard.on:
            message = "has no effect on answers; write 'on: [input, output]' to scan requests"
            yield Diagnostic(("guards", name, "origins"), message)


def judge_that_only_flags(valid: Valid) -> Findings:
    for name, guard in valid.policy.guards.items():
        judge = guard.judge if isinstance(guard, InjectionGuard | ToxicityGuard) else None
        if judge is None or guard.action != "flag":
            continue
        message = "'block' has no effect with 'action: flag', which refuses nothing; write 'action: block'"
        if judge.otherwise == "block":
            yield Diagnostic(("guards", name, "judge", "otherwise"), message)
        for category, action in judge.categories.items():
            if action == "block":
                yield Diagnostic(("guards", name, "judge", "categories", category), message)


def review_of_nothing(valid: Valid) -> Findings:
    if valid.policy.review.enabled and not any(one.action == "flag" for one in valid.policy.guards.values()):
        message = "nothing is written: no guard has 'action: flag'"
        yield Diagnostic(("review",), message)
