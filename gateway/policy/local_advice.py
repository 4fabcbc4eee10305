"""Where content must stay on local backends, and what is asked about it is not there."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from gateway.policy.problems import Diagnostic
from gateway.policy.schema import InjectionGuard, Policy, ToxicityGuard


def far_judges(policy: Policy) -> Iterator[Diagnostic]:
    """Judges that cannot be asked of some texts, which then are not judged."""
    keepers = [name for name, guard in policy.guards.items() if guard.action == "local"]
    for name, guard in policy.guards.items():
        if not isinstance(guard, InjectionGuard | ToxicityGuard) or guard.judge is None:
            continue
        if _is_local(policy, guard.judge):
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
                f"'{guard.judge}' has no local target, so that it cannot be asked about {whose}: where it is needed "
                f"'on_error: {guard.on_error}' decides. Give it a target or fallback with 'local: true'",
            )


def _is_local(policy: Policy, model: str) -> bool:
    """Whether the model, or one of its fallbacks, has a target on a local backend."""
    waiting = [model]
    for name in waiting:  # grows while it is read
        known = policy.models[policy.resolve(name) or name]
        if any(policy.backends[target.backend].local for target in known.targets):
            return True
        waiting += [other for other in known.fallbacks if other not in waiting]
    return False
