"""Stand-ins for what lies outside the gateway: a model server scripted down to the byte, and calls to send."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Self

import orjson

from gateway.metering.bill import Bill, Charge
from gateway.policy.schema import Policy, Target, Timeouts
from gateway.types import Call, Candidate, ChatRequest, Principal, Receipt, UpstreamUsage, Usage


class Action(Enum):
    """Steps of a script that are not bytes."""

    ABORT = "reset the connection"
    CLOSE = "close the connection in good order"
    HANG = "say nothing more until the client closes"


Step = bytes | float | asyncio.Event | Action
"""Bytes are sent in a packet of their own, a number is slept (seconds), an event is waited for."""
Script = tuple[Step, ...]


def reply(
    body: bytes | dict[str, Any] | list[Any] | str,
    *,
    status: int = 200,
    kind: str = "application/json",
    headers: dict[str, str] | None = None,
) -> tuple[bytes]:
    """One whole answer."""
    data = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else orjson.dumps(body)
    return (head(status, {"content-type": kind, "content-length": str(len(data)), **(headers or {})}) + data,)


def head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def stream(*steps: Step, kind: str = "text/event-stream", whole: bool = True) -> Script:
    """A chunked answer, each run of bytes a chunk of its own. Without ``whole`` the last chunk's mark is missing."""
    framed = (b"%x\r\n%b\r\n" % (len(step), step) if isinstance(step, bytes) else step for step in steps)
    opening = head(200, {"content-type": kind, "transfer-encoding": "chunked"})
    return (opening, *framed, *((b"0\r\n\r\n",) if whole else ()))


def cut_at(data: bytes, sizes: Iterable[int]) -> list[bytes]:
    """``data`` in pieces of these sizes, and then the rest."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in (*pieces, data) if piece]


DONE = b"data: [DONE]\n\n"


def sse(value: Any, *, newline: bytes = b"\n") -> bytes:
    data = value if isinstance(value, bytes) else orjson.dumps(value)
    return b"data: " + data + newline * 2


def delta(
    content: str | None = None, *, index: int = 0, finish: str | None = None, **more: Any
) -> dict[str, Any]:
    """One chat.completion.chunk, as a dict; ``more`` goes into its delta."""
    said = {**({} if content is None else {"content": content}), **more}
    return {
        "id": "chatcmpl-upstream",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "upstream-model",
        "system_fingerprint": "fp_1",
        "choices": [{"index": index, "delta": said, "logprobs": None, "finish_reason": finish}],
    }


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def usage_event(**more: Any) -> dict[str, Any]:
    return {**delta(), "choices": [], "usage": {**USAGE, **more}}


def answer_events(*words: str, finish: str = "stop", usage: bool = True) -> list[bytes]:
    """The events of a sound streamed answer, ``[DONE]`` included."""
    events = [delta("", role="assistant"), *(delta(word) for word in words), delta(finish=finish)]
    return [*(sse(event) for event in events), *([sse(usage_event())] if usage else []), DONE]


def completion(content: str = "Hello there", **more: Any) -> dict[str, Any]:
    """A whole chat.completion."""
    return {
        "id": "chatcmpl-upstream",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "upstream-model",
        "system_fingerprint": "fp_1",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": content},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
        **more,
    }


@dataclass(eq=False)
class Received:
    """A request as it came in over the wire, and what became of it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The client closed before the script was through."""
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    def json(self) -> Any:
        return orjson.loads(self.body)


class FakeUpstream:
    """An HTTP/1.1 server on a free port. Each POST takes the next of ``scripts``; the last one is kept for the rest."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self.scripts = list(scripts) or [reply(completion())]
        self.health: Script = reply({"object": "list", "data": []})
        """The answer to every GET."""
        self.requests: list[Received] = []
        self.probes: list[Received] = []
        self.connections = 0
        self.open: set[_Connection] = set()
        self.host, self.port = "127.0.0.1", 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen; after a ``stop``, at the same port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), self.host, self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for connection in list(self.open):
            await connection.drop()
        await self._server.wait_closed()
        self._server = None

    @property
    def base_url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}/v1"

    def next_script(self) -> Script:
        return self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]

    def took(self, request: Received) -> None:
        (self.requests if request.method == "POST" else self.probes).append(request)
        self._arrived.set()

    async def arrived(self, count: int = 1) -> Received:
        """Wait for the ``count``-th POST, and return it."""
        async with asyncio.timeout(300):
            while len(self.requests) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.requests[count - 1]


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: FakeUpstream) -> None:
        self._upstream = upstream
        self._buffer = bytearray()
        self._more = asyncio.Event()
        self._gone = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._upstream.connections += 1
        self._number = self._upstream.connections
        self._upstream.open.add(self)
        self._task = asyncio.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._upstream.open.discard(self)
        self._gone.set()
        self._more.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drop(self) -> None:
        self._transport.abort()
        self._gone.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _serve(self) -> None:
        while (request := await self._request()) is not None:
            self._upstream.took(request)
            script = self._upstream.next_script() if request.method == "POST" else self._upstream.health
            play = asyncio.create_task(self._play(script))
            gone = asyncio.create_task(self._gone.wait())
            await asyncio.wait({play, gone}, return_when=asyncio.FIRST_COMPLETED)
            (request.finished if play.done() and play.result() else request.left).set()
            for task in (play, gone):
                task.cancel()
            await asyncio.gather(play, gone, return_exceptions=True)

    async def _play(self, script: Script) -> bool:
        """True when the script came to its end."""
        for step in script:
            match step:
                case bytes():
                    await self._writable.wait()
                    if self._transport.is_closing():
                        return False
                    self._transport.write(step)
                    # Lets the other side see this packet by itself.
                    await asyncio.sleep(0)
                case Action.ABORT:
                    self._transport.abort()
                    return True
                case Action.CLOSE:
                    self._transport.close()
                    return True
                case Action.HANG:
                    await self._gone.wait()
                    return False
                case asyncio.Event():
                    await step.wait()
                case _:
                    await asyncio.sleep(step)
        return True

    async def _request(self) -> Received | None:
        while b"\r\n\r\n" not in self._buffer:
            if not await self._read():
                return None
        top, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        first, *lines = top.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        self._buffer[:] = rest
        while len(self._buffer) < length:
            if not await self._read():
                return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        method, path, _ = first.split(" ")
        return Received(method, path, headers, body, self._number)

    async def _read(self) -> bool:
        """Wait for more; False when there will be no more."""
        self._more.clear()
        if self._gone.is_set():
            return False
        await self._more.wait()
        return not self._gone.is_set()


def policy(**more: Any) -> Policy:
    """A policy with one model, ``m``, served by backend ``up`` as ``upstream-model``; ``more`` replaces keys."""
    return Policy.model_validate(
        {
            "version": 1,
            "backends": {"up": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}},
            "models": {"m": {"targets": [{"backend": "up", "model": "upstream-model"}]}},
            **more,
        }
    )


def a_bill(usage: Usage, nanodollars: int = 0, *, estimated: bool = False) -> Bill:
    """For one answer of ``TARGET``."""
    charge = Charge(UpstreamUsage(TARGET, usage, estimated, "answer", "m"), nanodollars)
    return Bill((charge,), usage.prompt + usage.completion, nanodollars, estimated)


TARGET = Target(backend="up", model="upstream-model")
CANDIDATE = Candidate("m", TARGET, Timeouts())


def a_call(
    *,
    timeouts: dict[str, str] | None = None,
    policy_: Policy | None = None,
    principal: Principal | None = None,
    headers: dict[str, str] | None = None,
    request_id: str = "req_test",
    **request: Any,
) -> Call:
    """A call to model ``m``, streaming unless ``stream=False``."""
    if "prompt" not in request:
        request.setdefault("messages", ({"role": "user", "content": "Hello"},))
    target = {"backend": "up", "model": "upstream-model"}
    return Call(
        request_id=request_id,
        principal=principal or Principal("k", "acme"),
        request=ChatRequest(**{"model": "m", "stream": True, **request}),
        policy=policy_ or policy(models={"m": {"targets": [target], "timeouts": timeouts or {}}}),
        receipt=Receipt(request_id, 1_700_000_000.0),
        started=time.perf_counter(),
        headers=headers or {},
    )


class Held:
    """A allowance that holds dollars, or only tokens."""

    def __init__(self, dollars: int | None) -> None:
        self.dollars = dollars

    async def hold(self, call: Call) -> int | None:
        return None

    def most(self, call: Call) -> int | None:
        return self.dollars

    def bounds(self, call: Call) -> tuple[int, int] | None:
        return None

    def release(self, call: Call, spent: UpstreamUsage | None = None) -> None:
        return None


_BEAT = 0.005
"""Seconds."""


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """The block takes no longer than this, on a machine that is busy with other things too.

    What counts is the time that this process had: a pulse beats beside the block, and a beat that comes late, as
    others had the processor, counts as one that came in time. A block that computes is judged by what it computed.
    """
    beaten = 0.0

    async def pulse() -> None:
        nonlocal beaten
        while True:
            await asyncio.sleep(_BEAT)
            beaten += _BEAT

    computed = time.process_time()
    beating = asyncio.create_task(pulse())
    try:
        yield
    finally:
        beating.cancel()
    took = max(beaten, time.process_time() - computed)
    assert took <= seconds, f"took {took:.2f} s, more than {seconds} s"
