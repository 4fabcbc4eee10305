"""``/admin/api/models``: what callers can ask for, and who answers it."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.admin.site import Site
from gateway.metering.price import price_of
from gateway.policy.schema import Model, Price, Target
from gateway.runtime.runtime import Runtime
from gateway.web.operation import Operation


class TargetPrice(Told):
    """US dollars for a million tokens."""

    input: float
    output: float
    cached_input: float | None = None


class TargetState(Told):
    backend: str
    model: str
    """As the backend names it."""
    weight: float
    price: TargetPrice | None = None
    region: str | None = None
    enabled: bool
    """Its backend is used: it is not drained, and its key is set."""
    drained: bool
    trouble: str | None = None
    """What is wrong with its backend, as this worker knows."""


class ModelState(Told):
    name: str
    aliases: tuple[str, ...]
    targets: list[TargetState]
    cascade: list[str]
    """The models that it asks one after the other, where it has no targets of its own."""
    fallbacks: tuple[str, ...]
    select: str
    shadow: str | None = None
    context: int | None = None
    max_output: int | None = None


class Models(Told):
    models: list[ModelState]


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> Models:
        runtime = request.context.runtime
        reasons = (await runtime.readiness.report()).reasons
        return Models(
            models=[_model(runtime, name, model, reasons) for name, model in runtime.policy.models.items()]
        )

    about = "The models that callers can ask for, and who answers them"
    return [(operation("GET", "/models", "listPublicModels", about, Models), show)]


def _model(runtime: Runtime, name: str, model: Model, reasons: Mapping[str, str | None]) -> ModelState:
    return ModelState(
        name=name,
        aliases=model.aliases,
        targets=[_target(runtime, target, reasons) for target in model.targets],
        cascade=[step.model for step in model.cascade],
        fallbacks=model.fallbacks,
        select=model.select,
        shadow=model.shadow.model if model.shadow is not None else None,
        context=model.context,
        max_output=model.max_output,
    )


def _target(runtime: Runtime, target: Target, reasons: Mapping[str, str | None]) -> TargetState:
    policy = runtime.policy
    price: Price | None = price_of(policy, target)
    return TargetState(
        backend=target.backend,
        model=target.model,
        weight=target.weight,
        price=TargetPrice(input=price.input, output=price.output, cached_input=price.cached_input)
        if price is not None
        else None,
        region=policy.backends[target.backend].region,
        enabled=target.backend in runtime.backends,
        drained=target.backend in policy.drained,
        trouble=reasons.get(target.backend) or None,
    )
