"""The models that may answer for one: those with a larger context, its fallbacks, and theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.policy.schema import Policy


class Substitutes:
    """One policy's."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.contexts = sorted({model.context for model in policy.models.values() if model.context})
        """The lengths that there are. A request exceeds the first so many of them."""

    def in_order(self, name: str, exceeded: int, by_prompt: int) -> list[str | None]:
        """The model used for ``name``, and its fallbacks, theirs after them, each of them once.

        The first is None where no model is large enough.
        """
        leaf = self.leaf(name)
        waiting = [leaf] if leaf is not None else []
        asked: list[str | None] = []
        for model in waiting:  # grows while it is read
            chain = list(self.larger(model))
            fit = self._fit(chain, exceeded, by_prompt)
            if not asked or (fit is not None and fit not in asked):
                asked.append(fit)
            passed = chain if fit is None else chain[: chain.index(fit) + 1]
            for one in passed:
                named = dict.fromkeys(self._policy.models[one].fallbacks)
                waiting += [fallback for fallback in named if fallback not in waiting]
        return asked or [None]

    def all_of(self, name: str) -> list[str]:
        """The models that may serve ``name``: itself, those with a larger context, fallbacks, and theirs."""
        leaf = self.leaf(name)
        found = [leaf] if leaf is not None else []
        for one in found:  # grows while it is read
            others = dict.fromkeys((*self.larger(one), *self._policy.models[one].fallbacks))
            found += [other for other in others if other not in found]
        return found

    def larger(self, model: str) -> Iterator[str]:
        """``model``, its ``larger_context``, the latter's own …, with or without targets."""
        seen: set[str] = set()
        larger: str | None = model
        while larger is not None and larger not in seen:
            seen.add(larger)
            yield larger
            larger = self._policy.models[larger].larger_context

    def leaf(self, name: str) -> str | None:
        """The model that has the targets: a cascade's last step, or ``name`` itself.

        Only whoever asks past the stage that asks a cascade's steps, as to count tokens, names one here.
        """
        known = self._policy.resolve(name)
        steps = self._policy.models[known].cascade if known is not None else ()
        return steps[-1].model if steps else known

    def fits(self, model: str, exceeded: int) -> bool:
        context = self._policy.models[model].context
        return context is None or context not in self.contexts[:exceeded]

    def _fit(self, chain: Sequence[str], exceeded: int, by_prompt: int) -> str | None:
        """The first with enough context for prompt and answer, or else the one that leaves most for the answer.

        None of the latter for a model that refuses rather than have answers clipped.
        """
        for model in chain:
            if self.fits(model, exceeded):
                return model
        if self._policy.models[chain[0]].over_context != "clip":
            return None
        clips = [
            model
            for model in chain
            if self._policy.models[model].over_context == "clip" and self.fits(model, by_prompt)
        ]
        return max(clips, key=lambda model: self._policy.models[model].context or 0, default=None)
