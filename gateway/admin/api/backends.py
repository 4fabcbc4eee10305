"""``/admin/api/backends``: their state; and draining them, by which they get no more requests."""

from __future__ import annotations

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.admin.site import Site
from gateway.backends.readiness import ReadinessReport
from gateway.errors import NotFound
from gateway.policy.loader import DRAINED
from gateway.web.operation import Operation


class BackendState(Told):
    name: str
    kind: str
    models: list[str]
    """The public models that have it as a target."""
    drained: bool
    enabled: bool
    """It is used: not drained, and its key is set."""
    disabled: str | None = None
    """Why it is not used, where that is not for being drained."""
    local: bool
    region: str | None = None
    max_concurrency: int | None = None
    trouble: str | None = None
    """What is wrong with it, as this worker knows."""


class Backends(Told):
    backends: list[BackendState]


class Drained(Told):
    backend: str
    drained: bool
    changed: bool
    in_force: bool


def disabled(report: ReadinessReport, name: str) -> str | None:
    reason = report.disabled.get(name)
    return None if reason == DRAINED else reason


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> Backends:
        runtime = request.context.runtime
        policy = runtime.policy
        report = await runtime.readiness.report()
        return Backends(
            backends=[
                BackendState(
                    name=name,
                    kind=config.kind,
                    models=[
                        model
                        for model, one in policy.models.items()
                        if any(target.backend == name for target in one.places)
                    ],
                    drained=name in policy.drained,
                    enabled=name in runtime.backends,
                    disabled=disabled(report, name),
                    local=config.local,
                    region=config.region,
                    max_concurrency=config.max_concurrency,
                    trouble=report.reasons.get(name) or None,
                )
                for name, config in policy.backends.items()
            ]
        )

    async def drain(request: Request) -> Drained:
        return await change(request, "drain")

    async def undrain(request: Request) -> Drained:
        return await change(request, "undrain")

    async def change(request: Request, what: str) -> Drained:
        name = str(request.path["name"])
        if name not in request.context.runtime.policy.backends:
            raise NotFound(f"No backend is named '{name}'.")
        result = await site.change(request.context, request.scope, do=what, backend=name)
        return Drained(
            backend=name,
            drained=what == "drain",
            changed=result["changed"],
            in_force=result.get("confirmed", False),
        )

    about = "Send a backend no more requests; those in flight end as ever"
    return [
        (operation("GET", "/backends", "listBackends", "The backends and their state", Backends), show),
        (
            operation(
                *("POST", "/backends/{name:path}/drain", "drainBackend", about, Drained), errors=(404, 409)
            ),
            drain,
        ),
        (
            operation(
                *("POST", "/backends/{name:path}/undrain", "undrainBackend", "Use a backend again", Drained),
                errors=(404, 409),
            ),
            undrain,
        ),
    ]
