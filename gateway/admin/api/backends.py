"""``/admin/api/backends``: their state; and draining them, by which they get no more requests."""

from __future__ import annotations

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.admin.site import Site
from gateway.backends.readiness import ReadinessReport
from gateway.errors import NotFound
from gateway.policy.loader import DRAINED
from gateway.policy.members import is_replica, parent_of
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
    replica_of: str | None = None
    """The backend that it is one server of."""
    share: float | None = None
    """Of a replica, how much of its share it gets now: less than 1 while it comes into service, 0 while it is ejected,
    as this worker sees it."""
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
        policy, rotation = runtime.policy, runtime.rotation
        report = await runtime.readiness.report()
        parents = {member.name: name for name, its in runtime.members.items() for member in its}
        away = {name: parent for name in policy.drained if (parent := parent_of(name, policy)) is not None}
        configs = {**policy.backends, **{name: policy.backends[parent] for name, parent in away.items()}}
        parents |= away
        return Backends(
            backends=[
                BackendState(
                    name=name,
                    kind=config.kind,
                    models=[
                        model
                        for model, one in policy.models.items()
                        if any(target.backend == parents.get(name, name) for target in one.places)
                    ],
                    drained=name in policy.drained,
                    enabled=bool(runtime.servers(name)),
                    disabled=disabled(report, name),
                    local=config.local,
                    region=config.region,
                    max_concurrency=config.max_concurrency,
                    replica_of=parents.get(name),
                    share=None if name not in parents or rotation is None else round(rotation.share(name), 3),
                    trouble=report.reasons.get(name) or None,
                )
                for name, config in configs.items()
            ]
        )

    async def drain(request: Request) -> Drained:
        return await change(request, "drain")

    async def undrain(request: Request) -> Drained:
        return await change(request, "undrain")

    async def change(request: Request, what: str) -> Drained:
        name = str(request.path["name"])
        policy = request.context.runtime.policy
        if name not in policy.backends and not is_replica(name, policy):
            raise NotFound(f"No backend is named '{name}'.")
        result = await site.change(request.context, request.scope, do=what, backend=name)
        if "for_all" in result:
            obeying = await site.peers.ask({"do": "drains"})
            result["confirmed"] = all((name in one["drained"]) == (what == "drain") for one in obeying)
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
