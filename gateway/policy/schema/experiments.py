"""``experiments``: what is compared, among whom, and by what."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field

from gateway.policy.schema.any_guard import Route
from gateway.policy.schema.values import Frozen, Name, Text, Weight

Metric = Literal["score", "errors", "refusals", "blocked", "cost", "ttft", "length"]
"""See ``gateway.experiments.metrics``."""
PromptPlace = Literal["before", "instead"]
"""Where an arm's prompt goes: before the system prompt that the caller wrote, or in its place."""


class Where(Frozen):
    """Which requests an experiment is about."""

    models: tuple[Name, ...] = ()
    """Those that are asked for, by their names in ``models``; empty: all."""
    tenants: Annotated[tuple[Text, ...], Field(min_length=1)] = ("*",)
    """Glob patterns."""
    routes: Annotated[tuple[Route, ...], Field(min_length=1)] | None = None
    """None: all that generate text."""

    def has(self, tenant: str, route: str) -> bool:
        """Whether it is about what ``tenant`` asks at ``route``, of one of its models."""
        return any(fnmatchcase(tenant, pattern) for pattern in self.tenants) and (
            self.routes is None or any(f"{route}/".startswith(f"{one}/") for one in self.routes)
        )


class ExperimentArm(Frozen):
    """What is different for those who have it. One that says nothing is what everybody else has."""

    weight: Weight = 1.0
    """Its share of keys, among the arms' weights."""
    model: Name | None = None
    """That is asked in place of the one that is asked for."""
    prompt: Name | None = None
    """One of ``prompts``."""
    prompt_place: PromptPlace = "before"
    guards: tuple[Name, ...] = ()
    """Guards that look after nobody but those whose arm names them; all others look after them as ever."""
    without: tuple[Name, ...] = ()
    """Guards that do not look after them."""


class Experiment(Frozen):
    """Two or more arms, of which each key has one, always the same. The first is the control."""

    arms: Annotated[dict[Name, ExperimentArm], Field(min_length=2, max_length=10)]
    key: Literal["user", "conversation", "tenant"] = "user"
    share: Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Of keys that are part of it. Those that are not are for the experiments after it."""
    where: Where = Where()
    metrics: Annotated[tuple[Metric, ...], Field(min_length=1)] = ("errors",)
    """By which the arms are compared."""

    @property
    def weights(self) -> Mapping[str, float]:
        return {name: arm.weight for name, arm in self.arms.items()}

    @property
    def has_prompts(self) -> bool:
        return any(arm.prompt is not None for arm in self.arms.values())
