"""Keys that are written and can have no effect where they stand: whoever wrote them means something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.policy.problems import Diagnostic, KeyPath, suggestion
from gateway.policy.schema import AnthropicBackend, EngineBackend, FakeBackend, OpenAIBackend, Policy

_OF_LAUNCHED = ("model", "args", "env")
_OF_STREAMS = ("stream", "window", "interval")
_OF_QUEUES = ("max_wait", "max_queue", "ageing", "patience")
_OF_SHARES = ("weight", "priority", "on_saturation")
"""Of tiers. The bundled engine shares by itself, and tells how full it is."""
_SILENT = FakeBackend | AnthropicBackend
"""They tell no log-probabilities."""


def idle(policy: Policy, content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """``content`` is what is written, as far as it makes ``policy``."""
    yield from _empty(content)
    yield from _unlaunched(policy, content)
    yield from _unstreamed(policy, content)
    yield from _unlimited(policy)
    yield from _conditions(policy)
    yield from _unsure(policy)
    yield from _no_larger(policy)
    yield from _without_queue(policy, content)


def _empty(content: Any, path: KeyPath = ()) -> Iterator[Diagnostic]:
    """``exact:`` and nothing after it switches nothing on."""
    if isinstance(content, dict):
        for key, value in content.items():
            if value is not None:
                yield from _empty(value, (*path, key))
            elif not (
                len(path) == 2 and path[0] == "backends" and key == "api_key"
            ):  # its variable is not set
                instead = "write {} for the defaults" if path == ("caches",) else "write one"
                message = f"has no value, which is as if it were left out; {instead}, or remove the key"
                yield Diagnostic((*path, key), message)
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from _empty(value, (*path, index))


def _unlaunched(policy: Policy, content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Whoever writes ``launch: false`` knows it; a variable may say so in one place and not in another."""
    for name, backend in policy.backends.items():
        if isinstance(backend, EngineBackend) and "launch" not in backend.model_fields_set:
            for key in _OF_LAUNCHED:
                if content["backends"][name].get(key) is not None:
                    message = (
                        "has no effect on an engine that runs already; write 'launch: true', or remove it"
                    )
                    yield Diagnostic(("backends", name, key), message)


def _unstreamed(policy: Policy, content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    for name, guard in policy.guards.items():
        written = content["guards"][name]
        for key in _OF_STREAMS:
            if key in written and guard.action == "flag":
                yield Diagnostic(
                    ("guards", name, key), "has no effect with 'action: flag', which delays nothing"
                )
            elif key in written and "output" not in guard.on:
                message = "has no effect on requests; write 'on: [input, output]' for answers to be looked at"
                yield Diagnostic(("guards", name, key), message)
        if "on_error" in written and guard.action == "flag":
            message = "has no effect with 'action: flag', which refuses nothing"
            yield Diagnostic(("guards", name, "on_error"), message)


def _unlimited(policy: Policy) -> Iterator[Diagnostic]:
    """A key whose tenant nobody describes has no limits of a tenant's. Where none is described, none is meant."""
    for index, key in enumerate(policy.keys):
        if policy.tenants and key.tenant not in policy.tenants and "tenant" in key.model_fields_set:
            message = (
                f"no tenant is named '{key.tenant}': the key has no quotas and no budget of a tenant's"
                f"{suggestion(key.tenant, tuple(policy.tenants))}"
            )
            yield Diagnostic(("keys", index, "tenant"), message)


def _conditions(policy: Policy) -> Iterator[Diagnostic]:
    """A condition under which no request begins with its step."""
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
            if backends and all(isinstance(backend, _SILENT) for backend in backends.values()):
                message = f"has no effect: {', '.join(backends)} tells no log-probabilities"
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
    """Tiers where everybody is let in at once."""
    queues = any(
        isinstance(backend, OpenAIBackend | AnthropicBackend)  # they get a limit by their latency
        or backend.max_concurrency is not None
        or backend.max_tokens_in_flight is not None
        for backend in policy.backends.values()
    )
    if queues:
        return
    engines = any(isinstance(backend, EngineBackend) for backend in policy.backends.values())
    idle = _OF_QUEUES if engines else (*_OF_QUEUES, *_OF_SHARES)
    for name in policy.tiers:
        for key in idle:
            if key in content["tiers"][name]:
                message = "has no effect: no backend has a queue. Write max_concurrency for one, or remove it"
                yield Diagnostic(("tiers", name, key), message)
