"""Which public models can be served, by the readiness of their backends."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.policy.schema import Policy, Provider

_NOT_MODELS = frozenset({"fake", "sidecar"})
"""A script proves nothing, and an embedder answers no question."""


class ModelReadiness:
    """One policy's. ``enabled`` names the backends that can be used at all."""

    def __init__(self, policy: Policy, enabled: Collection[str]) -> None:
        self._kinds = {name: policy.backends[name].kind for name in enabled}
        # Others' servers. All replicas share them: what they do takes none of these out of service.
        self._providers = {name for name in enabled if isinstance(policy.backends[name], Provider)}
        self._backends = {
            model: tuple(
                dict.fromkeys(backend for backend in _backends(policy, model) if backend in self._kinds)
            )
            for model in policy.models
        }

    def models(self, reasons: Mapping[str, str | None]) -> dict[str, str | None]:
        """For each public model why it cannot be served, or None. ``reasons``: the same of backends."""
        return {model: self._why_not(backends, reasons) for model, backends in self._backends.items()}

    def missing(self, reasons: Mapping[str, str | None]) -> tuple[str, ...]:
        """The engines that are waited for, where no model that answers questions can be served without one of them."""
        backends = {backend for found in self._backends.values() for backend in found}
        answering = sorted(backend for backend in backends if self._kinds[backend] not in _NOT_MODELS)
        if any(one in self._providers or reasons.get(one) is None for one in answering):
            return ()
        return tuple(answering)

    def _why_not(self, backends: tuple[str, ...], reasons: Mapping[str, str | None]) -> str | None:
        if not backends:
            return "none of its backends is enabled"
        known = [(backend, reasons.get(backend)) for backend in backends]
        if any(reason is None for _, reason in known):
            return None
        return "; ".join(f"{backend}: {reason}" for backend, reason in known)


def _backends(policy: Policy, name: str) -> list[str]:
    """The backends that may answer for a model: its targets', its steps' and its fallbacks'."""
    waiting, found = [name], []
    for one in waiting:  # grows while it is read
        known = policy.resolve(one)
        if known is None:
            continue
        model = policy.models[known]
        found += [target.backend for target in model.targets]
        next_ones = (*model.fallbacks, *(step.model for step in model.cascade))
        waiting += [other for other in dict.fromkeys(next_ones) if other not in waiting]
    return found
