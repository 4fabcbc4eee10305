"""``/v1/models``: the models that the caller's key may use and that can be served, if not now, as they are drained."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.errors import UnknownModel
from gateway.policy.schema import Model
from gateway.runtime.runtime import Runtime
from gateway.web.context import RequestContext
from gateway.web.dialect import Spoken, dialect_of
from gateway.wire.openai.models import ListedModel, ModelCatalogue


class Models:
    """The two endpoints, in the dialect of the client."""

    def __init__(self, catalogues: Mapping[Spoken, ModelCatalogue]) -> None:
        self._catalogues = catalogues

    async def all(self, request: Request) -> Response:
        found = _visible(RequestContext.of(request.scope))
        return JSONResponse(self._catalogue(request).write_list(found, request.query_params))

    async def one(self, request: Request) -> Response:
        """Raises ``UnknownModel``. An id may hold slashes, percent-encoded or not."""
        wanted = request.path_params["model"]
        for model in _visible(RequestContext.of(request.scope)):
            if model.id == wanted:
                return JSONResponse(self._catalogue(request).write_one(model))
        raise UnknownModel.named(wanted)

    def _catalogue(self, request: Request) -> ModelCatalogue:
        return self._catalogues[dialect_of(request.scope)]


def _visible(context: RequestContext) -> list[ListedModel]:
    runtime, caller = context.runtime, context.caller()
    listed = [
        ListedModel(shown, runtime.created, owner, _state(runtime, model))
        for name, model in runtime.policy.models.items()
        if (owner := _owner(runtime, model))
        for shown in (name, *model.aliases)
        if caller.may_use(name) or caller.may_use(shown)
    ]
    if runtime.adapters is not None:
        listed += [
            ListedModel(
                # By its id where a model of the policy has its name, and so answers to that.
                one.model if runtime.policy.resolve(one.model) is None else f"{one.base}:{one.id}",
                one.created_at,
                one.tenant,
                parent=one.base,
            )
            for one in runtime.adapters.uploaded(caller)
        ]
        listed += [
            ListedModel(one.model, runtime.created, one.targets[0][0].backend, parent=one.base)
            for one in runtime.adapters.listed(caller)
        ]
    return listed


def _state(runtime: Runtime, model: Model) -> str | None:
    """The best of its targets': loaded, where one that is there needs no loading."""
    if not any(engine.models for engine in runtime.engines.values()):
        return None
    states = [
        engine.models.get(target.model) if (engine := runtime.engines.get(name)) is not None else None
        for target in model.targets
        for name in runtime.servers(target.backend) or [target.backend]
    ]
    known = [state for state in states if state is not None]
    return None if not known else "loaded" if "loaded" in known or None in states else known[0]


def _owner(runtime: Runtime, model: Model) -> str | None:
    """The first backend that can serve the model, in use or only drained; a cascade has the first of its steps'.

    One without its key is not set up, and what only such backends would serve is no model yet.
    """
    for target in model.targets:
        if runtime.servers(target.backend):
            return target.backend
    for target in model.targets:
        if target.backend in runtime.policy.drained or runtime.members.get(target.backend) == ():
            return target.backend
    owners = (_owner(runtime, runtime.policy.models[step.model]) for step in model.cascade)
    return next((owner for owner in owners if owner), None)
