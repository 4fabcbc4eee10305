"""What servers of models are told of adapters: the bundled engine, and vLLM
(https://docs.vllm.ai/en/latest/features/lora.html).

An engine is sent an adapter's archive; a vLLM server reads a folder, which it mounts. Both answer 404 to requests for
an adapter that they do not have.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import httpx
import orjson

from gateway.adapters.adapter import Adapter, is_adapter_id
from gateway.backends.client import Client
from gateway.backends.endpoint import Endpoint, Upload
from gateway.backends.lora_names import Listing, read_listing
from gateway.errors import BadRequest, Upstream, UpstreamFailed, UpstreamUnavailable

CONNECT = 5.0
"""Seconds that a new connection may take."""
MOST_ANSWER = 4 * 2**20
"""Bytes; a list of models has some 200 for each."""
LOOK_EVERY = 0.1
FULL = frozenset({"adapters_full", "insufficient_storage"})
"""The engine's codes."""
RETRY_AFTER = 2.0


class ServerFull(Exception):
    """It has as many adapters as it takes."""


class Server(Protocol):
    """One server. Methods raise ``Upstream`` where it does not answer as it should."""

    async def loaded(self) -> frozenset[str]:
        """The ids of the adapters that requests can name now."""
        ...

    async def load(self, adapter: Adapter) -> None:
        """It can be named once this returns; also where it could before.

        Raises ``BadRequest`` where the server does not take it, and ``ServerFull``.
        """
        ...

    async def unload(self, id: str) -> None:
        """The last request that uses it has ended then; also where it was not there."""
        ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes

    @property
    def error(self) -> Mapping[str, str]:
        """Its message and code, as far as it gives them."""
        try:
            body = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        body = body.get("error", body) if isinstance(body, dict) else {}
        if not isinstance(body, dict):
            return {"message": str(body)}
        return {name: str(body[name]) for name in ("message", "code") if body.get(name) is not None}


class _Http:
    """Asks one server. ``root`` ends where a path follows."""

    def __init__(
        self,
        backend: str,
        root: str,
        token: str | None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._backend = backend
        self._root = root.rstrip("/")
        self._headers = {"user-agent": "tollgate", "accept-encoding": "identity"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._client = Client(transport=transport)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | Upload = b"",
        headers: Mapping[str, str] = MappingProxyType({"content-type": "application/json"}),
    ) -> _Answer:
        """``headers``: of a body. Raises ``UpstreamUnavailable``."""
        headers = {**self._headers, **headers} if body else self._headers
        endpoint = Endpoint(method, self._root + path)
        try:
            response = await self._client.send(endpoint, headers, body, connect=CONNECT)
            try:
                data = b""
                async for part in response:
                    data += part
                    if len(data) > MOST_ANSWER:
                        raise self.failed("answered at unreasonable length")
                return _Answer(response.status, data)
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise UpstreamUnavailable(
                f"Backend '{self._backend}' cannot be asked for its adapters. Try again.",
                retry_after=RETRY_AFTER,
            ) from error

    async def loaded(self) -> frozenset[str]:
        answer = await self.ask("GET", "/models")
        if answer.status != 200:
            raise self.refused("list its models", answer)
        try:
            listed = orjson.loads(answer.body)["data"]
            return frozenset(str(one["id"]) for one in listed if is_adapter_id(str(one["id"])))
        except (ValueError, TypeError, KeyError):
            raise self.refused("list its models", answer) from None

    async def unload(self, id: str) -> None:
        answer = await self.ask("POST", "/unload_lora_adapter", orjson.dumps({"lora_name": id}))
        if answer.status not in (200, 404):
            raise self.refused("unload an adapter", answer)

    def refused(self, what: str, answer: _Answer, token: str = "adapters.servers.token") -> Upstream:
        """``token``: where the policy has it."""
        if answer.status in (401, 403):
            return UpstreamFailed(
                f"Backend '{self._backend}' refused the gateway's own token to {what}; "
                f"its {token} needs the operator's care.",
                code="upstream_auth",
            )
        return self.failed(f"answered with HTTP status {answer.status} when it was to {what}")

    def failed(self, what: str) -> UpstreamFailed:
        return UpstreamFailed(f"Backend '{self._backend}' {what}.", code="adapter_load_failed")

    async def aclose(self) -> None:
        await self._client.aclose()


class EngineServer:
    """The bundled engine. ``archive`` opens an adapter's archive."""

    def __init__(self, http: _Http, archive: Callable[[Adapter], Upload]) -> None:
        self._http = http
        self._archive = archive
        self.loaded = http.loaded
        self.unload = http.unload
        self.aclose = http.aclose

    async def load(self, adapter: Adapter) -> None:
        digest = b64encode(bytes.fromhex(adapter.archive_sha256)).decode()
        headers = {"content-type": "application/x-tar", "content-digest": f"sha-256=:{digest}:"}
        while True:
            answer = await self._http.ask("PUT", f"/adapters/{adapter.id}", self._archive(adapter), headers)
            if answer.status in (200, 201):
                return
            if "being loaded" not in answer.error.get("message", ""):
                _raise(self._http, adapter, answer)
            await asyncio.sleep(LOOK_EVERY)  # for another gateway


class VllmServer:
    """A vLLM server that mounts at ``mounted`` what ``put`` fills: one folder for each adapter, by its id."""

    def __init__(self, http: _Http, mounted: str, put: Callable[[Adapter], Awaitable[Path]]) -> None:
        self._http = http
        self._mounted = mounted.rstrip("/")
        self._put = put
        self.loaded = http.loaded
        self.unload = http.unload
        self.aclose = http.aclose

    async def load(self, adapter: Adapter) -> None:
        await self._put(adapter)
        body = {"lora_name": adapter.id, "lora_path": f"{self._mounted}/{adapter.id}"}
        answer = await self._http.ask("POST", "/load_lora_adapter", orjson.dumps(body))
        if answer.status != 200 and not (answer.status == 400 and b"already been loaded" in answer.body):
            _raise(self._http, adapter, answer)


class ModelsServer:
    """One that is only asked which models it has."""

    def __init__(self, http: _Http) -> None:
        self._http = http
        self.aclose = http.aclose

    async def listing(self) -> Listing:
        """Raises ``Upstream`` where it does not answer as it should."""
        answer = await self._http.ask("GET", "/models")
        if answer.status != 200:
            raise self._http.refused("list its models", answer, "api_key")
        try:
            return read_listing(answer.body)
        except ValueError as error:
            raise self._http.failed(f"lists no models: {error}"[:200]) from None


def models_server(
    backend: str, root: str, key: str | None, transport: httpx.AsyncBaseTransport | None = None
) -> ModelsServer:
    """``root`` ends where ``/models`` follows."""
    return ModelsServer(_Http(backend, root, key, transport))


def engine_server(
    backend: str,
    base_url: str,
    token: str | None,
    archive: Callable[[Adapter], Upload],
    transport: httpx.AsyncBaseTransport | None = None,
) -> Server:
    return EngineServer(_Http(backend, f"{base_url.rstrip('/')}/v1", token, transport), archive)


def vllm_server(
    backend: str,
    base_url: str,
    api_key: str | None,
    mounted: str,
    put: Callable[[Adapter], Awaitable[Path]],
    transport: httpx.AsyncBaseTransport | None = None,
) -> Server:
    return VllmServer(_Http(backend, base_url, api_key, transport), mounted, put)


def _raise(http: _Http, adapter: Adapter, answer: _Answer) -> None:
    """What ``answer`` to a load means."""
    reason = answer.error.get("message", "")
    if answer.error.get("code") in FULL or (answer.status == 400 and "adapter slots are in use" in reason):
        raise ServerFull(reason)
    if answer.status == 404 and not _is_about_files(reason):
        raise http.failed(
            "loads no adapters at run time; start the engine with --max-adapters, vLLM with --enable-lora and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
        )
    if answer.status in (400, 404, 409, 413, 422):
        raise BadRequest(
            f"The adapter '{adapter.model}' cannot be loaded: {reason or 'its server gave no reason'} "
            "Delete it, and upload one that was made for this model.",
            param="model",
            code="adapter_refused",
        )
    raise http.refused("load an adapter", answer)


def _is_about_files(reason: str) -> bool:
    """vLLM answers 404 where it finds no adapter in the folder."""
    return "adapter" in reason.lower() or "lora" in reason.lower()
