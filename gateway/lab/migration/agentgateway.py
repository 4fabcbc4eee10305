"""agentgateway's configuration as a process of its own reads it: models under ``llm``, or routes to ``ai`` backends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.lab.migration.agentgateway_provider import parameters
from gateway.lab.migration.agentgateway_routes import routes
from gateway.lab.migration.config_file import read_yaml
from gateway.lab.migration.draft import ConfigError, PolicyDraft
from gateway.lab.migration.entries import add_key, deployment, references
from gateway.lab.migration.limits import budget_of
from gateway.lab.migration.litellm_models import Router, add_models
from gateway.lab.migration.plain import plain
from gateway.lab.migration.source import Source, mapping

_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?", re.ASCII)
_ADVICE: Mapping[str, tuple[str, str]] = {
    "mcp": ("no MCP servers are served", "callers and providers reach them by themselves"),
    "config": (
        "logs, traces and databases have settings of their own",
        "`telemetry`, `ledger`: policies/README.md",
    ),
    "frontendPolicies": ("listeners have settings of their own", "docs/operations.md"),
    "jwtAuth": ("issuers are told by `jwt`", "write issuer, audience and jwks: policies/README.md"),
    "oidc": ("issuers are told by `jwt`", "write issuer, audience and jwks: policies/README.md"),
    "basicAuth": ("callers have keys, or tokens of an issuer", "tollgate keys create"),
    "authorization": ("expressions do not decide who may call", "name `models` in each key"),
    "extAuthz": ("no other server decides who may call", "use keys, or tokens of an issuer (`jwt`)"),
    "localRateLimit": (
        "limits are those of keys, tenants and tiers",
        "`tiers.default.quotas`, or those of a key",
    ),
    "remoteRateLimit": ("limits are those of keys, tenants and tiers, shared by `store`", "`quotas` of each"),
    "promptGuard": ("guards look after all models", "write `guards`: docs/guards.md"),
    "guardrails": ("guards look after all models", "write `guards`: docs/guards.md"),
    "ai": ("prompts and parameters are not changed on the way", "let callers send them"),
    "transformations": ("headers and bodies are not rewritten", ""),
    "requestHeaders": ("headers are not rewritten", ""),
    "matches": ("models are chosen by name alone", "give each a model name of its own"),
    "defaults": ("no default parameters are added to requests", "let callers send it"),
    "overrides": ("parameters of requests are not replaced", "let callers send it"),
    "cors": ("browsers are let in by `cors`", "write the origins there"),
    "health": ("failing backends are left alone by a breaker", "`breaker` of the backend"),
    "tls": ("TLS ends before the gateway, or at its own address", "docs/operations.md"),
    "auth": ("this way of signing in at a provider is not carried over", "docs/providers.md"),
    "passthrough": ("no other paths are passed on", "docs/pass_through.md lists those that are"),
}


def read(file: Path) -> dict[str, Any]:
    """Raises ``ConfigError``."""
    content = read_yaml(file, "no configuration of agentgateway: write the one that it is started with")
    if "apiVersion" in content and "kind" in content:
        raise ConfigError(
            f"{file} is a resource of Kubernetes (kind {content['kind']}); what can be imported is the configuration "
            "of agentgateway as a process of its own, with `llm` or `binds`"
        )
    return content


def imported(
    config: Mapping[str, Any], *, source: str, env: Mapping[str, str], wanted: Sequence[str] = ()
) -> PolicyDraft:
    """``wanted``: models that callers use where a model is called ``*`` or a route names none."""
    draft = PolicyDraft(source)
    top = Source(references(plain(config), _VARIABLE), "", draft.report)
    llm = top.part("llm")
    policies = llm.part("policies")
    routed, key_sections = routes(top, draft, _ADVICE)
    add_models([*_models(llm, draft), *routed], draft, Router(wanted=tuple(wanted)), {})
    for section in (policies.part("apiKey"), *key_sections):
        _add_keys(section, env, draft)
    policies.finish(_ADVICE)
    if not draft.keys:
        draft.report.changed(
            "apiKey",
            "no caller's key was found; Tollgate always asks for one",
            "make keys with `tollgate keys create`; until then `tollgate serve` shows a development key",
        )
    llm.skip("port")
    llm.finish(_ADVICE)
    top.finish(_ADVICE)
    return draft


def _models(llm: Source, draft: PolicyDraft) -> Iterator[Source]:
    """Deployments of ``models``, and of the virtual ones that choose among them."""
    shared = {str(one.get("name")): one for one in llm.parts("providers")}
    models: dict[str, list[tuple[dict[str, Any], Source]]] = {}
    internal: set[str] = set()
    for model in llm.parts("models"):
        name = str(model.get("name") or "")
        params = parameters(model, shared, draft)
        if model.get("visibility") == "internal":
            internal.add(name)
        model.finish(_ADVICE)
        if params is not None and name:
            models.setdefault(name, []).append((params, model))
    for one in shared.values():
        one.finish(_ADVICE)
    for virtual in llm.parts("virtualModels"):
        yield from _virtual(virtual, models, internal, draft)
    for name, deployments in models.items():
        if name not in internal:
            yield from (deployment(name, params, model.where, draft) for params, model in deployments)


def _virtual(
    virtual: Source,
    models: Mapping[str, list[tuple[dict[str, Any], Source]]],
    internal: set[str],
    draft: PolicyDraft,
) -> Iterator[Source]:
    name, mode = str(virtual.get("name")), str(virtual.get("mode") or "weighted")
    for route in virtual.parts("routes"):
        model = str(route.get("model"))
        if mode == "conditional":
            internal.discard(model)  # callers may ask for it themselves
        elif model not in models:
            draft.report.dropped(route.at("model"), f"no model '{model}' was imported")
        choice = {"order": route.get("priority")} if mode == "failover" else {"weight": route.get("weight")}
        for params, _ in models.get(model, ()) if mode in ("weighted", "failover") else ():
            given = {key: value for key, value in choice.items() if value is not None}
            yield deployment(name, {**params, **given}, route.where, draft)
        route.skip("when", "priority", "weight")
        route.finish()
    if mode not in ("weighted", "failover"):
        draft.report.dropped(
            virtual.where,
            f"'{mode}': models are not chosen by expressions",
            "let callers ask for the models behind it by their names, or give each kind of caller a key with `models`",
        )
    virtual.finish(_ADVICE)


def _add_keys(section: Source, env: Mapping[str, str], draft: PolicyDraft) -> None:
    section.skip("mode", "location")
    for number, key in enumerate(section.parts("keys"), 1):
        metadata = mapping(key.get("metadata"))
        name = str(metadata.get("name") or metadata.get("user") or f"key-{number}")
        settings: dict[str, Any] = {}
        if key.has("allowedModels"):
            settings["models"] = key.words("allowedModels")
        for budget in key.parts("budgets"):
            settings |= _budget(budget, settings, draft)
        add_key(name, key.get("keyHash") or key.get("key"), settings, env, key.where, draft)
        key.finish()
    section.finish()


def _budget(budget: Source, settings: Mapping[str, Any], draft: PolicyDraft) -> dict[str, Any]:
    limit, span = budget.part("limit"), budget.part("window").text("rolling")
    unit, amount = str(limit.get("unit")), limit.number("amount")
    budget.skip("name")
    if str(budget.get("onBudgetExceeded") or "Block") != "Block":
        draft.report.dropped(
            budget.where, "budgets refuse what is beyond them: this one only watches", "`callbacks`"
        )
        return {}
    if amount is None:
        return {}
    if unit == "USD":
        found = budget_of(amount, span, budget.where, draft.report)
        there = settings.get("budget", {})
        return {
            "budget": {**there, **{name: min(value, there.get(name, value)) for name, value in found.items()}}
        }
    draft.report.changed(
        budget.where, f"tokens for {span} are tokens for a day", "change `tokens_per_day` if need be"
    )
    return {"quotas": {"tokens_per_day": max(1, round(amount))}}
