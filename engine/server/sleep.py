"""``/sleep``, ``/wake_up`` and ``/is_sleeping``, as vLLM has them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.client import EngineClient
from engine.errors import InvalidRequest
from engine.server.failures import json_response


def sleep_routes(client: EngineClient) -> list[Route]:
    async def sleep(request: Request) -> Response:
        level = request.query_params.get("level", "1")
        if level not in ("1", "2"):
            raise InvalidRequest(
                "'level' must be 1 (weights go back to the page cache) or 2 (they are dropped).",
                param="level",
            )
        await client.sleep(int(level))
        return json_response({"is_sleeping": True, "level": int(level)})

    async def wake_up(request: Request) -> Response:
        await client.wake()
        return json_response({"is_sleeping": False})

    async def is_sleeping(request: Request) -> Response:
        return json_response({"is_sleeping": bool(client.asleep)})

    return [
        Route("/sleep", sleep, methods=["POST"]),
        Route("/wake_up", wake_up, methods=["POST"]),
        Route("/is_sleeping", is_sleeping),
    ]
