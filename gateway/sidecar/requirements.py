"""Whether a policy needs the sidecar, for what, and whether it is ready for that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from gateway.pii.entities import asked_of_sidecar, is_tagged
from gateway.policy.schema import EngineBackend, Policy, SemanticCache, SidecarBackend, SidecarSettings
from gateway.policy.schema.any_guard import AnyGuard
from gateway.policy.schema.guards import InjectionGuard, PiiGuard, ToxicityGuard
from gateway.sidecar.api import Sidecar, SidecarError
from gateway.sidecar.config import SidecarConfig

_PATIENCE = 2.0
"""Seconds; the status waits for no model."""


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
        embedder=_embedder(policy),
        engine=_engine(policy),
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


def _embedder(policy: Policy) -> str | None:
    return policy.sidecar.embedder.model if needs_embedder(policy) else None


def _engine(policy: Policy) -> str:
    backend = policy.backends.get(policy.sidecar.embedder.backend or "")
    return backend.base_url if isinstance(backend, EngineBackend) and needs_embedder(policy) else ""


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
    return policy.sidecar.embedder.is_builtin and needs_embedder(policy)


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


def unready(policy: Policy, sidecar: Sidecar) -> Callable[[], Awaitable[Mapping[str, str]]] | None:
    """Returns a check of which guards cannot scan now, and why; None if no guard refuses what it cannot scan.

    Guards of all tenants count: a worker that answers some of them with 503 is not ready.
    """
    needed = {
        name: models
        for name, guard in policy.guards.items()
        if guard.refuses_unjudged
        if (models := models_of(guard, policy.sidecar))
    }
    if not needed:
        return None

    async def verdicts() -> Mapping[str, str]:
        try:
            async with asyncio.timeout(_PATIENCE):
                states = (await sidecar.status())["models"]
        except SidecarError:
            return dict.fromkeys(needed, "the sidecar is starting or restarting")
        except TimeoutError:
            return dict.fromkeys(needed, f"the sidecar does not answer within {_PATIENCE:g} s")
        missing: dict[str, str] = {}
        for name, models in needed.items():
            for model in models:
                state = states.get(model, "loading")  # not needed by the policy before
                if state != "ready" and name not in missing:
                    missing[name] = (
                        f"'{model}' is still being loaded" if state == "loading" else f"'{model}' {state}"
                    )
        return missing

    return verdicts
