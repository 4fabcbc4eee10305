"""Whether a policy needs the sidecar, and for what."""

from __future__ import annotations

from pathlib import Path

from gateway.pii.entities import asked_of_sidecar, is_tagged
from gateway.policy.schema import Policy, SemanticCache, SidecarBackend, SidecarSettings
from gateway.policy.schema.any_guard import AnyGuard
from gateway.policy.schema.guards import InjectionGuard, PiiGuard, ToxicityGuard
from gateway.sidecar.config import SidecarConfig


def needs_sidecar(policy: Policy) -> bool:
    """A cascade by complexity alone does not: its classifier runs in the gateway."""
    return needs_embedder(policy) or _needs_entities(policy) or bool(_classifiers(policy))


def sidecar_config(policy: Policy, socket: Path) -> SidecarConfig:
    """The configuration that ``policy`` needs."""
    given = policy.sidecar
    semantic = _semantic(policy)
    kept = semantic or SemanticCache()
    return SidecarConfig(
        socket=str(socket),
        embedder=given.embedder if needs_embedder(policy) else None,
        entities=_needs_entities(policy),
        index=semantic is not None,
        classifiers=_classifiers(policy),
        spacy=given.spacy,
        threads=given.threads,
        max_queue=given.max_queue,
        max_batch=given.max_batch,
        redis=policy.where_caches_are if semantic and policy.where_caches_are != "memory" else None,
        index_bytes=kept.max_bytes,
        index_entries=kept.max_entries,
    )


def models_of(guard: AnyGuard, sidecar: SidecarSettings) -> tuple[str, ...]:
    """The models that ``guard`` needs, by their names in the sidecar's ``status``."""
    if isinstance(guard, PiiGuard):
        # The tagger works on the embedder, Presidio finds all else.
        tagged = {
            is_tagged(entity, language, sidecar.spacy)
            for entity in asked_of_sidecar(guard.entities, guard.checks)
            for language in guard.languages
        }
        return tuple(name for name, is_one in (("embedder", True), ("entities", False)) if is_one in tagged)
    if isinstance(guard, InjectionGuard | ToxicityGuard) and "model" in guard.checks:
        return (guard.classifier.model,) if guard.classifier else ("embedder",)
    return ()


def has_heads(policy: Policy) -> bool:
    """Whether the sidecar that ``policy`` starts has the shipped heads."""
    return policy.sidecar.embedder == "builtin" and needs_embedder(policy)


def needs_embedder(policy: Policy) -> bool:
    """Whether texts are embedded, for a guard, a cache or a backend."""
    return (
        _semantic(policy) is not None
        or any(isinstance(backend, SidecarBackend) for backend in policy.backends.values())
        or any("embedder" in models_of(guard, policy.sidecar) for guard in policy.guards.values())
    )


def _needs_entities(policy: Policy) -> bool:
    return any("entities" in models_of(guard, policy.sidecar) for guard in policy.guards.values())


def _classifiers(policy: Policy) -> tuple[str, ...]:
    guards = policy.guards.values()
    named = {
        guard.classifier.model
        for guard in guards
        if isinstance(guard, InjectionGuard | ToxicityGuard) and "model" in guard.checks and guard.classifier
    }
    return tuple(sorted(named))


def _semantic(policy: Policy) -> SemanticCache | None:
    semantic = policy.caches.semantic
    return semantic if semantic is not None and semantic.mode != "off" else None
