"""What one attack needs around it: gateways, scripted upstreams, a Redis server, the demo engine."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from benchmarks.attacks.frame.gateway import Gateway
from benchmarks.attacks.frame.verdict import skip
from tests.fakes import FakeUpstream, Script
from tests.redis_server import RedisServer

MALLORY, ALICE = "tg-mallory-1", "tg-alice-1"
"""The keys of the tenant that attacks, and of the one that must not notice."""


class Rig:
    """Ends what it has started, in reverse order, when its block is left."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        name = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tollgate-attack-"))
        self.folder = Path(name)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def upstream(self, *scripts: Script) -> FakeUpstream:
        """A model's server, scripted down to the byte: each request takes the next script, the last is kept."""
        return await self._stack.enter_async_context(FakeUpstream(*scripts))

    def redis(self) -> RedisServer:
        """A server of its own; skips the attack where there is no redis-server."""
        program = shutil.which("redis-server")
        if program is None:
            skip("needs redis-server")
        folder = self.folder / "redis"
        folder.mkdir()
        server = RedisServer(program, folder)
        server.start()
        self._stack.callback(server.kill)
        return server

    def policy(self, upstream: FakeUpstream | None = None, **more: Any) -> dict[str, Any]:
        """Model ``m`` served by ``upstream``, or by a script that says "Hello"; keys of both tenants.

        ``more`` replaces keys of the policy, except that ``backends`` and ``models`` are added.
        """
        backend = (
            {"kind": "openai", "base_url": upstream.base_url}
            if upstream is not None
            else {"kind": "fake", "script": [{"reply": "Hello"}]}
        )
        return {
            "version": 1,
            "keys": [a_key(MALLORY, "mallory-1", tenant="mallory"), a_key(ALICE, "alice-1", tenant="alice")],
            **more,
            "backends": {"up": backend, **more.get("backends", {})},
            "models": {
                "m": {"targets": [{"backend": "up", "model": "upstream-model"}]},
                **more.get("models", {}),
            },
        }

    def demo_engine(self) -> dict[str, Any]:
        """A backend for ``policy(backends=…)``: the bundled engine with its demo model, started by the gateway."""
        return {
            "kind": "engine",
            "launch": True,
            "base_url": f"http://127.0.0.1:{free_port()}",
            "model": "demo",
        }

    async def gateway(
        self, policy: dict[str, Any], *arguments: str, wrapped: Sequence[str] = (), **env: str
    ) -> Gateway:
        """A gateway of its own with this policy, ready; the rest is as in ``Gateway.start``."""
        folder = Path(tempfile.mkdtemp(prefix="gateway-", dir=self.folder))
        port = free_port()
        http = await self._stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                timeout=None,
                trust_env=False,
                limits=httpx.Limits(max_connections=None),
            )
        )
        gateway = Gateway(folder, port, http)
        gateway.policies.mkdir()
        (gateway.policies / "gateway.yaml").write_text(yaml.safe_dump(policy, sort_keys=False))
        self._stack.push_async_callback(gateway.stop)
        await gateway.start(*arguments, wrapped=wrapped, **env)
        return gateway


def a_key(text: str, id: str, **more: Any) -> dict[str, Any]:
    """A policy's entry for the key ``text``."""
    return {"id": id, "sha256": sha256(text.encode()).hexdigest(), **more}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])
