"""Bifrost's ``config.json``: providers with their keys, and what its governance says of callers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.lab.migration.bifrost_callers import add_callers
from gateway.lab.migration.bifrost_rules import add_rules
from gateway.lab.migration.config_file import read_json
from gateway.lab.migration.draft import PolicyDraft
from gateway.lab.migration.entries import deployment, references
from gateway.lab.migration.litellm_models import Router, add_models
from gateway.lab.migration.plain import plain
from gateway.lab.migration.providers import PROVIDERS
from gateway.lab.migration.source import Source, listed, mapping

_VARIABLE = re.compile(r"env\.([A-Za-z_]\w*)", re.ASCII)
_PROVIDERS = {
    "vertex": "vertex_ai",
    "fireworks": "fireworks_ai",
    "sgl": "openai_like",
    "bedrock_mantle": "bedrock",
}
"""Bifrost's names where LiteLLM has another."""
_KEY_PARTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "azure_key_config": (
        *(("endpoint", "api_base"), ("api_version", "api_version"), ("tenant_id", "tenant_id")),
        *(("client_id", "client_id"), ("client_secret", "client_secret")),
    ),
    "bedrock_key_config": (
        *(("region", "aws_region_name"), ("access_key", "aws_access_key_id")),
        *(("secret_key", "aws_secret_access_key"), ("session_token", "aws_session_token")),
        ("role_arn", "aws_role_name"),
    ),
    "vertex_key_config": (
        *(("project_id", "vertex_project"), ("region", "vertex_location")),
        ("auth_credentials", "vertex_credentials"),
    ),
    **{f"{one}_key_config": (("url", "api_base"),) for one in ("ollama", "sgl", "vllm")},
}
_ADVICE: Mapping[str, tuple[str, str]] = {
    "client": ("workers, logs and bodies have settings of their own", "policies/README.md lists them"),
    "mcp": ("no MCP servers are served", "callers and providers reach them by themselves"),
    "plugins": ("plugins are not run", "`caches`, `guards` and `telemetry` do what most of them do"),
    "guardrails_config": ("guardrails are not carried over", "write `guards`: docs/guards.md"),
    "vector_store": ("answers to like questions are kept without a vector store", "`caches: {semantic: {}}`"),
    "cluster": ("replicas share a Redis server and a PostgreSQL server", "`store`, `ledger.store`"),
    "cluster_config": ("replicas share a Redis server and a PostgreSQL server", "`store`, `ledger.store`"),
    "proxy_config": ("a backend's way out is its own", "`proxy` of the backend"),
    "extra_headers": ("backends send no further headers", ""),
    "custom_provider_config": ("which of a provider's paths may be asked is not set", ""),
    "use_for_batch_api": ("batches are run by the gateway itself", "`batches`: docs/batches.md"),
    "stream_throughput_guard": ("slow streams are ended by `timeouts.idle`", ""),
    "prompt_cache": ("callers mark what a provider may keep", "`shared_prompts`"),
    "buffer_size": ("a tier's `max_wait` bounds a queue, not its length", ""),
}
_QUIET = (
    "$schema",
    "encryption_key",
    "config_store",
    "logs_store",
    "framework",
    "source_of_truth",
    "version",
)


def read(file: Path) -> dict[str, Any]:
    """Raises ``ConfigError``."""
    return read_json(file, "no config.json of Bifrost's: write the object with its providers")


def imported(
    config: Mapping[str, Any], *, source: str, env: Mapping[str, str], wanted: Sequence[str] = ()
) -> PolicyDraft:
    """``wanted``: models that callers use of providers whose keys serve all (``openai/gpt-4o``)."""
    draft = PolicyDraft(source)
    content = references(plain(config), _VARIABLE)
    top = Source(content, "", draft.report)
    governance = top.part("governance")
    models = tuple(dict.fromkeys([*wanted, *_mentioned(mapping(content.get("governance")))]))
    providers = top.part("providers")
    names: dict[str, str] = {}
    for name, _ in list(providers.left()):
        names |= _add_provider(name, providers.part(name), models, draft)
    _add_short_names(names, draft)
    add_rules(governance.parts("routing_rules"), names, draft)
    add_callers(governance, names, env, draft)
    governance.finish(_GOVERNANCE)
    top.skip(*_QUIET)
    top.finish(_ADVICE)
    return draft


_GOVERNANCE: Mapping[str, tuple[str, str]] = {
    "auth_config": (
        "the page is opened by a key with the scope admin",
        "tollgate keys create --scopes admin",
    ),
    "model_configs": ("models have no budgets and limits", "budget the keys, tenants or tiers that use them"),
    "providers": ("providers have no budgets and limits", "budget the keys, tenants or tiers that use them"),
}


def _mentioned(governance: Mapping[str, Any]) -> Iterator[str]:
    """Models of virtual keys and rules, which providers whose keys serve all stand for at least."""
    for key in map(mapping, listed(governance.get("virtual_keys"))):
        for one in map(mapping, listed(key.get("provider_configs"))):
            for model in listed(one.get("allowed_models")):
                if isinstance(model, str) and "*" not in model:
                    yield f"{one.get('provider')}/{model}"
    for rule in map(mapping, listed(governance.get("routing_rules"))):
        for one in map(mapping, listed(rule.get("targets"))):
            if one.get("provider") and one.get("model"):
                yield f"{one['provider']}/{one['model']}"


def _add_provider(name: str, provider: Source, wanted: tuple[str, ...], draft: PolicyDraft) -> dict[str, str]:
    prefix = _prefix(name, provider)
    if prefix is None:
        draft.report.dropped(
            provider.where, f"nobody here knows the provider '{name}'", "add a backend with its base_url"
        )
        return {}
    network = provider.part("network_config")
    shared = {"api_base": network.get("base_url")} if network.has("base_url") else {}
    keys = provider.parts("keys")
    if not keys:
        draft.report.dropped(provider.where, "has no keys, and so serves nothing", "add a backend")
    own = {model for key in keys for model in _models(key)}
    entries = [entry for key in keys for entry in _entries(name, prefix, key, own, shared, provider, draft)]
    names = add_models(entries, draft, _router(network, wanted), {})
    waiting = provider.part("concurrency_and_buffer_size")
    waiting.skip("concurrency")
    waiting.finish(_ADVICE)
    network.finish(_ADVICE)
    provider.finish(_ADVICE)
    return names


def _prefix(name: str, provider: Source) -> str | None:
    base = provider.part("custom_provider_config").get("base_provider_type")
    for one in (base, name):
        known = _PROVIDERS.get(str(one), str(one))
        if known in PROVIDERS:
            return known
    return None


def _router(network: Source, wanted: tuple[str, ...]) -> Router:
    router = Router(wanted=wanted)
    retries, backoff = network.number("max_retries"), network.number("retry_backoff_initial")
    if retries is not None:
        router.attempts = min(10, round(retries) + 1)
    if backoff:
        router.backoff = backoff / 1000
    router.total = network.number("default_request_timeout_in_seconds")
    router.idle = network.number("stream_idle_timeout_in_seconds")
    network.skip("retry_backoff_max", "max_conns_per_host")
    return router


def _models(key: Source) -> list[str]:
    """Those that the key itself names; ``*`` are all others."""
    named = [*key.words("models"), *map(str, mapping(key.get("aliases")))]
    return [one for one in dict.fromkeys(named) if "*" not in one]


def _entries(
    name: str,
    prefix: str,
    key: Source,
    own: Iterable[str],
    shared: Mapping[str, Any],
    provider: Source,
    draft: PolicyDraft,
) -> Iterator[Source]:
    """A deployment for each model that the key serves."""
    params: dict[str, Any] = {**shared, "api_key": key.get("value") or None}
    if key.has("weight"):
        params["weight"] = key.get("weight")
    if concurrency := mapping(provider.get("concurrency_and_buffer_size")).get("concurrency"):
        params["max_parallel_requests"] = concurrency
        provider.part("concurrency_and_buffer_size")
    for section, pairs in _KEY_PARTS.items():
        part = key.part(section)
        params |= {theirs: found for ours, theirs in pairs if (found := part.get(ours)) not in (None, "")}
        part.skip("deployments")
        part.finish()
    aliases = {
        **mapping(mapping(key.get("azure_key_config")).get("deployments")),
        **mapping(key.get("aliases")),
    }
    serves_all = "*" in key.words("models") or not key.words("models")
    served = [*own] if serves_all else _models(key)
    key.skip("id", "name", "enabled", "config_hash", "description")
    key.finish(_ADVICE)
    for model in served:
        target = aliases.get(model, model)
        target = mapping(target).get("model_id") or model if isinstance(target, dict) else target
        target = str(target).removeprefix("google/") if prefix == "vertex_ai" else target
        yield deployment(f"{name}/{model}", {**params, "model": f"{prefix}/{target}"}, key.where, draft)
    if serves_all:
        yield deployment(f"{name}/*", {**params, "model": f"{prefix}/*"}, key.where, draft)


def _add_short_names(names: Mapping[str, str], draft: PolicyDraft) -> None:
    """Bifrost also finds a model by its name alone: where only one provider has it, it is an alias."""
    short: dict[str, set[str]] = {}
    for name, model in names.items():
        if "/" in name:
            short.setdefault(name.partition("/")[2], set()).add(model)
    for name, models in short.items():
        if len(models) == 1 and name not in draft.models and "/" not in name:
            draft.models[next(iter(models))]["aliases"] = [name]
