"""LiteLLM's ``router_settings``, ``litellm_settings`` and ``general_settings``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.identity.api_keys import hash_key
from gateway.lab.migration.draft import PolicyDraft, duration
from gateway.lab.migration.limits import budget_of
from gateway.lab.migration.litellm_advice import (
    GENERAL_ADVICE,
    LITELLM_ADVICE,
    QUIET_GENERAL,
    QUIET_LITELLM,
    QUIET_ROUTER,
    ROUTER_ADVICE,
    tell_unverified,
)
from gateway.lab.migration.litellm_models import Router
from gateway.lab.migration.litellm_store import add_store
from gateway.lab.migration.source import Source, is_variable

MASTER = "master"
"""The key that LiteLLM's master key becomes."""
_STRATEGIES: Mapping[str, tuple[str | None, str]] = {
    "simple-shuffle": (None, ""),
    "least-busy": ("least_loaded", ""),
    "latency-based-routing": (
        "least_loaded",
        "the target with the fewest requests in flight, which slow ones have more of",
    ),
    "usage-based-routing": (
        "least_loaded",
        "the target with the fewest requests in flight, not that with the most tokens left",
    ),
    "usage-based-routing-v2": (
        "least_loaded",
        "the target with the fewest requests in flight, not that with the most tokens left",
    ),
    "cost-based-routing": (
        None,
        "targets are drawn by weight: let dearer ones be a model of its own, and `fallbacks` name it",
    ),
}


def router_of(router: Source, litellm: Source, draft: PolicyDraft, wanted: tuple[str, ...]) -> Router:
    """What is said of all models, wherever it stands: the router's own settings go before."""
    found = Router(wanted=wanted)
    retries = _first(litellm, router, "num_retries")
    if retries is not None:
        found.attempts = min(10, round(retries) + 1)
        if retries > 9:
            draft.report.changed(router.at("num_retries"), "ten attempts is the most")
    found.backoff = _first(router, "retry_after")
    found.total = (
        _first(litellm, "request_timeout") if not router.has("timeout") else _first(router, "timeout")
    )
    litellm.skip("request_timeout")
    found.first_token = _first(router, litellm, "stream_timeout")
    strategy = router.get("routing_strategy")
    if strategy:
        select, said = _STRATEGIES.get(str(strategy), (None, "targets are drawn by weight"))
        found.select = select
        if said:
            became = f"'{strategy}' became `select: {select or 'weighted'}`"
            draft.report.changed(router.at("routing_strategy"), f"{became}: {said}")
    fails, cooldown = _first(litellm, router, "allowed_fails"), _first(litellm, router, "cooldown_time")
    if fails is not None or cooldown is not None:
        # LiteLLM counts the failures of a minute, and suspends a deployment beyond those that it allows.
        found.breaker = {"failures": round(3 if fails is None else fails) + 1, "window": "1m"}
        if cooldown:
            found.breaker["cooldown"] = duration(cooldown)
        draft.report.changed(
            router.at("allowed_fails"),
            "a breaker also wants a share of the requests to fail: half of those since the first failure",
            "lower `breaker.share` for less",
        )
    return found


def _first(*places: Any) -> float | None:
    *sources, key = places
    numbers = [source.number(key) for source in sources]
    return next((number for number in numbers if number is not None), None)


def add_router_settings(router: Source, draft: PolicyDraft) -> None:
    add_store(router, "redis", draft)
    add_store(router.part("cache_params"), "", draft)
    router.skip(*QUIET_ROUTER, "max_fallbacks")
    router.finish(ROUTER_ADVICE)


def add_litellm_settings(settings: Source, draft: PolicyDraft) -> None:
    _cache(settings, draft)
    _callbacks(settings, draft)
    limit = settings.number("max_budget")
    span = settings.text("budget_duration")
    if limit is not None:
        budget = budget_of(limit, span, settings.at("max_budget"), draft.report)
        draft.content.setdefault("tiers", {})["default"] = {"budget": budget}
        draft.report.changed(
            settings.at("max_budget"),
            "the budget of all callers together is that of the tier 'default', which all keys have",
        )
    for key in ("key_generation_settings", "custom_provider_map", "model_alias_map"):
        if settings.has(key):
            draft.report.dropped(settings.at(key), "has no counterpart here")
            settings.skip(key)
    tell_unverified(settings, draft.report)
    settings.skip(*QUIET_LITELLM)
    settings.finish(LITELLM_ADVICE)


def add_general_settings(settings: Source, draft: PolicyDraft, env: Mapping[str, str]) -> None:
    given = settings.get("master_key")
    if given is not None:
        written = settings.text("master_key") or ""
        value = env.get(written[2:-1], "") if is_variable(written) else str(given)
        if value:
            draft.keys.append({"id": MASTER, "sha256": hash_key(value), "scopes": ["inference", "admin"]})
        else:
            draft.report.dropped(
                settings.at("master_key"),
                f"the policy holds keys' hashes, and the variable {written[2:-1]} is not set here",
                f"set it and import again, or: tollgate keys create --id {MASTER} --scopes inference admin",
            )
        draft.content["admin"] = {"enabled": True}
    else:
        draft.report.changed(
            "general_settings",
            "without a master key LiteLLM asks callers for none; Tollgate always does",
            "make keys with `tollgate keys create`; until then `tollgate serve` shows a development key",
        )
    add_store(settings.part("coordination_redis"), "", draft)
    settings.skip(*QUIET_GENERAL)
    settings.finish(GENERAL_ADVICE)


def _cache(settings: Source, draft: PolicyDraft) -> None:
    params = settings.part("cache_params")
    on = settings.get("cache")
    kind = str(params.get("type") or "redis")
    if kind in ("redis", "redis-semantic") and on:
        add_store(params, "", draft)
        elsewhere = ("host", "url", "redis_startup_nodes", "startup_nodes", "sentinel_nodes")
        if not any(params.has(key) for key in elsewhere):
            draft.content.setdefault("store", "redis://${REDIS_HOST}:${REDIS_PORT:-6379}/0")
    ttl, similarity = params.number("ttl"), params.number("similarity_threshold")
    skipped = ("namespace", "supported_call_types", "max_connections", "default_in_redis_ttl")
    if not on:
        params.skip(*dict(params.left()))
        return
    cache: dict[str, Any] = {"ttl": duration(ttl)} if ttl else {}
    if str(params.get("mode")) == "default_off":
        draft.report.dropped(
            params.at("mode"),
            "callers cannot ask for a cache that is off for others; they can send `cache-control: no-store`",
            "write `caches: {exact: {}}` to switch it on",
        )
    elif kind.endswith("-semantic"):
        draft.content["caches"] = {"semantic": cache | ({"threshold": similarity} if similarity else {})}
        draft.report.changed(
            params.at("type"),
            "beside the threshold a verifier judges whether two questions mean the same (`error_budget`)",
            "docs/caches.md has the figures; it needs `pip install '.[guards]'`",
        )
    else:
        draft.content["caches"] = {"exact": cache}
        if kind not in ("redis", "local", "in-memory"):
            draft.report.changed(
                params.at("type"), f"answers are kept in memory or in Redis, not in '{kind}'", "set `store`"
            )
    for key in skipped:
        if params.has(key):
            draft.report.dropped(params.at(key), "caches have no such setting")
            params.skip(key)
    params.finish()


_BUILT_IN = {"prometheus": "/metrics", "prometheus_system": "/metrics"}
_TRACES = ("otel", "arize", "arize_phoenix", "langfuse_otel", "langtrace", "logfire", "traceloop")


def _callbacks(settings: Source, draft: PolicyDraft) -> None:
    for key in (
        "callbacks",
        "success_callback",
        "failure_callback",
        "service_callback",
        "audit_log_callbacks",
    ):
        for name in settings.words(key):
            if name in _BUILT_IN:
                continue  # it is there without asking
            if name in _TRACES:
                draft.content["telemetry"] = {"endpoint": "${OTEL_EXPORTER_OTLP_ENDPOINT:-}"}
                draft.report.changed(
                    settings.at(key),
                    f"'{name}': traces are sent by OTLP",
                    "set OTEL_EXPORTER_OTLP_ENDPOINT, and `telemetry.headers`",
                )
            elif name == "detect_prompt_injection":
                draft.content.setdefault("guards", {})["injection"] = {"on": ["input"], "action": "block"}
                draft.report.changed(
                    settings.at(key), "prompt injections are found by another detector", "docs/guards.md"
                )
            elif name == "langfuse":
                draft.report.dropped(
                    settings.at(key),
                    "'langfuse' gets nothing by itself",
                    "it takes OTLP: `telemetry: {endpoint: https://cloud.langfuse.com/api/public/otel, headers: …}`",
                )
            else:
                draft.report.dropped(
                    settings.at(key),
                    f"'{name}' is not told of requests",
                    "the ledger has all of them; `telemetry` sends traces by OTLP",
                )


def environment(section: Source, draft: PolicyDraft) -> None:
    """``environment_variables``, which LiteLLM sets itself."""
    for name, value in list(section.left()):
        written = section.text(name)
        if written is not None and not is_variable(written):
            draft.secrets.setdefault(name, str(value))
