"""``keys``, ``tenants`` and ``tiers``: names of nobody, and limits that limit nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from ipaddress import ip_network
from typing import Any

from gateway.policy.content import aliases_of, is_pattern, list_at, mapping_at, mappings_at, may_be_adapter
from gateway.policy.problems import Diagnostic, KeyPath, suggestion
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import (
    DEFAULT_TIER,
    HOUSE,
    EngineBackend,
    Key,
    Provider,
    QuotaSettings,
    Tenant,
    Tier,
)

_LOCAL_BY_DEFAULT = ("engine", "fake", "sidecar")
_REFUSED = "would be refused; mark one with 'local: true'"
_QUEUE_KEYS = ("max_wait", "max_queue", "ageing", "patience")
_MOST_SUGGESTED = 1000
_SCHEDULING_KEYS = ("weight", "priority", "on_saturation")
"""Of tiers. The bundled engine schedules by these itself, and reports its load."""
_WINDOWS = (
    ("quotas", "tokens_per_minute", "tokens_per_day"),
    ("budget", "usd_per_day", "usd_per_month"),
)
"""Each with a longer one, in which no more may be used."""
_ALL = tuple((part, name) for part, *names in _WINDOWS for name in names)


def unknown_tier(draft: Draft) -> Findings:
    """A policy without a ``tiers`` section may name any tier: all of them have the defaults."""
    tiers = tuple(mapping_at(draft.content, "tiers"))
    owners: Iterable[tuple[KeyPath, Any]] = (
        *((("tenants", name), tenant) for name, tenant in mapping_at(draft.content, "tenants").items()),
        *((("keys", index), key) for index, key in enumerate(list_at(draft.content, "keys"))),
    )
    for path, owner in owners:
        tier = owner.get("tier") if isinstance(owner, dict) else None
        if tiers and isinstance(tier, str) and tier not in (*tiers, DEFAULT_TIER):
            yield Diagnostic((*path, "tier"), f"no tier is named '{tier}'{suggestion(tier, tiers)}")


def key_given_twice(draft: Draft) -> Findings:
    seen: dict[tuple[str, str], KeyPath] = {}
    for index, key in _mappings(draft.content, "keys"):
        for what, message in (("id", "two keys have this id"), ("sha256", "two keys have this hash")):
            path: KeyPath = ("keys", index, what)
            value = key.get(what)
            if isinstance(value, str) and (first := seen.setdefault((what, value.lower()), path)) != path:
                yield Diagnostic(path, f"{message}; each needs its own", first)


def key_of_no_model(draft: Draft) -> Findings:
    models = (*mapping_at(draft.content, "models"), *aliases_of(mapping_at(draft.content, "models")))
    adapters = mapping_at(draft.content, "adapters")
    for index, key in _mappings(draft.content, "keys"):
        for position, pattern in enumerate(list_at(key, "models")):
            # A pattern may match models that are added later; a plain name that matches none is a mistake.
            if not isinstance(pattern, str) or is_pattern(pattern) or pattern in models:
                continue
            if not may_be_adapter(pattern, models, adapters):
                yield Diagnostic(
                    ("keys", index, "models", position),
                    f"no model is named '{pattern}'{suggestion(pattern, models)}",
                )


def _mappings(content: Any, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((index, one) for index, one in enumerate(list_at(content, name)) if isinstance(one, dict))


def nowhere_local(draft: Draft) -> Findings:
    backends = list(mappings_at(draft.content, "backends").values())
    if any(backend.get("local", backend.get("kind") in _LOCAL_BY_DEFAULT) for backend in backends):
        return
    for name, guard in draft.guards.items():
        if guard.get("action") == "local":
            yield Diagnostic(
                ("guards", name, "action"), f"no backend is local, so that every such request {_REFUSED}"
            )
    for name, tenant in mappings_at(draft.content, "tenants").items():
        if tenant.get("local_only") is True:
            yield Diagnostic(
                ("tenants", name, "local_only"), f"no backend is local: all its requests {_REFUSED}"
            )


def unknown_tenant(valid: Valid) -> Findings:
    """A key whose tenant has no entry has no tenant limits. A policy without tenants means that."""
    policy = valid.policy
    for index, key in enumerate(valid.keys):
        if policy.tenants and key.tenant not in policy.tenants and "tenant" in key.model_fields_set:
            message = (
                f"no tenant is named '{key.tenant}': the key has no tenant quotas and no tenant budget"
                f"{suggestion(key.tenant, tuple(policy.tenants))}"
            )
            yield Diagnostic(("keys", index, "tenant"), message)


def tier_without_queue(valid: Valid) -> Findings:
    """Tier keys where no backend has a queue."""
    policy = valid.policy
    queues = any(
        isinstance(backend, Provider)  # they get a limit by their latency
        or backend.max_concurrency is not None
        or backend.max_tokens_in_flight is not None
        for backend in policy.backends.values()
    )
    if queues:
        return
    engines = any(isinstance(backend, EngineBackend) for backend in policy.backends.values())
    unused = _QUEUE_KEYS if engines else (*_QUEUE_KEYS, *_SCHEDULING_KEYS)
    for name in policy.tiers:
        for key in unused:
            if key in valid.written["tiers"][name]:
                message = "has no effect: no backend has a queue. Write max_concurrency for one, or remove it"
                yield Diagnostic(("tiers", name, key), message)


def undefined_tier(valid: Valid) -> Findings:
    """Without a ``tiers`` section any name is taken; with one, it is an error (``unknown_tier``)."""
    policy = valid.policy
    if policy.tiers:
        return
    owners: Iterable[tuple[KeyPath, str | None]] = (
        *((("tenants", name), tenant.tier) for name, tenant in policy.tenants.items()),
        *((("keys", index), key.tier) for index, key in enumerate(valid.keys)),
    )
    for path, tier in owners:
        if tier is not None and tier != DEFAULT_TIER:
            message = f"no tier is named '{tier}', so that it has the defaults; describe it under 'tiers'"
            yield Diagnostic((*path, "tier"), message)


def expired_key(valid: Valid) -> Findings:
    for index, key in enumerate(valid.keys):
        if key.expires is not None and key.expires <= valid.today:
            message = (
                f"the key '{key.id}' expired on {key.expires}, and is refused; remove it, or make another"
            )
            yield Diagnostic(("keys", index, "expires"), message)


def strict_alone(valid: Valid) -> Findings:
    """``strict`` is about limits of tokens, whoever has them of those who a request counts for."""
    policy = valid.policy
    by_tier = any(_limits_tokens(tier.quotas) for tier in policy.tiers.values())
    message = (
        "has no effect without a limit of tokens; write tokens_per_minute or tokens_per_day, or remove it"
    )
    for index, key in enumerate(valid.keys):
        tenant = policy.tenants.get(key.tenant)
        if key.quotas.strict and not (
            by_tier or _limits_tokens(key.quotas) or (tenant is not None and _limits_tokens(tenant.quotas))
        ):
            yield Diagnostic(("keys", index, "quotas", "strict"), message)
    with_limits = [key for key in policy.keys_with_limits if _limits_tokens(key.quotas)]
    for name, tenant in policy.tenants.items():
        if tenant.quotas.strict and not (
            by_tier or _limits_tokens(tenant.quotas) or any(key.tenant == name for key in with_limits)
        ):
            yield Diagnostic(("tenants", name, "quotas", "strict"), message)
    others = bool(with_limits) or any(_limits_tokens(tenant.quotas) for tenant in policy.tenants.values())
    for name, tier in policy.tiers.items():
        if tier.quotas.strict and not (_limits_tokens(tier.quotas) or others):
            yield Diagnostic(("tiers", name, "quotas", "strict"), message)


def _limits_tokens(quotas: QuotaSettings) -> bool:
    return quotas.tokens_per_minute is not None or quotas.tokens_per_day is not None


def guard_of_nobody(valid: Valid) -> Findings:
    """Tenants and keys of guards. Tokens of an issuer may name any tenant; their ids begin with ``jwt:``."""
    policy = valid.policy
    tenants = {*policy.tenants, *(key.tenant for key in policy.keys), "default"}
    ids = [key.id for key in policy.keys] or ["dev"]  # the development key, which a start without keys makes
    for name, guard in policy.guards.items():
        for index, pattern in enumerate(guard.tenants):
            if (
                pattern != "*"
                and not policy.jwt
                and not any(fnmatchcase(tenant, pattern) for tenant in tenants)
            ):
                message = f"no tenant matches '{pattern}'{suggestion(pattern, sorted(tenants))}"
                yield Diagnostic(("guards", name, "tenants", index), message)
        for index, pattern in enumerate(guard.keys):
            if pattern == "*" or (policy.jwt and (is_pattern(pattern) or pattern.startswith("jwt:"))):
                continue
            if not any(fnmatchcase(one, pattern) for one in ids):
                message = f"no key's id matches '{pattern}'{suggestion(pattern, ids[:_MOST_SUGGESTED])}"
                yield Diagnostic(("guards", name, "keys", index), message)


def pattern_of_no_model(valid: Valid) -> Findings:
    """A pattern may wait for models that are added later; until then it opens nothing."""
    names = [*valid.policy.models, *(alias for one in valid.policy.models.values() for alias in one.aliases)]
    owners = (
        *((("keys", index), key.models) for index, key in enumerate(valid.keys)),
        *((("jwt", index), issuer.models) for index, issuer in enumerate(valid.policy.jwt)),
    )
    for path, patterns in owners:
        for index, pattern in enumerate(patterns):
            if not is_pattern(pattern) or any(fnmatchcase(name, pattern) for name in names):
                continue
            if not may_be_adapter(pattern, names, valid.policy.adapters):
                message = f"no model matches '{pattern}'{suggestion(pattern, names)}"
                yield Diagnostic((*path, "models", index), message)


def tenant_of_the_house(valid: Valid) -> Findings:
    """Whose limits and spending are then those of judges and shadows, too."""
    for index, key in enumerate(valid.keys):
        if key.tenant == HOUSE:
            message = (
                f"'{HOUSE}' is the gateway's own tenant, which pays for judges, shadows and evaluations; name another "
                "one, or this key shares its limits"
            )
            yield Diagnostic(("keys", index, "tenant"), message)


def everybody_a_proxy(valid: Valid) -> Findings:
    """Whose ``x-forwarded-for`` is believed."""
    for index, network in enumerate(valid.policy.trusted_proxies):
        if ip_network(network).prefixlen == 0:
            message = (
                "believes every caller who names another address than its own: allow_ips and the log then hold what "
                "callers choose; write your proxies' networks"
            )
            yield Diagnostic(("trusted_proxies", index), message)


def cors_of_no_origin(valid: Valid) -> Findings:
    cors = valid.policy.cors
    if not cors.allow_origins:
        for key in cors.model_fields_set - {"allow_origins"}:
            yield Diagnostic(("cors", key), "has no effect without 'allow_origins'; name some")


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
