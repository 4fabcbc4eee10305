"""A gateway that asks an endpoint picker, by what protoc makes of Envoy's published protos."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from grpc import aio

PROTOS = Path(__file__).parent / "gateway" / "picker" / "protos"
NONE, STREAMED, BUFFERED, PARTIAL, FULL_DUPLEX, GRPC = range(6)
"""``ProcessingMode.BodySendMode``."""
OVERWRITE_IF_EXISTS_OR_ADD = 2
"""``HeaderValueOption.HeaderAppendAction``."""
DESTINATION = "x-gateway-destination-endpoint"


@cache
def protos() -> SimpleNamespace:
    """Messages and clients: ``pb``, ``base``, ``processor``, ``health``, ``health_client``."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"--python_out={folder}"]
        files = map(str, sorted(PROTOS.glob("*.proto")))
        subprocess.run([*command, f"--grpc_python_out={folder}", *files], check=True, timeout=300)
        sys.path.insert(0, folder)
        try:
            return SimpleNamespace(
                pb=importlib.import_module("external_processor_pb2"),
                base=importlib.import_module("core_base_pb2"),
                processor=importlib.import_module("external_processor_pb2_grpc").ExternalProcessorStub,
                health=importlib.import_module("health_pb2"),
                health_client=importlib.import_module("health_pb2_grpc").HealthStub,
            )
        finally:
            sys.path.remove(folder)


@asynccontextmanager
async def all_calls_ended() -> AsyncIterator[None]:
    """Leaves once what gRPC has begun within has ended, which closing a channel and stopping a server do not wait for.

    The process has one queue of gRPC's events: one that comes when its loop is closed fails whichever test runs then.
    """
    before = asyncio.all_tasks()
    yield
    own = {task for task in asyncio.all_tasks() if "TestRunner" in repr(task.get_coro())} | {
        asyncio.current_task()
    }
    while left := asyncio.all_tasks() - before - own:
        await asyncio.wait(left)


@dataclass
class Told:
    """What a picker said of a request."""

    headers: dict[str, str] = field(default_factory=dict)
    """That it sets."""
    metadata: str | None = None
    body: bytes | None = None
    """In place of the one that was sent; None: that one stays."""
    chunks: int = 0
    status: int | None = None
    """Of an answer in our stead."""
    error: dict[str, Any] = field(default_factory=dict)

    @property
    def endpoint(self) -> str:
        return self.headers[DESTINATION]

    def add(self, response: Any) -> None:
        what = response.WhichOneof("response")
        if what == "immediate_response":
            immediate = response.immediate_response
            self.status = immediate.status.code
            self._set(immediate.headers)
            self.error = json.loads(immediate.body)["error"]
            return
        if "envoy.lb" in response.dynamic_metadata:
            self.metadata = response.dynamic_metadata["envoy.lb"][DESTINATION]
        if what in ("request_headers", "request_body"):
            common = getattr(response, what).response
            self._set(common.header_mutation)
            mutation = common.body_mutation
            if mutation.WhichOneof("mutation") == "body":
                self.body = mutation.body
            elif mutation.WhichOneof("mutation") == "streamed_response":
                assert len(mutation.streamed_response.body) <= 64 * 1024
                self.body = (self.body or b"") + mutation.streamed_response.body
                self.chunks += 1

    def _set(self, mutation: Any) -> None:
        for one in mutation.set_headers:
            assert one.append_action == OVERWRITE_IF_EXISTS_OR_ADD
            self.headers[one.header.key] = one.header.raw_value.decode()


class Stream:
    """One request."""

    def __init__(
        self, channel: aio.Channel, mode: int = FULL_DUPLEX, response_mode: int | None = None
    ) -> None:
        self.call = protos().processor(channel).Process()
        self.mode = mode
        self.response_mode = mode if response_mode is None else response_mode
        self.told = Told()
        self._first = True

    async def send(self, metadata: Mapping[str, Mapping[str, Any]] = {}, **request: Any) -> None:
        made = protos().pb.ProcessingRequest(**request)
        for namespace, values in metadata.items():
            made.metadata_context.filter_metadata[namespace].update(values)
        if self._first:
            self._first = False
            made.protocol_config.request_body_mode = self.mode
            made.protocol_config.response_body_mode = self.response_mode
        await self.call.write(made)

    async def read(self) -> str | None:
        """What kind of answer came; None: the picker has ended the stream."""
        response = await self.call.read()
        if response is aio.EOF:
            return None
        self.told.add(response)
        return response.WhichOneof("response")

    async def ask(
        self,
        body: bytes | None,
        headers: Mapping[str, str] = {},
        *,
        path: str = "/v1/chat/completions",
        pieces: int = 65_536,
        subset: Sequence[str] | str | None = None,
    ) -> Told:
        """Until the request could be sent on, or was answered in our stead."""
        given = {":method": "GET" if body is None else "POST", ":path": path, **headers}
        if body is not None:
            given.setdefault("content-type", "application/json")
        metadata = {} if subset is None else {"envoy.lb.subset_hint": {f"{DESTINATION}-subset": subset}}
        await self.send(metadata, request_headers=http_headers(given, end_of_stream=body is None))
        if body is None or self.mode == NONE:
            await self.read()
        elif self.mode == FULL_DUPLEX:
            await self._duplex(body, pieces)
        elif await self.read() == "request_headers":
            parts = [(body, True)] if self.mode == BUFFERED else cut(body, pieces)
            # Of a partial body the rest is not sent.
            for piece, end in parts[:1] if self.mode == PARTIAL else parts:
                await self.send(request_body={"body": piece, "end_of_stream": end})
                if await self.read() != "request_body":
                    break
        return self.told

    async def _duplex(self, body: bytes, pieces: int) -> None:
        for piece, end in cut(body, pieces):
            await self.send(request_body={"body": piece, "end_of_stream": end})
        ended = False
        while not ended and self.told.status is None:
            response = await self.call.read()
            assert response is not aio.EOF
            self.told.add(response)
            ended = response.request_body.response.body_mutation.streamed_response.end_of_stream

    async def answered(self, status: int = 200, served: str | None = None, body: bytes = b"ok") -> None:
        """The engine has answered."""
        metadata = {} if served is None else {"envoy.lb": {f"{DESTINATION}-served": served}}
        await self.send(metadata, response_headers=http_headers({":status": str(status)}))
        assert await self.read() == "response_headers"
        if self.response_mode != NONE:
            await self.send(response_body={"body": body, "end_of_stream": True})
            assert await self.read() == "response_body"

    async def end(self) -> None:
        await self.call.done_writing()
        while await self.read() is not None:
            pass

    def cancel(self) -> None:
        self.call.cancel()


def http_headers(headers: Mapping[str, str], *, end_of_stream: bool = False) -> dict[str, Any]:
    values = [{"key": name, "raw_value": value.encode()} for name, value in headers.items()]
    return {"headers": {"headers": values}, "end_of_stream": end_of_stream}


def cut(body: bytes, size: int) -> list[tuple[bytes, bool]]:
    starts = range(0, len(body), size) or range(1)
    return [(body[start : start + size], start + size >= len(body)) for start in starts]


def chat(model: str = "m", content: str = "hello", **more: Any) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": content}], **more}).encode()
