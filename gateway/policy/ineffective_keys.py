"""Keys that have no effect where they are written: probably something else was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gateway.policy.problems import Diagnostic, KeyPath, suggestion
from gateway.policy.schema import (
    BACKEND_SECRETS,
    AnthropicBackend,
    BedrockBackend,
    EngineBackend,
    FakeBackend,
    Policy,
    Provider,
    ToxicityGuard,
    WebhookGuard,
)

_LAUNCH_KEYS = ("model", "args", "env")
_STREAM_KEYS = ("stream", "window", "interval")
_QUEUE_KEYS = ("max_wait", "max_queue", "ageing", "patience")
_SCHEDULING_KEYS = ("weight", "priority", "on_saturation")
"""Of tiers. The bundled engine schedules by these itself, and reports its load."""
_WITHOUT_LOGPROBS = FakeBackend | AnthropicBackend | BedrockBackend


def ineffective_keys(policy: Policy, content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """``content`` is what is written, as far as it makes ``policy``."""
    yield from _without_value(content)
    yield from _unlaunched(policy, content)
    yield from _unstreamed(policy, content)
    yield from _unsupportive(policy, content)
    yield from _unasked(policy)
    yield from _unlimited(policy)
    yield from _conditions(policy)
    yield from _unsure(policy)
    yield from _no_larger(policy)
    yield from _without_queue(policy, content)
    yield from _elsewhere(policy, content)


def _without_value(content: Any, path: KeyPath = ()) -> Iterator[Diagnostic]:
    """``exact:`` without a value switches nothing on."""
    if isinstance(content, dict):
        for key, value in content.items():
            if value is not None:
                yield from _without_value(value, (*path, key))
            elif not (
                len(path) >= 2 and path[0] == "backends" and key in BACKEND_SECRETS
            ):  # its variable is not set
                instead = "write {} for the defaults" if path == ("caches",) else "write one"
                message = f"has no value, and is ignored; {instead}, or remove the key"
                yield Diagnostic((*path, key), message)
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _without_value(value, (*path, index))


def _unlaunched(policy: Policy, content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Launch options without ``launch``; an explicit ``launch: false`` may come from a variable."""
    for name, backend in policy.backends.items():
        if isinstance(backend, EngineBackend) and "launch" not in backend.model_fields_set:
            for key in _LAUNCH_KEYS:
                if content["backends"][name].get(key) is not None:
                    message = "has no effect without 'launch: true'; write that, or remove this key"
                    yield Diagnostic(("backends", name, key), message)


def _unstreamed(policy: Policy, content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    for name, guard in policy.guards.items():
        written = content["guards"][name]
        for key in _STREAM_KEYS:
            if key in written and guard.action == "flag":
                yield Diagnostic(
                    ("guards", name, key), "has no effect with 'action: flag', which delays nothing"
                )
            elif key in written and "output" not in guard.on:
                message = "has no effect on requests; write 'on: [input, output]' to scan answers"
                yield Diagnostic(("guards", name, key), message)
        obeys = isinstance(guard, WebhookGuard) and guard.has_remedies
        if "message" in written and guard.action != "block" and (guard.action == "flag" or not obeys):
            message = f"has no effect with 'action: {guard.action}', which refuses nothing"
            yield Diagnostic(("guards", name, "message"), message)
        if "on_error" in written and guard.action == "flag":
            message = "has no effect with 'action: flag', which refuses nothing"
            yield Diagnostic(("guards", name, "on_error"), message)


def _unsupportive(policy: Policy, content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """What is written on self-harm, where another key decides."""
    for name, guard in policy.guards.items():
        if not isinstance(guard, ToxicityGuard):
            continue
        written, action = content["guards"][name].get("self_harm"), guard.self_harm.action
        if isinstance(written, Mapping):
            if guard.action != "block":
                message = f"has no effect with 'action: {guard.action}', which refuses nothing"
                yield Diagnostic(("guards", name, "self_harm"), message)
            elif action != "support" and "message" in written:
                message = f"has no effect with 'action: {action}'; write 'action: support' to send it"
                yield Diagnostic(("guards", name, "self_harm", "message"), message)
        only_answers = guard.action == "block" and action != "block" and "input" not in guard.on
        if only_answers and "self_harm" in guard.categories:
            message = (
                "has no effect on answers, which pass; write 'self_harm: {action: block}' to have them cut"
            )
            yield Diagnostic(("guards", name, "categories", "self_harm"), message)


def _unasked(policy: Policy) -> Iterator[Diagnostic]:
    """Models of guards that nobody can ask for by that name."""
    for name, guard in policy.guards.items():
        for index, pattern in enumerate(guard.models):
            if any(fnmatchcase(model, pattern) for model in policy.models):
                continue
            meant = policy.resolve(pattern)
            hint = (
                f"; it is an alias of '{meant}', write that"
                if meant
                else suggestion(pattern, tuple(policy.models))
            )
            yield Diagnostic(("guards", name, "models", index), f"no model is named '{pattern}'{hint}")


def _unlimited(policy: Policy) -> Iterator[Diagnostic]:
    """A key whose tenant has no entry has no tenant limits. A policy without tenants means that."""
    for index, key in enumerate(policy.keys):
        if policy.tenants and key.tenant not in policy.tenants and "tenant" in key.model_fields_set:
            message = (
                f"no tenant is named '{key.tenant}': the key has no tenant quotas and no tenant budget"
                f"{suggestion(key.tenant, tuple(policy.tenants))}"
            )
            yield Diagnostic(("keys", index, "tenant"), message)


def _conditions(policy: Policy) -> Iterator[Diagnostic]:
    """Conditions under which no request begins with that step."""
    for name, model in policy.models.items():
        taken = 0.0
        for index, step in enumerate(model.cascade[:-1]):
            path: KeyPath = ("models", name, "cascade", index, "when", "complexity", "below")
            if step.when is None:
                taken = 1.0
            elif taken >= 1.0:
                yield Diagnostic(path[:-2], "has no effect: every request begins with a step before this one")
            elif (below := step.when.complexity.below) <= taken:
                message = f"no request begins here: those below {taken:g} begin with a step before this one"
                yield Diagnostic(
                    path, message if taken else "no request begins here: complexity is never below 0"
                )
            else:
                taken = below


def _unsure(policy: Policy) -> Iterator[Diagnostic]:
    for name, model in policy.models.items():
        for index, step in enumerate(model.cascade[:-1]):
            asked = policy.models.get(step.model)
            if step.escalate.mean_logprob_below is None or asked is None:
                continue
            backends = {target.backend: policy.backends[target.backend] for target in asked.targets}
            if backends and all(isinstance(backend, _WITHOUT_LOGPROBS) for backend in backends.values()):
                message = f"has no effect: {', '.join(backends)} returns no log-probabilities"
                yield Diagnostic(
                    ("models", name, "cascade", index, "escalate", "mean_logprob_below"), message
                )


def _no_larger(policy: Policy) -> Iterator[Diagnostic]:
    for name, model in policy.models.items():
        larger = policy.models.get(model.larger_context or "")
        if larger is None or model.context is None or larger.context is None:
            continue
        if larger.context <= model.context:
            message = (
                f"'{model.larger_context}' has a context of {larger.context}, which is not larger than this "
                f"model's {model.context}"
            )
            yield Diagnostic(("models", name, "larger_context"), message)


def _without_queue(policy: Policy, content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Tier keys where no backend has a queue."""
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
            if key in content["tiers"][name]:
                message = "has no effect: no backend has a queue. Write max_concurrency for one, or remove it"
                yield Diagnostic(("tiers", name, key), message)


def _elsewhere(policy: Policy, content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Where files would be, if they were not somewhere else."""
    written = content.get("files") or {}
    if "s3" in written and policy.files.bucket is None:
        yield Diagnostic(("files", "s3"), "has no effect without a bucket; write 'store: s3://BUCKET'")
    if "path" in written and policy.files.bucket is not None:
        yield Diagnostic(("files", "path"), f"has no effect with 'store: {policy.files.store}'; remove it")
