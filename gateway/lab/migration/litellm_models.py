"""LiteLLM's ``model_list`` as backends and models; aliases and fallbacks between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import inf
from typing import Any
from urllib.parse import urlsplit

from gateway.lab.migration.draft import PolicyDraft, duration, unique_name, valid_name
from gateway.lab.migration.litellm_advice import DEPLOYMENT_ADVICE, tell_unverified
from gateway.lab.migration.providers import PRESET_HOSTS, PROVIDERS, backend_of, provider_of, short_name
from gateway.lab.migration.source import Source, mapping
from gateway.policy.prices import catalogue

_TOKENS = 1_000_000
_PRICES = {
    "input_cost_per_token": "input",
    "output_cost_per_token": "output",
    "cache_read_input_token_cost": "cached_input",
    "cache_creation_input_token_cost": "cache_write",
    "output_cost_per_reasoning_token": "reasoning",
}
_ROUTED_ELSEWHERE = ("auto_router/",)
_DEFAULTS = ("temperature", "max_tokens", "top_p", "seed", "stop", "n", "user", "response_format", "tools")


@dataclass(slots=True)
class Router:
    """What the settings say of all models."""

    attempts: int | None = None
    backoff: float | None = None
    total: float | None = None
    first_token: float | None = None
    idle: float | None = None
    select: str | None = None
    breaker: dict[str, Any] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    """Models by wildcards that callers use."""


@dataclass(slots=True)
class _Deployment:
    backend: str
    model: str
    order: float
    weights: Mapping[str, float]
    timeouts: dict[str, str]
    where: str


def add_models(
    entries: Sequence[Source], draft: PolicyDraft, router: Router, credentials: Mapping[str, Any]
) -> dict[str, str]:
    """Models by their public names. Returns the names that LiteLLM has for them, and ours."""
    groups: dict[str, list[Source]] = {}
    for entry in entries:
        name = str(entry.get("model_name") or "")
        if not name:
            draft.report.dropped(entry.where, "has no model_name")
            continue
        groups.setdefault(name, []).append(entry)
    names: dict[str, str] = {}
    for name, group in groups.items():
        if "*" in name:
            continue  # after the others, which go before it
        deployments = [one for entry in group for one in _deployments(entry, draft, router, credentials)]
        if deployments:
            names[name] = _add(name, deployments, draft, router)
            _limits(group, draft.models[names[name]])
            for entry in group:
                _tell_the_rest(entry, draft)
            for entry in group:  # fallbacks may name a deployment by its id
                names.setdefault(str(entry.part("model_info").get("id")), names[name])
    for name, group in groups.items():
        if "*" in name:
            _add_wildcard(name, group, draft, router, credentials, names)
    return names


def _deployments(
    entry: Source,
    draft: PolicyDraft,
    router: Router,
    credentials: Mapping[str, Any],
    model: str | None = None,
) -> Iterable[_Deployment]:
    """One, or none where no backend can be had."""
    params = entry.part("litellm_params")
    if named := params.get("litellm_credential_name"):
        given = mapping(entry.get("litellm_params"))
        params = Source({**credentials.get(str(named), {}), **given}, params.where, draft.report)
        params.skip("litellm_credential_name")
    asked = model or params.text("model") or str(entry.get("model_name"))
    params.skip(
        "model", "drop_params", "litellm_trace_id", "merge_reasoning_content_in_choices", "use_litellm_proxy"
    )
    weights = {key: number for key in ("weight", "rpm", "tpm") if (number := params.number(key)) is not None}
    for key in ("rpm", "tpm"):  # some write them beside the parameters
        if (number := entry.number(key)) is not None:
            weights.setdefault(key, number)
    order = params.number("order")
    if order is None:
        order = entry.part("model_info").number("order")
    found = _backend(asked, params, draft, router)
    if found is None:
        return
    backend, target = found
    _price(f"{backend}/{target}", (params, entry.part("model_info")), draft)
    timeouts = _timeouts(params)
    if attempts := params.count("num_retries") or params.count("max_retries"):
        draft.report.changed(
            params.at("max_retries"),
            "retries are a model's, not a deployment's, and within a share of its traffic (`retry.budget`)",
            f"write `retry: {{attempts: {min(attempts + 1, 10)}}}` for the model if that is meant for all its targets",
        )
    if {"rpm", "tpm"} & weights.keys():
        draft.report.changed(
            entry.at("litellm_params"),
            "rpm and tpm weigh deployments against each other; they are no limits of a backend, whose 429s lead to the "
            "next target",
            "`max_concurrency` of the backend bounds what it has at once",
        )
    for key in _DEFAULTS:
        if params.has(key):
            draft.report.dropped(
                params.at(key),
                "no default parameters are added to requests",
                "let callers send it, or `max_output` cap answers",
            )
            params.skip(key)
    tell_unverified(params, draft.report)
    params.finish(DEPLOYMENT_ADVICE)
    last = inf  # behind all that have an order
    yield _Deployment(backend, target, last if order is None else order, weights, timeouts, entry.where)


def _backend(asked: str, params: Source, draft: PolicyDraft, router: Router) -> tuple[str, str] | None:
    extra: dict[str, Any] = {}
    if region := params.text("region_name"):
        extra["region"] = valid_name(region)
    if concurrency := params.count("max_parallel_requests"):
        extra["max_concurrency"] = concurrency
    if router.breaker:
        extra["breaker"] = router.breaker
    custom = params.text("custom_llm_provider")
    if (scripted := params.text("mock_response")) is not None:
        settings: dict[str, Any] = {"kind": "fake", "script": [{"reply": scripted}]}
        params.skip("api_key", "api_base")
        extra.pop("breaker", None)
        return draft.backend("scripted", settings | extra), asked.rpartition("/")[2] or asked
    if asked.startswith(_ROUTED_ELSEWHERE):
        draft.report.dropped(
            params.at("model"),
            "routers that choose by content are cascades here",
            "write a `cascade`: docs/cascade.md",
        )
        return None
    known = provider_of(asked, custom, params.has("api_base") or params.has("base_url"))
    if known is None or not known[1]:
        draft.report.dropped(
            params.at("model"),
            f"nobody here knows whose API serves '{asked}'",
            "add a backend with its base_url (`kind: openai` for any server that speaks OpenAI's API) and a target",
        )
        return None
    provider, model = known
    found = backend_of(provider, model, params, draft)
    if found is None:
        return None
    settings, model = found
    return draft.backend(short_name(provider, settings), settings | extra), model


def _timeouts(params: Source) -> dict[str, str]:
    found = {}
    for key, name in (("timeout", "total"), ("stream_timeout", "first_token")):
        if (seconds := params.number(key)) is not None and seconds > 0:
            found[name] = duration(seconds)
    return found


def _price(target: str, places: Iterable[Source], draft: PolicyDraft) -> None:
    dollars: dict[str, float] = {}
    for place in places:
        for key, name in _PRICES.items():
            if (each := place.number(key)) is not None:
                dollars.setdefault(name, round(each * _TOKENS, 6))
    if dollars:
        draft.price(target, **({"input": 0.0, "output": 0.0} | dollars))


def _limits(group: Sequence[Source], model: dict[str, Any]) -> None:
    infos = [entry.part("model_info") for entry in group]
    for key, name in (("max_input_tokens", "context"), ("max_output_tokens", "max_output")):
        told = [number for info in infos if (number := info.count(key))]
        if told:
            model[name] = min(told)


def _tell_the_rest(entry: Source, draft: PolicyDraft) -> None:
    """What ``model_info`` says beside its limits is for LiteLLM's own pages, but for whose the model is."""
    info = entry.part("model_info")
    if info.has("team_id"):
        draft.report.dropped(
            info.at("team_id"),
            "models are no team's: each key lists those that it may use",
            "name it in `keys[].models`",
        )
    entry.skip("model_name", "litellm_params", "rpm", "tpm")
    entry.finish()


def _add(name: str, deployments: Sequence[_Deployment], draft: PolicyDraft, router: Router) -> str:
    """Those of the lowest ``order`` are the model's targets; further ones are models to fall back on."""
    ours = unique_name(name, draft.models)
    if ours != name:
        draft.report.changed(
            deployments[0].where, f"the model '{name}' is called '{ours}', as names have no other signs"
        )
    by_order: dict[float, list[_Deployment]] = {}
    for one in deployments:
        by_order.setdefault(one.order, []).append(one)
    tiers = [by_order[order] for order in sorted(by_order)]
    later = [unique_name(f"{ours}--{number}", draft.models) for number in range(2, len(tiers) + 1)]
    for model, tier in zip((ours, *later), tiers, strict=True):
        draft.models[model] = _model(tier, draft, router)
    if later:
        draft.models[ours]["fallbacks"] = [*later]
        draft.report.changed(
            deployments[0].where,
            f"deployments of a higher `order` are models of their own ({', '.join(later)}): fallbacks of '{ours}'",
        )
    return ours


def _model(deployments: Sequence[_Deployment], draft: PolicyDraft, router: Router) -> dict[str, Any]:
    by = _drawn_by(deployments, draft)
    targets: list[dict[str, Any]] = []
    for one in deployments:
        target: dict[str, Any] = {"backend": one.backend, "model": one.model}
        if by is not None and len(deployments) > 1 and router.select is None:
            weight = one.weights.get(by, 0.0)
            if weight <= 0:
                draft.report.dropped(
                    one.where,
                    f"a deployment without '{by}' beside others that have one is never drawn",
                    "give it a weight",
                )
                continue
            target["weight"] = min(weight, 1e6)
        if one.timeouts:
            target["timeouts"] = one.timeouts
        if target not in targets:
            targets.append(target)
        else:
            draft.report.changed(one.where, "is a target that is there already: the same backend and model")
    model: dict[str, Any] = {"targets": targets}
    if router.select and len(targets) > 1:
        model["select"] = router.select
    elif len({target["model"] for target in targets}) > 1:
        model["split_by"] = "request"  # as LiteLLM draws
    if len(targets) == 1 and "timeouts" in targets[0]:
        model["timeouts"] = targets[0].pop("timeouts")
    usual = {"total": router.total, "first_token": router.first_token, "idle": router.idle}
    written = {name: duration(seconds) for name, seconds in usual.items() if seconds}
    if written:
        model["timeouts"] = written | model.get("timeouts", {})
    if router.attempts is not None or router.backoff:
        retry: dict[str, Any] = {"attempts": router.attempts or 2}
        if router.backoff and retry["attempts"] > 1:
            retry["backoff"] = duration(router.backoff)
        model["retry"] = retry
    return model


def _drawn_by(deployments: Sequence[_Deployment], draft: PolicyDraft) -> str | None:
    """What LiteLLM's shuffle weighs: the first deployment says it for all."""
    given = [key for key in ("weight", "rpm", "tpm") if any(one.weights.get(key) for one in deployments)]
    by = next((key for key in given if key in deployments[0].weights), None)
    if given and by is None:
        draft.report.changed(
            deployments[0].where,
            f"has no '{given[0]}', so that LiteLLM draws all of its model's deployments alike, as these targets are",
            "write `weight` of the targets",
        )
    return by


def _add_wildcard(
    name: str,
    group: Sequence[Source],
    draft: PolicyDraft,
    router: Router,
    credentials: Mapping[str, Any],
    names: dict[str, str],
) -> None:
    """Models have names here: those that the price catalogue knows of the provider, and those that one names."""
    found: dict[str, list[_Deployment]] = {}
    for entry in group:
        pattern = entry.part("litellm_params").text("model") or name
        for public, model in dict.fromkeys(_matching(name, pattern, router.wanted)):
            if public not in names:
                found.setdefault(public, []).extend(_deployments(entry, draft, router, credentials, model))
        entry.skip("litellm_params")
    added = [public for public, deployments in found.items() if deployments]
    for public in added:
        names[public] = _add(public, found[public], draft, router)
    told = (
        f"models have names here: '{name}' became the {len(added)} that the price catalogue or --models names"
    )
    if not added:
        told = f"models have names here, and none is known for '{name}'"
    draft.report.changed(
        group[0].where,
        told,
        "import again with --models for those that callers use, or add them to the policy",
    )


def _matching(name: str, pattern: str, wanted: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Public names that a wildcard takes, with the model that each asks for."""
    provider = pattern.partition("/")[0] if "/" in pattern else "openai"
    for public in wanted:
        if fnmatchcase(public, name):
            yield public, _filled(pattern, _part(name, public))
    hosts = (
        PRESET_HOSTS.get(provider) or urlsplit(PROVIDERS[provider].url).hostname
        if provider in PROVIDERS
        else None
    )
    for host, model in catalogue():
        if host == hosts:
            rest = model if name == "*" or "/" in name else f"{provider}/{model}"
            yield _filled(name, rest), _filled(pattern, model)


def _part(name: str, public: str) -> str:
    before, _, after = name.partition("*")
    return public[len(before) : len(public) - len(after)]


def _filled(pattern: str, part: str) -> str:
    """``openai/*`` with ``gpt-4o``. A name that has the provider already is not given it twice."""
    before, star, after = pattern.partition("*")
    if not star:
        return pattern
    return part if before and part.startswith(before) else f"{before}{part}{after}"
