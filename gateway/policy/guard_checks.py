"""What is wrong between guards, caches, the sidecar and the rest of a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from gateway.pii.entities import known_entities, unknown_entities
from gateway.policy.content import list_at, mapping_at, mappings_at
from gateway.policy.problems import Diagnostic
from gateway.policy.schema import PiiGuard, SidecarSettings, TopicsGuard
from gateway.regex.backtracking import unbounded
from gateway.regex.linear import are_linear

_LOCAL_BY_DEFAULT = ("engine", "fake", "sidecar")
_UNPROVEN = (
    "may take too long on some texts; bound its repetitions, as in '\\s{1,4}' for '\\s+' and '\\d{1,9}' for '\\d*' "
    "(see 'Long texts' in docs/guards.md), or write it as a pattern of a 'topics' guard"
)
_REFUSED = "would be refused; mark one with 'local: true'"


def guard_diagnostics(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Reads the plain content, valid or not."""
    guards = {name: {"kind": name, **guard} for name, guard in mappings_at(content, "guards").items()}
    yield from _entities(content, guards)
    yield from _slow_patterns(guards)
    yield from _unproven_patterns(guards)
    yield from _foreign_embedder(content, guards)
    yield from _nowhere_local(content, guards)
    yield from _no_embeddings(content)


def _entities(content: Mapping[str, Any], guards: Mapping[str, dict[str, Any]]) -> Iterator[Diagnostic]:
    """Every entity has a recognizer."""
    with suppress(ValidationError):
        sidecar = SidecarSettings.model_validate(content.get("sidecar") or {})
        for name, guard in guards.items():
            if guard.get("kind") == "pii":
                with suppress(ValidationError):
                    pii = PiiGuard.model_validate(guard)
                    for problem in unknown_entities(
                        pii.entities,
                        pii.checks,
                        pii.languages,
                        sidecar.spacy,
                        tagger=sidecar.embedder == "builtin",
                    ):
                        yield Diagnostic(("guards", name, "entities"), problem)
                    for label in set(pii.patterns) & known_entities():
                        message = f"'{label}' is an entity that 'entities' may name; choose another label"
                        yield Diagnostic(("guards", name, "patterns", label), message)


def _slow_patterns(guards: Mapping[str, dict[str, Any]]) -> Iterator[Diagnostic]:
    """Patterns whose matching time is not linear."""
    for name, guard in guards.items():
        if guard.get("kind") == "topics":
            with suppress(ValidationError):
                for index, pattern in enumerate(TopicsGuard.model_validate(guard).patterns):
                    if problem := unbounded(pattern):
                        yield Diagnostic(("guards", name, "patterns", index), problem)


def _unproven_patterns(guards: Mapping[str, dict[str, Any]]) -> Iterator[Diagnostic]:
    """Patterns of ``pii`` guards run on the event loop, whatever the text: they must be proven fast."""
    for name, guard in guards.items():
        if guard.get("kind") == "pii":
            with suppress(ValidationError):
                patterns = PiiGuard.model_validate(guard).patterns
                slow = [label for label, pattern in patterns.items() if not are_linear([pattern])]
                if not slow and not are_linear(patterns.values()):
                    slow = [*patterns][-1:]  # together they are too many
                for label in slow:
                    yield Diagnostic(("guards", name, "patterns", label), _UNPROVEN)


def _foreign_embedder(
    content: Mapping[str, Any], guards: Mapping[str, dict[str, Any]]
) -> Iterator[Diagnostic]:
    if mapping_at(content, "sidecar").get("embedder", "builtin") == "builtin":
        return
    for name, guard in guards.items():
        uses_head = guard.get("kind") in ("injection", "toxicity") and "model" in _checks(guard)
        if uses_head and not guard.get("classifier"):
            message = (
                "was trained for 'sidecar.embedder: builtin'; name a 'classifier', or write 'checks: [fast]'"
            )
            yield Diagnostic(("guards", name), message)
    semantic = mapping_at(content, "caches").get("semantic")
    if isinstance(semantic, dict) and semantic.get("mode", "on") != "off":
        message = "its verifier was trained for 'sidecar.embedder: builtin'; leave that key out, or write 'mode: off'"
        yield Diagnostic(("caches", "semantic"), message)


def _nowhere_local(content: Mapping[str, Any], guards: Mapping[str, dict[str, Any]]) -> Iterator[Diagnostic]:
    backends = list(mappings_at(content, "backends").values())
    if any(backend.get("local", backend.get("kind") in _LOCAL_BY_DEFAULT) for backend in backends):
        return
    for name, guard in guards.items():
        if guard.get("action") == "local":
            yield Diagnostic(
                ("guards", name, "action"), f"no backend is local, so that every such request {_REFUSED}"
            )
    for name, tenant in mappings_at(content, "tenants").items():
        if tenant.get("local_only") is True:
            yield Diagnostic(
                ("tenants", name, "local_only"), f"no backend is local: all its requests {_REFUSED}"
            )


def _no_embeddings(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """A cascade's step must answer, which an embedder cannot."""
    models = mappings_at(content, "models")
    embedders = {
        name for name, backend in mappings_at(content, "backends").items() if backend.get("kind") == "sidecar"
    }
    for name, model in models.items():
        for index, step in enumerate(list_at(model, "cascade")):
            word = step.get("model") if isinstance(step, dict) else None
            targets = list_at(models.get(str(word)), "targets")
            if any(isinstance(target, dict) and target.get("backend") in embedders for target in targets):
                yield Diagnostic(
                    ("models", name, "cascade", index, "model"),
                    f"'{word}' only makes embeddings; it cannot answer",
                )


def _checks(guard: Mapping[str, Any]) -> list[Any]:
    checks = guard.get("checks", ["fast", "model"])
    return checks if isinstance(checks, list) else []
