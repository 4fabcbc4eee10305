"""The part of a Kubernetes API server that tells EndpointSlices, pods and InferencePools: lists, watches, selectors,
bookmarks, what has expired."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml


class KubernetesApi:
    """``put`` and ``delete`` change slices, ``put_one`` and ``delete_one`` what else there is; it is told to whoever
    watches."""

    def __init__(self) -> None:
        self.port = 0
        self.slices: dict[str, dict[str, Any]] = {}
        self.kinds: dict[str, dict[str, dict[str, Any]]] = {"endpointslices": self.slices}
        """By the last part of their path, all of a kind, by name."""
        self.asked: list[dict[str, str]] = []
        """The parameters of each request, with its ``path``."""
        self.forbids = False
        self.page = 500
        """Slices in one answer."""
        self._version = 100
        self._oldest = 0
        self._watchers: dict[asyncio.Queue[dict[str, Any] | None], tuple[str, str]] = {}
        """With the kind that each watches, and its selector."""

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
        made = {
            "addressType": "IPv4",
            "ports": [{"name": "metrics", "port": 9000}, {"name": "http", "port": port}],
            "endpoints": list(endpoints),
            **more,
        }
        self.put_one("endpointslices", name, made)

    def delete(self, name: str) -> None:
        self.delete_one("endpointslices", name)

    def put_one(self, kind: str, name: str, one: Mapping[str, Any]) -> None:
        """One that ceases to be selected is gone for who selects."""
        before = self.kinds.setdefault(kind, {}).get(name)
        self._version += 1
        metadata = {**one.get("metadata", {}), "name": name, "resourceVersion": str(self._version)}
        new = self.kinds[kind][name] = {**one, "metadata": metadata}
        for watcher, (watched, selector) in self._watchers.items():
            if watched != kind:
                continue
            had, has = before is not None and selects(selector, before), selects(selector, new)
            if had or has:
                change = ("MODIFIED" if had else "ADDED") if has else "DELETED"
                self._tell_one(watcher, change, new)

    def delete_one(self, kind: str, name: str) -> None:
        self._version += 1
        gone = self.kinds[kind].pop(name)
        gone["metadata"]["resourceVersion"] = str(self._version)
        for watcher, (watched, selector) in self._watchers.items():
            if watched == kind and selects(selector, gone):
                self._tell_one(watcher, "DELETED", gone)

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
            self._tell_one(watcher, kind, one)

    def _tell_one(self, watcher: asyncio.Queue[dict[str, Any] | None], kind: str, one: Any) -> None:
        watcher.put_nowait({"type": kind, "object": json.loads(json.dumps(one))})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                url = urlsplit(head.split(b" ", 2)[1].decode())
                asked = {name: values[0] for name, values in parse_qs(url.query).items()}
                self.asked.append({"path": url.path, **asked})
                kind = url.path.rpartition("/")[2]
                selector = asked.get("labelSelector", "") if kind == "pods" else ""
                if self.forbids:
                    await self._answer(writer, 403, {"message": f"{kind} is forbidden"})
                elif "watch" in asked:
                    await self._watch(reader, writer, int(asked["resourceVersion"]), (kind, selector))
                else:
                    known = self.kinds.get(kind, {}).values()
                    every = [one for one in known if selects(selector, one)]
                    await self._list(writer, every, int(asked.get("continue", 0)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _list(self, writer: asyncio.StreamWriter, every: list[dict[str, Any]], start: int) -> None:
        metadata = {"resourceVersion": str(self._version)}
        if start + self.page < len(every):
            metadata["continue"] = str(start + self.page)
        await self._answer(writer, 200, {"metadata": metadata, "items": every[start : start + self.page]})

    async def _watch(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        version: int,
        of: tuple[str, str],
    ) -> None:
        if version < self._oldest:
            await self._answer(writer, 410, {"message": "too old resource version"})
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._watchers[events] = of
        for one in self.kinds.get(of[0], {}).values():  # what came since the list
            if int(one["metadata"]["resourceVersion"]) > version and selects(of[1], one):
                self._tell_one(events, "MODIFIED", one)
        left = asyncio.ensure_future(reader.read(1))
        left.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                line = json.dumps(event).encode() + b"\n"
                writer.write(b"%x\r\n%b\r\n" % (len(line), line))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        finally:
            del self._watchers[events]
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
        # Who has stopped to watch may be about to connect once more: that ends while somebody answers.
        async with asyncio.timeout(300):
            while any(thread.name.startswith("endpoints of ") for thread in threading.enumerate()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
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


def selects(selector: str, one: Mapping[str, Any]) -> bool:
    """Whether a selector of labels has it."""
    wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
    return wanted.items() <= one["metadata"].get("labels", {}).items()


def a_pool(*ports: int, **labels: str) -> dict[str, Any]:
    """An InferencePool."""
    return {
        "spec": {
            "selector": {"matchLabels": labels},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        }
    }


def a_pod(address: str | None, *, ready: bool = True, ending: bool = False, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {"labels": labels, **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if ending else {})},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            **({"podIP": address} if address else {}),
        },
    }
