"""What is wrong between guards, caches, the sidecar and the rest of a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from gateway.pii.entities import unknown_entities
from gateway.policy.problems import Diagnostic, suggestion
from gateway.policy.schema import PiiGuard, Sidecar, TopicsGuard
from gateway.regex.backtracking import unbounded

_LOCAL_BY_DEFAULT = ("engine", "fake", "sidecar")
_REFUSED = "would be refused; mark one with 'local: true'"


def guard_diagnostics(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Reads the plain content, sound or not."""
    guards = {name: _with_kind(name, guard) for name, guard in _mappings(content, "guards")}
    yield from _judges(content, guards)
    yield from _entities(content, guards)
    yield from _slow_patterns(guards)
    yield from _foreign_embedder(content, guards)
    yield from _nowhere_local(content, guards)
    yield from _no_embeddings(content)


def _judges(content: Mapping[str, Any], guards: Mapping[str, dict[str, Any]]) -> Iterator[Diagnostic]:
    models = dict(_mappings(content, "models"))
    for name, guard in guards.items():
        judge = guard.get("judge")
        if not isinstance(judge, str):
            continue
        path = ("guards", name, "judge")
        if judge not in models:
            yield Diagnostic(path, f"no model is named '{judge}'{suggestion(judge, tuple(models))}")
        elif models[judge].get("cascade"):
            yield Diagnostic(path, f"'{judge}' is a cascade; name a model with targets")


def _entities(content: Mapping[str, Any], guards: Mapping[str, dict[str, Any]]) -> Iterator[Diagnostic]:
    """Every entity can be found by somebody."""
    with suppress(ValidationError):
        sidecar = Sidecar.model_validate(content.get("sidecar") or {})
        for name, guard in guards.items():
            if guard.get("kind") == "pii":
                with suppress(ValidationError):
                    pii = PiiGuard.model_validate(guard)
                    for problem in unknown_entities(pii.entities, pii.checks, pii.languages, sidecar.spacy):
                        yield Diagnostic(("guards", name, "entities"), problem)


def _slow_patterns(guards: Mapping[str, dict[str, Any]]) -> Iterator[Diagnostic]:
    for name, guard in guards.items():
        if guard.get("kind") == "topics":
            with suppress(ValidationError):
                for index, pattern in enumerate(TopicsGuard.model_validate(guard).patterns):
                    if problem := unbounded(pattern):
                        yield Diagnostic(("guards", name, "patterns", index), problem)


def _foreign_embedder(
    content: Mapping[str, Any], guards: Mapping[str, dict[str, Any]]
) -> Iterator[Diagnostic]:
    sidecar = content.get("sidecar")
    embedder = sidecar.get("embedder", "builtin") if isinstance(sidecar, dict) else "builtin"
    if embedder == "builtin":
        return
    for name, guard in guards.items():
        uses_head = guard.get("kind") in ("injection", "toxicity") and "model" in _checks(guard)
        if uses_head and not guard.get("classifier"):
            message = (
                "was trained for 'sidecar.embedder: builtin'; name a 'classifier', or write 'checks: [fast]'"
            )
            yield Diagnostic(("guards", name), message)
    caches = content.get("caches")
    semantic = caches.get("semantic") if isinstance(caches, dict) else None
    if isinstance(semantic, dict) and semantic.get("mode", "on") != "off":
        message = "its verifier was trained for 'sidecar.embedder: builtin'; leave that key out, or write 'mode: off'"
        yield Diagnostic(("caches", "semantic"), message)


def _nowhere_local(content: Mapping[str, Any], guards: Mapping[str, dict[str, Any]]) -> Iterator[Diagnostic]:
    backends = [backend for _, backend in _mappings(content, "backends")]
    if any(backend.get("local", backend.get("kind") in _LOCAL_BY_DEFAULT) for backend in backends):
        return
    for name, guard in guards.items():
        if guard.get("action") == "local":
            yield Diagnostic(
                ("guards", name, "action"), f"no backend is local, so that every such request {_REFUSED}"
            )
    for name, tenant in _mappings(content, "tenants"):
        if tenant.get("local_only") is True:
            yield Diagnostic(
                ("tenants", name, "local_only"), f"no backend is local: all that it asks {_REFUSED}"
            )


def _no_embeddings(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """A cascade asks for answers, which an embedder does not give."""
    models = dict(_mappings(content, "models"))
    embedders = {name for name, backend in _mappings(content, "backends") if backend.get("kind") == "sidecar"}
    for name, model in models.items():
        steps = model.get("cascade")
        for index, step in enumerate(steps if isinstance(steps, list) else ()):
            word = step.get("model") if isinstance(step, dict) else None
            targets = models.get(str(word), {}).get("targets")
            of_step = targets if isinstance(targets, list) else ()
            if any(isinstance(target, dict) and target.get("backend") in embedders for target in of_step):
                yield Diagnostic(
                    ("models", name, "cascade", index, "model"),
                    f"'{word}' only makes embeddings; it cannot answer",
                )


def _with_kind(name: str, guard: dict[str, Any]) -> dict[str, Any]:
    return {"kind": name, **guard}


def _checks(guard: Mapping[str, Any]) -> list[Any]:
    checks = guard.get("checks", ["fast", "model"])
    return checks if isinstance(checks, list) else []


def _mappings(content: Mapping[str, Any], key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    section = content.get(key)
    for name, value in section.items() if isinstance(section, dict) else ():
        if isinstance(value, dict):
            yield name, value
