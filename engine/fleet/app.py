"""The paths of several models behind one port."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import InvalidRequest, ModelNotFound, Unavailable
from engine.fleet.exchange import MemberGone, ask_json
from engine.fleet.figures import Figures
from engine.fleet.keeper import Keeper
from engine.fleet.metrics import FleetMetrics
from engine.fleet.model import Model, State
from engine.fleet.relay import Relay, read_asked
from engine.server.failures import HANDLERS, json_response

_TO_MODELS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank"),
    *("/v1/score", "/score", "/tokenize", "/detokenize"),
)


def create_app(keeper: Keeper, *, any_model_name: bool, max_body_bytes: int) -> Starlette:
    """``any_model_name``: where there is one model, whatever a request calls it."""
    created = int(time.time())
    adapters = _adapters(keeper.models)
    figures, metrics = Figures(keeper), FleetMetrics(keeper)

    def find(name: str | None) -> Model:
        known = keeper.models
        if len(known) == 1 and (any_model_name or name is None):
            return next(iter(known.values()))
        if name is None:
            raise InvalidRequest("'model' is missing: name one of " + ", ".join(known) + ".", param="model")
        if (base := adapters.get(name)) is not None:
            return base
        if name not in known:
            # By path or hub id, as its entry has it.
            for model in known.values():
                if model.entry.model == name:
                    return model
        return keeper.find(name)

    def entry(model: Model) -> dict[str, Any]:
        return {
            "id": model.name,
            "object": "model",
            "created": created,
            "owned_by": "tollgate",
            **({} if model.max_model_len is None else {"max_model_len": model.max_model_len}),
            "status": figures.status(model),
        }

    async def models(request: Request) -> Response:
        return json_response({"object": "list", "data": [entry(model) for model in keeper.models.values()]})

    async def one(request: Request) -> Response:
        return json_response(entry(find(request.path_params["model"])))

    async def state(request: Request) -> Response:
        return json_response(await figures.state())

    async def health(request: Request) -> Response:
        if not keeper.alive:
            raise Unavailable("The engine no longer decides which models are loaded: start it anew.")
        return json_response(
            {"status": "ok", "models": {one.name: one.state.value for one in keeper.models.values()}}
        )

    async def render_metrics(request: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        if (name := request.query_params.get("model")) is None:
            return Response(metrics.render(), media_type=kind)
        model = keeper.find(name)
        if model.member is None or model.state is not State.LOADED:
            return Response(b"", media_type=kind)
        try:
            _, body = await ask_json(model.member.socket, b"GET /metrics")
        except MemberGone:
            body = b""
        return Response(body, media_type=kind)

    def order(work: Callable[[Model], Awaitable[None]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            name = read_asked(await request.body()).model
            if name is None:
                raise InvalidRequest("'model' is missing.", param="model")
            model = keeper.find(name)
            await work(model)
            return json_response({"success": True, **entry(model)})

        return endpoint

    async def not_here(request: Request) -> Response:
        raise ModelNotFound(
            "An engine of several models loads adapters at its start only: '--adapter' in the 'args' of a model."
        )

    app = Starlette(
        routes=[
            *(
                Route(path, Relay(path, keeper, find, max_body_bytes), methods=["POST"])
                for path in _TO_MODELS
            ),
            Route("/v1/load_lora_adapter", not_here, methods=["POST"]),
            Route("/v1/unload_lora_adapter", not_here, methods=["POST"]),
            Route("/v1/adapters", not_here),
            Route("/v1/adapters/{name:path}", not_here, methods=["PUT", "DELETE"]),
            Route("/models/load", order(keeper.load), methods=["POST"]),
            Route("/models/unload", order(keeper.unload), methods=["POST"]),
            Route("/models/sleep", order(keeper.sleep), methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", one),
            Route("/v1/engine/state", state),
            Route("/health", health),
            Route("/metrics", render_metrics),
        ],
        exception_handlers=HANDLERS,
    )
    app.router.redirect_slashes = False
    return app


def _adapters(models: Mapping[str, Model]) -> dict[str, Model]:
    """By the names that models' ``args`` give to LoRA adapters."""
    found: dict[str, Model] = {}
    for model in models.values():
        args = iter(model.entry.args)
        for arg in args:
            flag, has_value, value = arg.partition("=")
            if flag == "--adapter":
                found[(value if has_value else next(args, "")).partition("=")[0]] = model
    return found
