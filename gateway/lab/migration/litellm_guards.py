"""LiteLLM's ``guardrails`` as guards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.lab.migration.draft import PolicyDraft, unique_name
from gateway.lab.migration.source import Source, is_variable
from gateway.pii.entities import known_entities
from gateway.policy.schema.guards import GUARD_KINDS

Guard = dict[str, Any]
_INPUT = frozenset(["pre_call", "during_call"])
_OUTPUT = frozenset(["post_call"])
_PREBUILT = {
    "us_ssn": "US_SSN",
    "email": "EMAIL_ADDRESS",
    "phone": "PHONE_NUMBER",
    "credit_card": "CREDIT_CARD",
    "visa": "CREDIT_CARD",
    "mastercard": "CREDIT_CARD",
    "amex": "CREDIT_CARD",
    "iban": "IBAN_CODE",
    "ipv4": "IP_ADDRESS",
    "ipv6": "IP_ADDRESS",
}
_SECRET = re.compile("auth|key|token|secret", re.IGNORECASE)
"""Headers that hold one, by their names."""
_KEYS = frozenset(["aws_access_key", "aws_secret_key", "github_token", "slack_token", "generic_api_key"])


def add_guards(entries: Sequence[Source], draft: PolicyDraft) -> None:
    for entry in entries:
        name = str(entry.get("guardrail_name") or "guardrail")
        params = entry.part("litellm_params")
        kind = str(params.get("guardrail") or "")
        params.skip("default_on", "mode", "guardrail_name", "unreachable_fallback")
        entry.skip("guardrail_info", "guardrail_id")
        make = _KINDS.get(kind)
        if make is None:
            draft.report.dropped(
                entry.where,
                f"the guardrail '{kind}' is not asked",
                "docs/guards.md lists the guards; a server of yours that asks it can be one of `kind: webhook`",
            )
            continue
        guards = make(params, draft)
        common = _common(params, draft)
        default_on = params.get("default_on")
        for guard in guards:
            made = {**guard, **common}
            if guard.get("kind") == "injection":
                made["on"] = ["input"]
            if not default_on:
                draft.report.dropped(
                    entry.where,
                    f"'{name}' is asked only where a request or key names it; guards here look after all",
                    f"write it with those, if it is wanted: `guards: {{{name}: {json.dumps(made)}}}`",
                )
                continue
            places = draft.content.setdefault("guards", {})
            unique = unique_name(name, places)
            if unique in GUARD_KINDS and unique != made["kind"]:
                unique = unique_name(f"{unique}-guard", places)
            places[unique] = made
        params.finish(_ADVICE)
        entry.finish()


_ADVICE: Mapping[str, tuple[str, str]] = {
    "presidio_analyzer_api_base": ("Presidio runs in the gateway's own sidecar", "pip install '.[guards]'"),
    "presidio_anonymizer_api_base": ("texts are masked by the gateway itself", ""),
    "presidio_ad_hoc_recognizers": ("recognizers are patterns", "write `patterns` of the guard"),
    "presidio_entities_deny_list": ("a guard lists what it looks for", "remove them from `entities`"),
    "categories": (
        "topics by category are judged by the guard 'toxicity' or a judge model",
        "docs/guards.md",
    ),
    "mock_redacted_text": ("it is for tests alone", ""),
}


def _common(params: Source, draft: PolicyDraft) -> Guard:
    """Where it looks, and what becomes of what it finds where it only looks on."""
    modes = params.words("mode")
    found: Guard = {}
    on = [side for side, hooks in (("input", _INPUT), ("output", _OUTPUT)) if hooks & set(modes)]
    scope = params.get("presidio_filter_scope") or params.get("presidio_run_on")
    if scope in ("input", "output"):
        on = [str(scope)]
    found["on"] = on or ["input"]
    if modes == ["logging_only"]:
        found |= {"on": ["input", "output"], "action": "flag"}
    if other := set(modes) - _INPUT - _OUTPUT - {"logging_only"}:
        draft.report.dropped(params.at("mode"), f"guards do not look at {', '.join(sorted(other))}")
    if params.get("on_flagged") == "monitor":
        found["action"] = "flag"
    if (seconds := params.number("timeout")) is not None:
        found["timeout"] = f"{seconds:g}s"
    return found


def _presidio(params: Source, draft: PolicyDraft) -> list[Guard]:
    masks = "mask" if params.get("output_parse_pii") else "redact"
    config = params.get("pii_entities_config")
    wanted: dict[str, list[str]] = {}
    for entity, action in (config if isinstance(config, Mapping) else {}).items():
        if str(entity) in known_entities():
            wanted.setdefault("block" if str(action).upper() == "BLOCK" else masks, []).append(str(entity))
        else:
            draft.report.dropped(
                params.at(f"pii_entities_config.{entity}"),
                f"nothing here finds {entity}",
                "write a pattern for it: `patterns`",
            )
    if not wanted:
        draft.report.changed(
            params.at("pii_entities_config"),
            "without entities Presidio looks for all that it knows; the guard looks for its own usual ones",
            "name others in `entities`: docs/guards.md",
        )
    shared: Guard = {"kind": "pii"}
    if language := params.text("presidio_language"):
        if re.fullmatch("[a-z]{2}", language):
            shared["languages"] = [language]
        else:
            draft.report.dropped(
                params.at("presidio_language"),
                f"'{language}' is not two letters of a language",
                "`languages: [en]`",
            )
    thresholds = params.get("presidio_score_thresholds")
    if isinstance(thresholds, Mapping) and thresholds:
        shared["threshold"] = min(float(one) for one in thresholds.values())
        if len(thresholds) > 1:
            draft.report.changed(
                params.at("presidio_score_thresholds"), "a guard has one threshold: the lowest"
            )
    if not wanted:
        return [{**shared, "action": masks}]
    return [{**shared, "action": action, "entities": entities} for action, entities in wanted.items()]


def _secrets(params: Source, draft: PolicyDraft) -> list[Guard]:
    if params.has("detect_secrets_config"):
        draft.report.dropped(params.at("detect_secrets_config"), "all kinds of credentials are looked for")
        params.skip("detect_secrets_config")
    return [{"kind": "secrets", "action": "redact"}]


def _webhook(params: Source, draft: PolicyDraft, url: str, variable: str) -> Guard:
    guard: Guard = {"kind": "webhook", "url": params.text("api_base") or url, "action": "block"}
    given = params.text("api_key")
    if given is None:
        guard["api_key"] = f"${{{variable}}}"
    else:
        guard["api_key"] = given if is_variable(given) else draft.secret(given, variable)
    if params.text("unreachable_fallback") == "fail_open":
        guard["on_error"] = "allow"
    return guard


def _lakera(params: Source, draft: PolicyDraft) -> list[Guard]:
    base = params.text("api_base")
    guard = _webhook(params, draft, "https://api.lakera.ai/v2/guard", "LAKERA_API_KEY") | {"format": "lakera"}
    if base and not is_variable(base) and not base.rstrip("/").endswith("/guard"):
        guard["url"] = f"{base.rstrip('/')}/v2/guard"
    if project := params.text("project_id"):
        guard["params"] = {"project_id": project}
    params.skip("payload", "breakdown", "dev_info")
    if params.has("category_thresholds"):
        draft.report.dropped(
            params.at("category_thresholds"), "thresholds are Lakera's own, by its project's policy"
        )
        params.skip("category_thresholds")
    return [guard]


def _moderation(params: Source, draft: PolicyDraft) -> list[Guard]:
    guard = _webhook(params, draft, "https://api.openai.com/v1/moderations", "OPENAI_API_KEY")
    if not str(guard["url"]).endswith("/moderations") and not is_variable(str(guard["url"])):
        guard["url"] = f"{str(guard['url']).rstrip('/')}/moderations"
    return [guard | {"format": "moderations", "model": params.text("model") or "omni-moderation-latest"}]


def _generic(params: Source, draft: PolicyDraft) -> list[Guard]:
    guard = _webhook(params, draft, "", "GUARDRAIL_API_KEY") | {"format": "litellm"}
    if not guard["url"]:
        draft.report.dropped(params.where, "has no api_base")
        return []
    if not is_variable(str(guard["url"])):
        guard["url"] = str(guard["url"]).rstrip("/") + "/beta/litellm_basic_guardrail_api"
    if not params.has("api_key"):
        del guard["api_key"]
    headers = params.get("headers")
    if isinstance(headers, Mapping) and headers:
        guard["headers"] = {
            name: value
            if is_variable(value) or not _SECRET.search(name)
            else draft.secret(value, "GUARDRAIL_HEADER")
            for name in map(str, headers)
            if (value := Source(headers, params.at("headers"), draft.report).text(name))
        }
    extra = params.get("additional_provider_specific_params")
    if isinstance(extra, Mapping) and extra:
        guard["params"] = dict(extra)
    return [guard]


def _content_filter(params: Source, draft: PolicyDraft) -> list[Guard]:
    """Words, patterns and kinds of data, each blocked or masked."""
    words: dict[str, list[str]] = {}
    entities: dict[str, list[str]] = {}
    patterns: dict[str, list[str]] = {}
    secrets: list[Guard] = []
    for entry in params.parts("blocked_words"):
        words.setdefault(_action(entry), []).append(str(entry.get("keyword")))
        entry.skip("description")
    for entry in params.parts("patterns"):
        named, written = entry.text("pattern_name"), entry.text("pattern")
        entry.skip("pattern_type", "name")
        if written:
            patterns.setdefault(_action(entry), []).append(written)
        elif named in _PREBUILT:
            entities.setdefault(_action(entry), []).append(_PREBUILT[named])
        elif named in _KEYS:
            secrets = [{"kind": "secrets", "action": _action(entry)}]
        else:
            draft.report.dropped(
                entry.where, f"the pattern '{named}' is not known here", "write it as one of `patterns`"
            )
    topics = [
        {"kind": "topics", "action": action}
        | ({"words": words[action]} if action in words else {})
        | ({"patterns": patterns[action]} if action in patterns else {})
        for action in sorted({*words, *patterns})
    ]
    pii = [
        {"kind": "pii", "action": action, "entities": list(dict.fromkeys(found))}
        for action, found in entities.items()
    ]
    return [*topics, *pii, *secrets]


def _action(entry: Source) -> str:
    return "redact" if str(entry.get("action") or "BLOCK").upper() == "MASK" else "block"


def _injection(params: Source, draft: PolicyDraft) -> list[Guard]:
    draft.report.changed(
        params.where, "prompt injections are found by another detector", "docs/guards.md has its figures"
    )
    return [{"kind": "injection", "action": "block"}]


_KINDS: Mapping[str, Callable[[Source, PolicyDraft], list[Guard]]] = {
    "presidio": _presidio,
    "hide-secrets": _secrets,
    "lakera": _lakera,
    "lakera_v2": _lakera,
    "openai_moderation": _moderation,
    "generic_guardrail_api": _generic,
    "litellm_content_filter": _content_filter,
    "detect_prompt_injection": _injection,
}
