"""What validators of whole types say in ``gateway.policy.schema``, as JSON Schema: keys that need or exclude others.

A value that may be a variable's is none of them: what it will be is not known in an editor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from gateway.policy.schema import (
    AnyGuard,
    AwsAuth,
    AzureBackend,
    Cors,
    EngineBackend,
    EntraAuth,
    Evaluation,
    GeminiBackend,
    InjectionGuard,
    KvEvents,
    Model,
    OnSaturation,
    OpenAIBackend,
    Price,
    Replicas,
    Rollout,
    Telemetry,
    TopicsGuard,
    ToxicityGuard,
    WebhookGuard,
)
from gateway.policy.schema.judges import Judge
from gateway.policy.schema.models import BY_TOKENS, BY_UNIT

VARIABLE = r"\$\{"
"""What a text with a variable in it has; ``$${`` has it, too, and may be anything here as well."""
Rule = dict[str, Any]

_GIVEN: Rule = {"not": {"anyOf": [{"enum": ["", None]}, {"type": "string", "pattern": VARIABLE}]}}


def one_of(*words: Any) -> Rule:
    """One of these, or a variable."""
    return {"anyOf": [{"enum": [*words]}, {"type": "string", "pattern": VARIABLE}]}


def _given(*keys: str) -> Rule:
    return {"required": [*keys], "properties": dict.fromkeys(keys, _GIVEN)}


def _is(key: str, *values: Any) -> Rule:
    """It is written, as one of these."""
    return {"required": [key], "properties": {key: {"enum": [*values]}}}


def _has(key: str, item: str) -> Rule:
    """It is a list with this in it."""
    return {"required": [key], "properties": {key: {"type": "array", "contains": {"const": item}}}}


def _may_have(key: str, item: str) -> Rule:
    """It is a list with this in it, or with a variable that may be it."""
    wanted = {"anyOf": [{"const": item}, {"type": "string", "pattern": VARIABLE}]}
    return {"required": [key], "properties": {key: {"type": "array", "contains": wanted}}}


def _contains(key: str, item: float) -> Rule:
    return {"properties": {key: {"contains": {"const": item}}}}


def _filled(key: str) -> Rule:
    return {"required": [key], "properties": {key: {"minItems": 1}}}


def _not_both(one: str, other: str) -> Rule:
    return {"not": _given(one, other)}


def _no_cold_start_of_servers() -> Rule:
    servers = {"anyOf": [{"type": "array"}, {"type": "object", **_given("servers")}]}
    return {
        "not": {
            "allOf": [_given("cold_start"), {"required": ["replicas"], "properties": {"replicas": servers}}]
        }
    }


def _where(condition: Rule, *, then: Rule) -> Rule:
    return {"if": condition, "then": then}


def _model(_: type[BaseModel]) -> Iterable[Rule]:
    return [{"oneOf": [_filled("targets"), _filled("cascade")]}]


def _on_saturation(_: type[BaseModel]) -> Iterable[Rule]:
    downgrade = {"required": ["action"], "properties": {"action": one_of("downgrade")}}
    return [
        _where(_is("action", "downgrade"), then={"required": ["to"]}),
        _where(_given("to"), then=downgrade),
    ]


def _entra(_: type[BaseModel]) -> Iterable[Rule]:
    return [
        _not_both("client_secret", "token_file"),
        *(
            _where(_given(key), then={"required": ["tenant_id", "client_id"]})
            for key in ("client_secret", "token_file")
        ),
    ]


def _aws(_: type[BaseModel]) -> Iterable[Rule]:
    return [
        _not_both("access_key_id", "profile"),
        _where(_given("secret_access_key"), then={"required": ["access_key_id"]}),
    ]


def _guard(guard: type[BaseModel]) -> Iterable[Rule]:
    if not issubclass(guard, AnyGuard):
        return
    usual = guard.model_fields["action"].default
    yield _where(
        {"anyOf": [{"not": {"required": ["on"]}}, _has("on", "input")]},
        then={"properties": {"action": one_of(*guard.actions["input"])}},
    )
    yield _where(_has("on", "output"), then={"properties": {"action": one_of(*guard.actions["output"])}})
    changes = [action for action in guard.actions["output"] if action in ("redact", "mask")]
    if changes:
        kept: Rule = {"properties": {"action": {"not": {"enum": changes}}}}
        if usual in changes:
            kept["required"] = ["action"]
        yield _where({"allOf": [_has("on", "output"), _is("stream", "optimistic")]}, then=kept)


def _classifier(_: type[BaseModel]) -> Iterable[Rule]:
    named = {"required": ["classifier"], "properties": {"classifier": {"type": "object"}}}
    checks = {"anyOf": [{"not": {"required": ["checks"]}}, _may_have("checks", "model")]}
    return [_where(named, then=checks)]


def _injection(guard: type[BaseModel]) -> Iterable[Rule]:
    on_input = {"anyOf": [{"not": {"required": ["on"]}}, _may_have("on", "input")]}
    return [
        *_classifier(guard),
        _where(_is("spotlight", True), then=on_input),
        _where(_is("canary", True), then=_may_have("on", "output")),
    ]


def _webhook(_: type[BaseModel]) -> Iterable[Rule]:
    return [
        _where(_is("format", "classify", "predict"), then={"required": ["labels"]}),
        _where(
            _given("model"),
            then={"required": ["format"], "properties": {"format": one_of("moderations", "classify")}},
        ),
        {"not": {"allOf": [_is("texts", "masked"), _is("format", "presidio")]}},
    ]


def _price(_: type[BaseModel]) -> Iterable[Rule]:
    by_tokens, by_unit = ([{"required": [key]} for key in sorted(keys)] for keys in (BY_TOKENS, BY_UNIT))
    return [
        _where({"anyOf": [*by_tokens, {"not": {"anyOf": by_unit}}]}, then={"required": ["input", "output"]}),
        {"not": {"allOf": [_is("only_tokens", True), {"anyOf": by_unit}]}},
    ]


RULES: Mapping[type[BaseModel], Callable[[type[BaseModel]], Iterable[Rule]]] = {
    Model: _model,
    Rollout: lambda _: [_where(_given("steps"), then=_contains("steps", 100))],
    OnSaturation: _on_saturation,
    EntraAuth: _entra,
    AwsAuth: _aws,
    OpenAIBackend: lambda _: [
        {"anyOf": [{"required": [one]} for one in ("base_url", "preset", "replicas")]},
        _no_cold_start_of_servers(),
    ],
    Replicas: lambda _: [
        {
            "anyOf": [
                _filled("servers"),
                *({"required": [way]} for way in ("dns", "srv", "kubernetes", "pool")),
            ]
        }
    ],
    EngineBackend: lambda _: [
        {"not": {"allOf": [_is("launch", True), _given("replicas")]}},
        _no_cold_start_of_servers(),
    ],
    AzureBackend: lambda _: [_not_both("api_key", "entra")],
    GeminiBackend: lambda _: [_not_both("api_key", "vertex")],
    AnyGuard: _guard,
    InjectionGuard: _injection,
    ToxicityGuard: _classifier,
    TopicsGuard: lambda _: [{"anyOf": [_filled("words"), _filled("patterns")]}],
    WebhookGuard: _webhook,
    Price: _price,
    Cors: lambda _: [{"not": {"allOf": [_is("allow_credentials", True), _has("allow_origins", "*")]}}],
    Evaluation: lambda _: [
        {
            "properties": {
                "budget": {"anyOf": [{"required": [one]} for one in ("usd_per_day", "usd_per_month")]}
            }
        }
    ],
    Telemetry: lambda _: [{"not": {"allOf": [_is("content", True), _is("conventions", "v1.36")]}}],
}
"""Of a type and those that inherit from it."""
BEYOND: frozenset[type[BaseModel]] = frozenset([Judge, KvEvents])
"""Types whose validator compares numbers, which a schema cannot."""
REQUIRED_ELSEWHERE: Mapping[type[BaseModel], frozenset[str]] = {OpenAIBackend: frozenset(["base_url"])}
"""Keys that another may stand for."""
