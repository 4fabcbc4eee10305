"""Tollgate's engine as a Ray Serve application: Ray places replicas, restarts them, and scales them by what is asked.

    serve run tollgate_engine:build model=demo command=".venv/bin/python -m engine serve" replicas=2

Each replica starts an engine of its own, which may be of another Python environment than Ray's, and relays what Serve
sends it. It is ready once its engine is, unhealthy where that does not answer, and ends it, also by being killed.
Needs ``ray[serve]`` alone.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from ray import serve
from ray.serve import Application
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse

HOP_BY_HOP = frozenset(
    ["connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"]
)
UNTIL_ITS_END = (
    'exec 3<&0; "$@" & engine=$!; (cat <&3; kill $engine) >/dev/null & watch=$!; wait $engine; kill $watch'
)
"""A shell that ends its command once nobody holds the other end of its input: a replica can be killed."""


@serve.deployment(max_ongoing_requests=256, health_check_period_s=5, health_check_timeout_s=30)
class Engine:
    def __init__(self, command: str, model: str, arguments: str, start: float) -> None:
        """``start``: seconds in which the engine has loaded its model. Raises ``RuntimeError``."""
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        words = [*shlex.split(command), "--model", model, "--host", "127.0.0.1", "--port", str(port)]
        self._url = f"http://127.0.0.1:{port}"
        ours = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # not Ray's
        self._process = subprocess.Popen(
            ["sh", "-c", UNTIL_ITS_END, "engine", *words, *shlex.split(arguments)],
            stdin=subprocess.PIPE,
            env=ours,
        )
        self._session: aiohttp.ClientSession | None = None
        until = time.monotonic() + start
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > until:
                self._end()
                raise RuntimeError(f"the engine did not come up within {start:.0f} s: see this replica's log")
            time.sleep(0.25)

    async def __call__(self, request: Request) -> StreamingResponse:
        if self._session is None:
            # The engine has bounds of its own on how long an answer takes.
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        url = f"{self._url}{path}{'?' if request.url.query else ''}{request.url.query}"
        headers = {name: value for name, value in request.headers.items() if name not in HOP_BY_HOP}
        answer = await self._session.request(request.method, url, headers=headers, data=await request.body())

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.content.iter_any():
                    yield piece
            finally:  # a client that leaves has the engine stop
                answer.close()

        told = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
        return StreamingResponse(pieces(), answer.status, told, background=BackgroundTask(answer.close))

    def check_health(self) -> None:
        """Raises where the engine does not answer: Ray makes another replica."""
        if not self._is_healthy():
            raise RuntimeError("the engine does not answer")

    def __del__(self) -> None:
        self._end()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/health", timeout=10) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)


def build(args: dict[str, str]) -> Application:
    """``model``; ``command`` that starts an engine; ``arguments`` for it; ``replicas``, or ``min`` and ``max``;
    ``cpus`` and ``gpus`` of each; ``start`` in seconds."""
    known = {"model", "command", "arguments", "replicas", "min", "max", "cpus", "gpus", "start"}
    if unknown := args.keys() - known:
        raise ValueError(f"no such argument: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    options: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": float(args.get("cpus", 1)), "num_gpus": float(args.get("gpus", 0))}
    }
    if "max" in args:
        options["autoscaling_config"] = {
            "min_replicas": int(args.get("min", 1)),
            "max_replicas": int(args["max"]),
            "target_ongoing_requests": 16,
        }
    else:
        options["num_replicas"] = int(args.get("replicas", 1))
    return Engine.options(**options).bind(
        args.get("command", "python -m engine serve"),
        args.get("model", "demo"),
        args.get("arguments", ""),
        float(args.get("start", 600)),
    )
