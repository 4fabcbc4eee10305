"""Likely mistakes in a valid policy: warnings of ``tollgate check``, and in the log at the start."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from gateway.policy.prices import has_budgets, is_unpriced, owners
from gateway.policy.problems import Diagnostic
from gateway.policy.schema import (
    InjectionGuard,
    PiiGuard,
    Policy,
    QuotaSettings,
    SecretsGuard,
    ToxicityGuard,
    WebhookGuard,
)
from gateway.policy.schema.any_guard import AnyGuard


def warnings_of(policy: Policy) -> Iterator[Diagnostic]:
    if has_budgets(policy):
        yield from _unpriced(policy)
    yield from _remote_judges(policy)
    yield from _remote_webhooks(policy)
    yield from _own_files(policy)
    for index, name in enumerate(policy.drained):
        if name not in policy.backends:
            yield Diagnostic(("drained", index), f"no backend is named '{name}'; nothing is drained by it")


def _unpriced(policy: Policy) -> Iterator[Diagnostic]:
    """Targets without a price, where there are budgets."""
    effect = (
        "requests under a budget are refused"
        if policy.on_unpriced == "refuse"
        else "counts as free under every budget"
    )
    for name, model in policy.models.items():
        for index, target in enumerate(model.targets):
            if is_unpriced(policy, target):
                message = (
                    f"'{target.model}' has no price: {effect}. Write prices.{target.backend}/{target.model}, one for "
                    f"all of the backend ({target.backend}/*), or default_price"
                )
                yield Diagnostic(("models", name, "targets", index), message)


def _own_files(policy: Policy) -> Iterator[Diagnostic]:
    """A database that several replicas share, and contents that they do not."""
    files = policy.files
    if files.enabled and policy.ledger.store != "sqlite" and files.bucket is None and files.path[0] != "/":
        yield Diagnostic(
            ("ledger", "store"),
            "has the names of files for all replicas, and each keeps their contents in its own state folder: write "
            "'files: {store: s3://BUCKET}', or in 'files: {path: …}' a folder that all of them mount",
        )


def has_limits(policy: Policy) -> bool:
    """Whether anybody is under a quota or a budget."""
    return has_budgets(policy) or any(owner.quotas != QuotaSettings() for owner in owners(policy))


def has_calendar_limits(policy: Policy) -> bool:
    """Whether anybody is under a limit by the day or the month."""
    return has_budgets(policy) or any(owner.quotas.tokens_per_day is not None for owner in owners(policy))


def unshared_state(policy: Policy, workers: int) -> Iterator[str]:
    """What several workers do not share where ``store`` is their own memory."""
    if workers == 1:
        return
    if policy.store == "memory" and has_limits(policy):
        yield (
            f"store: memory with {workers} workers: each counts quotas and budgets by itself, so that up to "
            f"{workers} times as much is admitted. Write 'store: redis://…' for limits that hold, or serve with "
            "--workers 1"
        )
    if policy.where_caches_are == "memory":
        yield (
            f"store: memory with {workers} workers: each keeps its own caches and receipts, so that "
            f"/v1/requests/{{id}} finds a receipt about one time in {workers}. Write 'store: redis://…' to share them, "
            "or serve with --workers 1"
        )
    if policy.store == "memory" and policy.responses.enabled:
        yield (
            f"store: memory with {workers} workers: each keeps its own responses, so that 'previous_response_id' finds "
            f"one about one time in {workers}. Write 'store: redis://…' to share them, or serve with --workers 1"
        )


def _remote_webhooks(policy: Policy) -> Iterator[Diagnostic]:
    """Servers that see what other guards keep from models elsewhere."""
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


def _remote_judges(policy: Policy) -> Iterator[Diagnostic]:
    """Judges that may not see texts that must stay on local backends."""
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
