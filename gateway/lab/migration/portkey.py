"""A Portkey config: targets under strategies, as models and what they fall back on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.lab.migration.config_file import read_json
from gateway.lab.migration.draft import PolicyDraft, duration, unique_name
from gateway.lab.migration.plain import plain
from gateway.lab.migration.providers import PROVIDERS, backend_of, short_name
from gateway.lab.migration.source import Source

_PROVIDERS = {
    "azure-openai": "azure",
    "google": "gemini",
    "vertex-ai": "vertex_ai",
    "mistral-ai": "mistral",
    "together-ai": "together_ai",
    "x-ai": "xai",
    "perplexity-ai": "perplexity",
    "fireworks-ai": "fireworks_ai",
    "aws-bedrock": "bedrock",
}
"""Portkey's names where LiteLLM has another."""
_AZURE = (("azure_resource_name", "api_base"), ("azure_api_version", "api_version"))
_OTHER = (
    *(("custom_host", "api_base"), ("api_key", "api_key"), ("aws_region", "aws_region_name")),
    *(("aws_access_key_id", "aws_access_key_id"), ("aws_secret_access_key", "aws_secret_access_key")),
    *(("vertex_project_id", "vertex_project"), ("vertex_region", "vertex_location")),
)
_ADVICE: Mapping[str, tuple[str, str]] = {
    "input_guardrails": (
        "guardrails are kept at Portkey, and named here alone",
        "write `guards`: docs/guards.md",
    ),
    "output_guardrails": (
        "guardrails are kept at Portkey, and named here alone",
        "write `guards`: docs/guards.md",
    ),
    "before_request_hooks": (
        "guardrails are kept at Portkey, and named here alone",
        "write `guards`: docs/guards.md",
    ),
    "after_request_hooks": (
        "guardrails are kept at Portkey, and named here alone",
        "write `guards`: docs/guards.md",
    ),
    "conditions": (
        "requests are not routed by their metadata",
        "give each kind of caller a key with `models` of its own",
    ),
    "forward_headers": ("callers' headers are not passed on", ""),
    "on_status_codes": (
        "what is tried again is what may succeed elsewhere: 429, server errors, no answer",
        "",
    ),
}


def read(file: Path) -> dict[str, Any]:
    """Raises ``ConfigError``."""
    return read_json(file, "no config of Portkey's: write the object with its targets")


def imported(config: Mapping[str, Any], *, source: str, name: str) -> PolicyDraft:
    """``name``: of the model that callers ask for."""
    draft = PolicyDraft(source)
    top = Source(plain(config), "", draft.report)
    _cache(top.part("cache"), draft)
    _add(top, name, draft, {})
    return draft


def _add(group: Source, name: str, draft: PolicyDraft, usual: Mapping[str, Any]) -> str | None:
    """The model of a group of targets, or of one; None where none of them can be had."""
    settings = {**usual, **_settings(group)}
    strategy = group.part("strategy")
    mode = str(strategy.get("mode") or "single")
    targets = group.parts("targets")
    strategy.skip("default")
    strategy.finish(_ADVICE)
    if not targets:
        targets = [group]
    else:
        group.skip("provider")
        group.finish(_ADVICE)
    if mode == "loadbalance" or len(targets) == 1:
        return _balanced(targets, name, draft, settings)
    if mode not in ("fallback", "single"):
        draft.report.changed(
            strategy.at("mode"), f"'{mode}' is not known here: the targets are asked in their order"
        )
    models = []
    for number, target in enumerate(targets, 1):
        inner = name if number == 1 else unique_name(f"{name}--{number}", draft.models)
        made = _add(target, inner, draft, settings)
        if made is not None:
            models.append(made)
    if models[1:]:
        there = draft.models[models[0]].setdefault("fallbacks", [])
        there += [model for model in models[1:] if model not in there]
    return models[0] if models else None


def _balanced(
    targets: Sequence[Source], name: str, draft: PolicyDraft, settings: Mapping[str, Any]
) -> str | None:
    written: list[dict[str, Any]] = []
    more: dict[str, Any] = dict(settings)
    for target in targets:
        if target.parts("targets"):
            draft.report.dropped(
                target.at("targets"),
                "strategies within a shared load are not nested",
                "make it a model of its own",
            )
            target.skip(*dict(target.left()))
            continue
        weight = target.number("weight")
        if len(targets) == 1:
            more |= _settings(target)
        found = _backend(target, name, draft)
        if found is None:
            continue
        backend, model = found
        entry: dict[str, Any] = {"backend": backend, "model": model}
        if weight is not None and len(targets) > 1:
            if weight <= 0:
                continue
            entry["weight"] = weight
        target.finish(_ADVICE)
        if entry not in written:
            written.append(entry)
    if not written:
        return None
    unique = unique_name(name, draft.models)
    draft.models[unique] = {"targets": written, **more}
    if len({entry["model"] for entry in written}) > 1:
        draft.models[unique].setdefault("split_by", "request")  # as Portkey draws
    return unique


def _backend(target: Source, name: str, draft: PolicyDraft) -> tuple[str, str] | None:
    params = target.part("override_params")
    model = str(params.get("model") or name)
    provider = str(target.get("provider") or target.get("virtual_key") or "")
    if slug := re.fullmatch(r"@([^/]+)/(.+)", model):
        provider, model = slug[1], slug[2]
    known = _provider(provider)
    if known is None:
        draft.report.dropped(
            target.where or "provider", f"nobody here knows the provider '{provider}'", "add a backend"
        )
        return None
    if target.has("virtual_key") or slug:
        variable = PROVIDERS[known].key or "the cloud's own variables"
        draft.report.changed(
            target.where or "virtual_key", "keys that Portkey keeps stay there", f"set {variable}"
        )
    given = {theirs: value for ours, theirs in (*_OTHER, *_AZURE) if (value := target.get(ours)) is not None}
    if known == "azure" and (resource := given.get("api_base")) and "://" not in str(resource):
        given["api_base"] = f"https://{resource}.openai.azure.com"
    if deployment := target.get("azure_deployment_id"):
        model = str(deployment)
    for key, _ in list(params.left()):
        draft.report.dropped(params.at(key), "no parameters are added to requests", "let callers send it")
        params.skip(key)
    found = backend_of(known, model, Source(given, target.where, draft.report), draft)
    if found is None:
        return None
    settings, model = found
    return draft.backend(short_name(known, settings), settings), model


def _provider(name: str) -> str | None:
    """By its name, or the beginning of a virtual key's: ``openai-prod-1a2b``."""
    plain = name.removeprefix("@")
    for candidate in sorted({*_PROVIDERS, *PROVIDERS}, key=len, reverse=True):
        if plain == candidate or plain.startswith(f"{candidate}-"):
            return _PROVIDERS.get(candidate, candidate)
    return None


def _settings(place: Source) -> dict[str, Any]:
    found: dict[str, Any] = {}
    retry = place.part("retry")
    if (attempts := retry.number("attempts")) is not None:
        found["retry"] = {"attempts": min(10, max(1, round(attempts) + 1))}
    retry.finish(_ADVICE)
    if (milliseconds := place.number("request_timeout")) is not None and milliseconds > 0:
        found["timeouts"] = {"total": duration(milliseconds / 1000)}
    return found


def _cache(cache: Source, draft: PolicyDraft) -> None:
    mode = cache.get("mode")
    if mode:
        age = cache.number("max_age")
        kind = "semantic" if str(mode) == "semantic" else "exact"
        draft.content["caches"] = {kind: {"ttl": duration(age)} if age else {}}
    cache.finish()
