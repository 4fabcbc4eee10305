"""``quotas`` and ``budget``: a limit that another one makes needless."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.policy.problems import Diagnostic, KeyPath
from gateway.policy.rules.subject import Findings, Valid
from gateway.policy.schema import Key, Tenant, Tier

_WINDOWS = (
    ("quotas", "tokens_per_minute", "tokens_per_day"),
    ("budget", "usd_per_day", "usd_per_month"),
)
"""Each with a longer one, in which no more may be used."""
_ALL = tuple((part, name) for part, *names in _WINDOWS for name in names)


def limit_beyond_a_longer_one(valid: Valid) -> Findings:
    """More in a minute than in the day around it."""
    for path, owner in _owners(valid):
        for part, short, long in _WINDOWS:
            limits = getattr(owner, part)
            least, most = getattr(limits, short), getattr(limits, long)
            if least is not None and most is not None and least > most:
                message = f"has no effect: {least:g} are more than '{long}' has, which is {most:g}"
                yield Diagnostic((*path, part, short), message)


def limit_beyond_its_tenant(valid: Valid) -> Findings:
    """What a key may use beyond all of its tenant."""
    for index, key in enumerate(valid.keys):
        tenant = valid.policy.tenants.get(key.tenant)
        if tenant is None:
            continue
        for part, name in _ALL:
            own, whole = getattr(getattr(key, part), name), getattr(getattr(tenant, part), name)
            if own is not None and whole is not None and own > whole:
                message = (
                    f"has no effect: {own:g} are more than tenant '{key.tenant}' has, which is {whole:g}"
                )
                yield Diagnostic(("keys", index, part, name), message)


def _owners(valid: Valid) -> Iterable[tuple[KeyPath, Key | Tenant | Tier]]:
    yield from ((("keys", index), key) for index, key in enumerate(valid.keys))
    yield from ((("tenants", name), tenant) for name, tenant in valid.policy.tenants.items())
    yield from ((("tiers", name), tier) for name, tier in valid.policy.tiers.items())
