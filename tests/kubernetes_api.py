"""The part of a Kubernetes API server that tells EndpointSlices: lists, watches, bookmarks, what has expired."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml


class KubernetesApi:
    """``put`` and ``delete`` change slices, and are told to whoever watches."""

    def __init__(self) -> None:
        self.port = 0
        self.slices: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, str]] = []
        """The parameters of each request, with its ``path``."""
        self.forbids = False
        self.page = 500
        """Slices in one answer."""
        self._version = 100
        self._oldest = 0
        self._watchers: set[asyncio.Queue[dict[str, Any] | None]] = set()

    def kubeconfig(self, path: Path) -> Path:
        here = {"clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}]}
        who = {"users": [{"name": "u", "user": {"token": "t"}}]}
        context = {"cluster": "c", "user": "u", "namespace": "models"}
        path.write_text(
            yaml.safe_dump(
                {**here, **who, "contexts": [{"name": "x", "context": context}], "current-context": "x"}
            )
        )
        return path

    def put(self, name: str, *endpoints: Mapping[str, Any], port: int = 8000, **more: Any) -> None:
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self._version += 1
        self.slices[name] = {
            "metadata": {"name": name, "resourceVersion": str(self._version)},
            "addressType": "IPv4",
            "ports": [{"name": "metrics", "port": 9000}, {"name": "http", "port": port}],
            "endpoints": list(endpoints),
            **more,
        }
        self._tell(kind, self.slices[name])

    def delete(self, name: str) -> None:
        self._version += 1
        gone = self.slices.pop(name)
        gone["metadata"]["resourceVersion"] = str(self._version)
        self._tell("DELETED", gone)

    def bookmark(self) -> None:
        self._version += 1
        self._tell("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})

    def end_watches(self) -> None:
        """As the server does after a while."""
        for watcher in self._watchers:
            watcher.put_nowait(None)

    def expire(self) -> None:
        """What was known until now is forgotten: who goes on from there has to list anew."""
        self._version += 1
        self._oldest = self._version
        gone = {"code": 410, "reason": "Expired", "message": "too old resource version"}
        self._tell("ERROR", gone)
        self.end_watches()

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    @property
    def lists(self) -> int:
        return sum("watch" not in one for one in self.asked)

    def _tell(self, kind: str, one: dict[str, Any]) -> None:
        for watcher in self._watchers:
            watcher.put_nowait({"type": kind, "object": json.loads(json.dumps(one))})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                url = urlsplit(head.split(b" ", 2)[1].decode())
                asked = {name: values[0] for name, values in parse_qs(url.query).items()}
                self.asked.append({"path": url.path, **asked})
                if self.forbids:
                    await self._answer(writer, 403, {"message": "endpointslices is forbidden"})
                elif "watch" in asked:
                    await self._watch(reader, writer, int(asked["resourceVersion"]))
                else:
                    await self._list(writer, int(asked.get("continue", 0)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _list(self, writer: asyncio.StreamWriter, start: int) -> None:
        every = list(self.slices.values())
        metadata = {"resourceVersion": str(self._version)}
        if start + self.page < len(every):
            metadata["continue"] = str(start + self.page)
        await self._answer(writer, 200, {"metadata": metadata, "items": every[start : start + self.page]})

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        if version < self._oldest:
            await self._answer(writer, 410, {"message": "too old resource version"})
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._watchers.add(events)
        left = asyncio.ensure_future(reader.read(1))
        left.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                line = json.dumps(event).encode() + b"\n"
                writer.write(b"%x\r\n%b\r\n" % (len(line), line))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        finally:
            self._watchers.discard(events)
            left.cancel()
            await asyncio.wait([left])

    async def _answer(self, writer: asyncio.StreamWriter, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()


@asynccontextmanager
async def kubernetes_api() -> AsyncIterator[KubernetesApi]:
    api = KubernetesApi()
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(api.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    api.port = server.sockets[0].getsockname()[1]
    try:
        yield api
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def endpoint(
    address: str, *, zone: str | None = None, hint: str | None = None, **conditions: bool
) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": {"ready": True, **conditions},
        **({"zone": zone} if zone else {}),
        **({"hints": {"forZones": [{"name": hint}]}} if hint else {}),
    }
