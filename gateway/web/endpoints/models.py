"""``/v1/models``: the models that the caller's key may use and that can be served."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.errors import UnknownModel
from gateway.policy.schema import Model
from gateway.runtime import Runtime
from gateway.web.context import Context


async def list_models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": _visible(Context.of(request.scope))})


async def one_model(request: Request) -> Response:
    """Raises ``UnknownModel``."""
    wanted = request.path_params["model"]
    for model in _visible(Context.of(request.scope)):
        if model["id"] == wanted:
            return JSONResponse(model)
    raise UnknownModel(f"The model '{wanted}' does not exist or your key may not use it.", param="model")


def _visible(context: Context) -> list[dict[str, Any]]:
    runtime, caller = context.runtime, context.caller()
    return [
        {"id": shown, "object": "model", "created": runtime.created, "owned_by": owner}
        for name, model in runtime.policy.models.items()
        if (owner := _owner(runtime, model))
        for shown in (name, *model.aliases)
        if caller.may_use(name) or caller.may_use(shown)
    ]


def _owner(runtime: Runtime, model: Model) -> str | None:
    """The first enabled backend that can serve the model; a cascade has the first of its steps'."""
    for target in model.targets:
        if target.backend in runtime.backends:
            return target.backend
    owners = (_owner(runtime, runtime.policy.models[step.model]) for step in model.cascade)
    return next((owner for owner in owners if owner), None)
