"""The gateway on a real server in the test's own event loop, and a client that writes HTTP by hand."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import orjson
import uvicorn
import yaml

from gateway.app import build_app
from gateway.server.connection import Connection
from gateway.settings import Settings

OPERATOR = {"authorization": "Bearer metrics-token"}
"""What opens the operator's pages of a gateway that runs here."""
KEY, OTHER_KEY, NARROW_KEY, EXPIRED_KEY = "tg-acme-1", "tg-other-1", "tg-narrow-1", "tg-expired-1"


def key(text: str, id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "sha256": sha256(text.encode()).hexdigest(), **more}


def a_policy(base_url: str, **more: Any) -> dict[str, Any]:
    """Models ``fake`` and ``slow`` answered by scripts, ``up`` and ``down`` by servers; ``more`` replaces keys."""
    script = [
        {"match": "fail", "reply": "the script says no", "status": 503},
        {"match": "cut", "reply": "one two three", "cut_after": 2},
        {"reply": "one two three"},
    ]
    return {
        "version": 1,
        "backends": {
            "scripted": {"kind": "fake", "script": script},
            "slow": {"kind": "fake", "script": [{"reply": "a b c d"}], "token_delay": "150ms"},
            "up": {"kind": "openai", "base_url": base_url, "api_key": "sk-upstream-secret"},
            "down": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"},
        },
        "models": {
            "fake": {"targets": [{"backend": "scripted", "model": "x"}]},
            "slow": {"targets": [{"backend": "slow", "model": "x"}]},
            "up": {"targets": [{"backend": "up", "model": "upstream-model"}], "retry": {"attempts": 1}},
            "down": {"targets": [{"backend": "down", "model": "x"}]},
        },
        "keys": [
            key(KEY, "acme-1", tenant="acme"),
            key(OTHER_KEY, "other-1", tenant="other"),
            key(NARROW_KEY, "narrow-1", tenant="acme", models=["fa*"]),
            key(EXPIRED_KEY, "expired-1", tenant="acme", expires="2020-01-01"),
        ],
        **more,
    }


OPERATOR_SETTINGS = {"metrics_token": "metrics-token", "metrics_tenants": True, "metrics_age": 0.0}


class Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are the test runner's

    async def main_loop(self) -> None:
        while not self.should_exit:
            await self.on_tick(0)
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's own, which sleeps a tenth of a second: as long as a test takes."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        for sock in sockets or ():
            sock.close()
        await self.lifespan.shutdown()


@dataclass
class Gateway:
    url: str
    port: int
    folder: Path
    http: httpx.AsyncClient
    """With acme's key."""

    def write(self, policy: dict[str, Any] | str) -> None:
        """Replace the policy, as an editor would."""
        text = policy if isinstance(policy, str) else yaml.safe_dump(policy, sort_keys=False)
        fresh = self.folder / "gateway.yaml.new"
        fresh.write_text(text)
        fresh.replace(self.folder / "gateway.yaml")

    async def metrics(self) -> dict[str, float]:
        page = (await self.http.get("/metrics", headers=OPERATOR)).text
        lines = [line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    async def generation(self, number: int) -> None:
        """Wait until the ``number``-th policy is in force."""
        async with asyncio.timeout(300):
            while (await self.metrics())["tollgate_policy_generation"] < number:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(
    folder: Path, policy: dict[str, Any], *, drain: int = 1, **settings: Any
) -> AsyncIterator[Gateway]:
    """A gateway for ``policy``, written to ``folder``; ``settings`` as in ``gateway.settings``.

    At its end it waits ``drain`` seconds for answers in flight.
    """
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240
    url = f"http://127.0.0.1:{port}"
    client = httpx.AsyncClient(
        base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=300, verify=False, trust_env=False
    )
    gateway = Gateway(url, port, folder, client)
    gateway.write(policy)
    config = uvicorn.Config(
        build_app(
            Settings(
                **{"policies": folder, "state_dir": folder.parent / "state", **OPERATOR_SETTINGS, **settings}
            )
        ),
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=drain,
    )
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        while not server.started:
            if task.done():
                raise RuntimeError("the gateway did not start; its log says why")
            await asyncio.sleep(0.005)
        yield gateway
    finally:
        await client.aclose()
        server.should_exit = True
        await task


@dataclass
class RawResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


class RawConnection:
    """One connection, on which a test writes what it likes."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self._port = port
        self._receive_buffer = receive_buffer

    async def __aenter__(self) -> Self:
        sock = socket.socket()
        if self._receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        self.reader, self.writer = await asyncio.open_connection(sock=sock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> None:
        self.send(request("POST", path, body if isinstance(body, bytes) else orjson.dumps(body), **headers))

    async def answer(self) -> RawResponse:
        """The next answer on this connection."""
        async with asyncio.timeout(300):
            status, headers = await self.head()
            if headers.get("transfer-encoding") == "chunked":
                return RawResponse(status, headers, b"".join([part async for part in self.chunks()]))
            return RawResponse(status, headers, await self.reader.readexactly(int(headers["content-length"])))

    async def head(self) -> tuple[int, dict[str, str]]:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        pairs = (line.partition(": ") for line in lines)
        return int(first.split(" ")[1]), {name.lower(): value for name, _, value in pairs}

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)


def request(method: str, path: str, body: bytes = b"", *, token: str = KEY, **headers: str) -> bytes:
    """A request as it goes over the wire; underscores in header names stand for dashes."""
    lines = [f"{method} {path} HTTP/1.1", "host: gateway", f"authorization: Bearer {token}"]
    if method == "POST":
        lines.append(f"content-length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chat(model: str = "fake", content: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": content}], **more}
