"""The paths that load, upload, list and unload adapters: vLLM's two
(https://docs.vllm.ai/en/latest/features/lora.html), and ``/v1/adapters``. All take the token of ``AdapterAccess``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import Forbidden
from engine.server.adapter_access import AdapterAccess
from engine.server.adapter_upload import AdapterUploads
from engine.server.adapters import Adapters, Served
from engine.server.body import StrictBody, read
from engine.server.disconnect import ClientDisconnected, read_body
from engine.server.failures import json_response

_MAX_BODY = 2**16
"""Bytes of an order, which is a name and a path."""

Endpoint = Callable[[Request], Awaitable[Response]]


class UnloadBody(StrictBody):
    lora_name: Annotated[str, Field(min_length=1)]


class LoadBody(UnloadBody):
    lora_path: Annotated[str, Field(min_length=1)]


class AdapterRoutes:
    def __init__(self, adapters: Adapters, access: AdapterAccess, uploads: AdapterUploads | None) -> None:
        """``uploads`` ``None``: there is no place for them."""
        self._adapters = adapters
        self._access = access
        self._uploads = uploads
        if uploads is not None:
            uploads.in_use = adapters.uses
        self._dropping: set[asyncio.Task[None]] = set()

    @property
    def routes(self) -> list[Route]:
        one = "/v1/adapters/{name:path}"
        return [
            Route("/v1/load_lora_adapter", self._guarded(self._load), methods=["POST"]),
            Route("/v1/unload_lora_adapter", self._guarded(self._unload), methods=["POST"]),
            Route("/v1/adapters", self._guarded(self._list)),
            Route(one, self._guarded(self._put), methods=["PUT"]),
            Route(one, self._guarded(self._delete), methods=["DELETE"]),
        ]

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            # Before anything of the body is read.
            self._access.check(dict(request.scope["headers"]))
            try:
                return await endpoint(request)
            except ClientDisconnected:
                return Response(status_code=400)

        return guarded

    async def _load(self, request: Request) -> Response:
        body = read(LoadBody, await _body(request))
        self._adapters.check_name(body.lora_name, param="lora_name")
        folder = await asyncio.to_thread(self._access.find, body.lora_path)
        await self._adapters.load(body.lora_name, folder)
        return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def _unload(self, request: Request) -> Response:
        name = read(UnloadBody, await _body(request)).lora_name
        await self._remove(name)
        return Response(f"Success: LoRA adapter '{name}' removed successfully.")

    async def _list(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [*map(entry, self._adapters.list())]})

    async def _put(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._adapters.check_name(name)
        if self._uploads is None:
            raise Forbidden(
                "This engine has no place for uploaded adapters: start it with --adapter-folder FOLDER."
            )
        folder, digest = await self._uploads.receive(request.receive, dict(request.scope["headers"]))
        try:
            served, before = await self._adapters.put(name, folder, digest)
        finally:
            # It may have been refused, or be the same as one that is there.
            await self._uploads.clean(folder, received=True)
        if before is not None and before is not served:
            self._drop(before)
        return json_response(entry(served), 200 if before else 201)

    async def _delete(self, request: Request) -> Response:
        served = await self._remove(request.path_params["name"])
        return json_response({"id": served.name, "object": "adapter", "deleted": True})

    async def _remove(self, name: str) -> Served:
        served = await self._adapters.unload(name)
        await self._forget(served.folder)
        return served

    def _drop(self, before: Served) -> None:
        """Once its last request has ended: nobody waits for that."""

        async def drop() -> None:
            await self._adapters.drop(before)
            await self._forget(before.folder)

        task = asyncio.create_task(drop())
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def _forget(self, folder: Path) -> None:
        if self._uploads is not None:
            await self._uploads.clean(folder)


def entry(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "adapter",
        "created": served.created,
        "sha256": served.digest,
        "root": str(served.folder),
    }


async def _body(request: Request) -> bytes:
    return await read_body(request.receive, dict(request.scope["headers"]), _MAX_BODY)
