"""Which public models can be served, by the readiness of their backends."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.policy.members import Members
from gateway.policy.schema import Policy, Provider

_NOT_MODELS = frozenset({"fake", "sidecar"})
"""A script proves nothing, and an embedder answers no question."""


class ModelReadiness:
    """One policy's. ``disabled`` are the backends that are not in use, and why."""

    def __init__(self, policy: Policy, disabled: Mapping[str, str], members: Members | None = None) -> None:
        """``members``: the replicas that may be asked in the place of their backends."""
        self.disabled = disabled
        replicas = {name: [one.name for one in its] for name, its in (members or {}).items() if its}
        backends = {
            model: tuple(
                dict.fromkeys(one for name in _backends(policy, model) for one in replicas.get(name, [name]))
            )
            for model in policy.models
        }
        self._backends = backends
        used = sorted({backend for found in backends.values() for backend in found})
        answering = [name for name in used if policy.backends[name].kind not in _NOT_MODELS]
        self._answering = [name for name in answering if name not in disabled]
        # Others' servers. All replicas share them: what they do takes none of these out of service.
        self._providers = {name for name in self._answering if isinstance(policy.backends[name], Provider)}
        self._drained = () if self._answering else tuple(one for one in answering if one in policy.drained)
        """All that answered questions, until the operator took it out of use."""

    def models(self, reasons: Mapping[str, str | None]) -> dict[str, str | None]:
        """For each public model why it cannot be served, or None. ``reasons``: the same of backends."""
        every = {**reasons, **self.disabled}
        return {model: self._why_not(backends, every) for model, backends in self._backends.items()}

    def out_of_use(self, model: str) -> bool:
        """Whether all that might answer for this public model are disabled: false for one that is not known."""
        backends = self._backends.get(model, ())
        return bool(backends) and all(one in self.disabled for one in backends)

    def missing(self, reasons: Mapping[str, str | None]) -> tuple[str, ...]:
        """The engines that are waited for, where no model that answers questions can be served without one of them;
        and what is drained, where nothing else answers questions."""
        if any(one in self._providers or reasons.get(one) is None for one in self._answering):
            return ()
        return (*self._answering, *self._drained)

    def _why_not(self, backends: tuple[str, ...], reasons: Mapping[str, str | None]) -> str | None:
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
