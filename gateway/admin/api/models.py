"""``/admin/api/models``: what callers can ask for, and who answers it."""

from __future__ import annotations

from collections.abc import Collection

from gateway.admin.api.backends import disabled
from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.admin.site import Site
from gateway.backends.readiness import ReadinessReport
from gateway.metering.price import price_of
from gateway.policy.schema import Model, Price, Target
from gateway.residency import stays_in
from gateway.runtime.runtime import Runtime
from gateway.types import Principal
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
    state: str | None = None
    """Of a model of an engine with several: ``loaded``, ``loading``, ``sleeping``, ``unloaded`` …"""
    enabled: bool
    """Its backend is used: it is not drained, and its key is set."""
    drained: bool
    disabled: str | None = None
    """Why its backend is not used, where that is not for being drained."""
    trouble: str | None = None
    """What is wrong with its backend, as this worker knows."""
    outside: bool
    """Its backend is in none of the regions in which the model's content stays: it is sent nothing."""


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
    residency: tuple[str, ...]
    """Regions in which the model's own entry says that its content stays."""
    stays_in: list[str] | None = None
    """Those that the policy's residency leaves of them; left out: anywhere. Tenants and keys may name fewer."""
    allowed: bool
    """Who asks may use it: the models of the key."""
    disabled: str | None = None
    """Why it cannot be asked: none of its backends, or of those of its fallbacks and steps, is in use."""


class Models(Told):
    models: list[ModelState]


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> Models:
        runtime = request.context.runtime
        report = await runtime.readiness.report()
        caller = request.context.caller()
        return Models(
            models=[
                _model(runtime, name, model, report, caller) for name, model in runtime.policy.models.items()
            ]
        )

    about = "The models that callers can ask for, and who answers them"
    return [(operation("GET", "/models", "listPublicModels", about, Models), show)]


def _model(
    runtime: Runtime, name: str, model: Model, report: ReadinessReport, caller: Principal
) -> ModelState:
    within = stays_in(runtime.policy.residency, model.residency)
    return ModelState(
        name=name,
        aliases=model.aliases,
        targets=[_target(runtime, target, report, within) for target in model.targets],
        cascade=[step.model for step in model.cascade],
        fallbacks=model.fallbacks,
        select=model.select,
        shadow=model.shadow.model if model.shadow is not None else None,
        context=model.context,
        max_output=model.max_output,
        residency=model.residency,
        stays_in=within,
        allowed=any(caller.may_use(one) for one in (name, *model.aliases)),
        disabled=report.models.get(name) if runtime.readiness.out_of_use(name) else None,
    )


def _target(
    runtime: Runtime, target: Target, report: ReadinessReport, within: Collection[str] | None
) -> TargetState:
    policy = runtime.policy
    region = policy.backends[target.backend].region
    price: Price | None = price_of(policy, target)
    servers = runtime.servers(target.backend)
    return TargetState(
        backend=target.backend,
        model=target.model,
        weight=target.weight,
        price=TargetPrice(input=price.input, output=price.output, cached_input=price.cached_input)
        if price is not None
        else None,
        region=region,
        state=engine.models.get(target.model)
        if (engine := next((runtime.engines[one] for one in servers if one in runtime.engines), None))
        is not None
        else None,
        enabled=bool(servers),
        drained=target.backend in policy.drained,
        disabled=disabled(report, target.backend),
        trouble=report.reasons.get(target.backend) or None,
        outside=within is not None and region not in within,
    )
