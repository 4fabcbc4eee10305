"""Bifrost's virtual keys, teams and customers, with their budgets and rate limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.lab.migration.draft import PolicyDraft, unique_name
from gateway.lab.migration.entries import add_key
from gateway.lab.migration.limits import budget_of, quotas_of
from gateway.lab.migration.source import Source


def add_callers(
    governance: Source, names: Mapping[str, str], env: Mapping[str, str], draft: PolicyDraft
) -> None:
    budgets = governance.parts("budgets")
    limits = {str(one.get("id")): one for one in governance.parts("rate_limits")}
    tenants: dict[str, str] = {}
    for kind, field in (("customers", "customer_id"), ("teams", "team_id")):
        for group in governance.parts(kind):
            there = draft.content.setdefault("tenants", {})
            own = str(group.get("id"))
            tenants[own] = unique_name(str(group.get("name") or own), there)
            there[tenants[own]] = _limits(group, own, field, budgets, limits, draft)
            if group.has("customer_id"):
                draft.report.dropped(
                    group.at("customer_id"),
                    "a team is a tenant, and there is nothing above tenants",
                    "a tier's budget is shared by all its tenants",
                )
            group.skip("customer_id", "calendar_aligned")
            group.finish()
    for key in governance.parts("virtual_keys"):
        _add_key(key, names, tenants, budgets, limits, env, draft)
    if not governance.has("virtual_keys"):
        draft.report.changed(
            governance.at("virtual_keys"),
            "without virtual keys Bifrost asks callers for none; Tollgate always does",
            "make keys with `tollgate keys create`; until then `tollgate serve` shows a development key",
        )


def _add_key(
    key: Source,
    names: Mapping[str, str],
    tenants: Mapping[str, str],
    budgets: list[Source],
    limits: Mapping[str, Source],
    env: Mapping[str, str],
    draft: PolicyDraft,
) -> None:
    own = str(key.get("id"))
    key.skip("calendar_aligned", "description", "mcp_configs")
    if key.get("is_active") is False:
        draft.report.dropped(key.where, "is not active, and was left out")
        key.skip(*dict(key.left()))
        return
    settings: dict[str, Any] = {}
    for field in ("team_id", "customer_id"):
        if (tenant := tenants.get(str(key.get(field)))) is not None:
            settings.setdefault("tenant", tenant)
    models = [*dict.fromkeys(_models(key, names, draft))]
    if not models:
        draft.report.dropped(key.where, "none of the models that it may use was imported: it was left out")
        key.skip(*dict(key.left()))
        return
    settings |= {"models": models} | _limits(key, own, "virtual_key_id", budgets, limits, draft)
    add_key(str(key.get("name") or own), key.get("value"), settings, env, key.at("value"), draft)
    key.finish()


def _models(key: Source, names: Mapping[str, str], draft: PolicyDraft) -> Iterator[str]:
    for config in key.parts("provider_configs"):
        provider = str(config.get("provider"))
        if config.has("rate_limit_id") or config.has("budget_id") or config.has("budgets"):
            draft.report.dropped(
                config.where,
                "a key's limits are of all its models together",
                "make a key for each, if need be",
            )
        if config.words("key_ids") not in (["*"], []):
            draft.report.dropped(
                config.at("key_ids"),
                "which of a provider's keys is used is the model's matter, not the caller's",
                "write a model with those targets alone, and name it in `keys[].models`",
            )
        config.skip("weight", "id", "rate_limit_id", "budget_id", "budgets")
        for model in config.words("allowed_models"):
            public = f"{provider}/{model}"
            if model == "*" and any(name.startswith(f"{provider}/") for name in names):
                yield public
            elif public in names:
                yield names[public]
            else:
                draft.report.dropped(config.where, f"no model '{public}' was imported, which it may use")
        config.finish()


def _limits(
    place: Source,
    own: str,
    field: str,
    budgets: list[Source],
    limits: Mapping[str, Source],
    draft: PolicyDraft,
) -> dict[str, Any]:
    """``quotas`` and ``budget`` of what is its own: budgets name their owner, or are named by it."""
    found: dict[str, Any] = {}
    named = place.get("budget_id")
    for budget in [*budgets, *place.parts("budgets")]:
        mine = str(budget.get(field)) == own or (named is not None and budget.get("id") == named)
        if (mine or budget.where.startswith(place.where)) and (
            dollars := budget.number("max_limit")
        ) is not None:
            span = budget.text("reset_duration")
            span = span.replace("M", "mo").replace("Y", "y") if span else None
            for name, amount in budget_of(dollars, span, budget.where, draft.report).items():
                there = found.setdefault("budget", {})
                there[name] = min(amount, there.get(name, amount))
    limit = limits.get(str(place.get("rate_limit_id"))) or place.part("rate_limit")
    quotas = {
        **quotas_of(
            "requests",
            limit.number("request_max_limit"),
            limit.text("request_reset_duration"),
            limit.where,
            draft.report,
        ),
        **quotas_of(
            "tokens",
            limit.number("token_max_limit"),
            limit.text("token_reset_duration"),
            limit.where,
            draft.report,
        ),
    }
    return found | ({"quotas": quotas} if quotas else {})
