"""A load generator and a static model server, both as cheap as Python can make them, so that the proxy is measured.

python -m benchmarks.load serve PORT                      the static upstream: models static, short, long, trickled …
python -m benchmarks.load ask PORT --connections 32 …     prints one JSON object
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

import uvloop

CHUNKS = 200
TRICKLED = {b'"model":"trickled"': (50, 0.02), b'"model":"trickled-slowly"': (25, 0.2)}
"""Models whose tokens come one by one, as they really do: how many chunks, and the seconds between two. A thousand
streams at 20 ms would be more than a core does, and come in bunches after all."""
LENGTHS = {b'"model":"short"': 512, b'"model":"long"': 16 * 1024}
"""Bytes of these models' answers, bodies as a whole."""
ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1700000000,"model":"static","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Hello! How can I help you today?"},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}}'
)
_EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1700000000,"model":"static","choices":[{"index":0,'
    b'"delta":%s,"logprobs":null,"finish_reason":%s}]}\n\n'
)
_USAGE = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1700000000,"model":"static","choices":[],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":200,"total_tokens":209}}\n\n'
)


def _chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def _whole(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def _of(length: int) -> bytes:
    """The answer, its text filled up to so many bytes in all."""
    return ANSWER.replace(b"Hello!", (b"Hello, world. " * length)[: length - len(ANSWER) + 6])


WHOLE = _whole(ANSWER)
SIZED = {model: _whole(_of(length)) for model, length in LENGTHS.items()}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM = STREAM_HEAD + _chunked(
    _EVENT % (b'{"role":"assistant","content":""}', b"null"),
    # No two alike in a row: LiteLLM takes that for a model that has gone astray.
    *(_EVENT % (b'{"content":" word%d"}' % i, b"null") for i in range(CHUNKS)),
    _EVENT % (b"{}", b'"stop"'),
    _USAGE,
    b"data: [DONE]\n\n",
)


class Static(asyncio.Protocol):
    """Answers each POST with the same chat completion, streamed where it asks for that; each GET with a list."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.seen = b""

    def data_received(self, data: bytes) -> None:
        self.seen += data
        while True:
            head, mark, rest = self.seen.partition(b"\r\n\r\n")
            if not mark:
                return
            length = _length(head)
            if len(rest) < length:
                return
            body, self.seen = rest[:length], rest[length:]
            streamed = b'"stream":true' in body or b'"stream": true' in body
            trickled = [pace for model, pace in TRICKLED.items() if model in body]
            if streamed and trickled:
                self.trickle(0, *trickled[0])
            elif streamed:
                self.transport.write(STREAM)  # type: ignore[attr-defined]
            else:
                sized = [answer for model, answer in SIZED.items() if model in body]
                self.transport.write(sized[0] if sized else WHOLE)  # type: ignore[attr-defined]

    def trickle(self, number: int, count: int, seconds: float) -> None:
        """The next of ``count`` chunks of a stream whose tokens come one by one, ``seconds`` apart."""
        if number < count:
            event = _EVENT % (b'{"content":" word%d"}' % number, b"null")
            part = b"%x\r\n%s\r\n" % (len(event), event)
            asyncio.get_running_loop().call_later(seconds, self.trickle, number + 1, count, seconds)
        else:
            part = _chunked(_EVENT % (b"{}", b'"stop"'), _USAGE, b"data: [DONE]\n\n")
        self.transport.write(part if number else STREAM_HEAD + part)  # type: ignore[attr-defined]


def _length(head: bytes) -> int:
    low = head.lower()
    at = low.find(b"content-length:")
    return int(low[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


class Asker(asyncio.Protocol):
    """One connection: asks, waits for the whole answer, asks again."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.buffer = bytearray()
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.left.done():
            self.left.set_result(None)

    def ask(self) -> None:
        if not self.run.another():
            self.transport.close()
            return
        self.asked = time.perf_counter()
        self.transport.write(self.run.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        buffer = self.buffer
        buffer += data
        self.run.reads += 1
        if self.run.stream:
            if not buffer.endswith(b"0\r\n\r\n"):
                return
            events = buffer.count(b'"delta"')
            good = buffer.startswith(b"HTTP/1.1 200") and b"[DONE]" in buffer
        else:
            end = buffer.find(b"\r\n\r\n")
            if end < 0 or len(buffer) < end + 4 + _length(bytes(buffer[:end])):
                return
            events = 1
            good = buffer.startswith(b"HTTP/1.1 200")
        if not good:
            self.run.failure = self.run.failure or bytes(buffer[:600]).decode(errors="replace")
        self.run.took(time.perf_counter() - self.asked, events, good)
        buffer.clear()
        self.ask()


class Run:
    def __init__(self, request: bytes, *, requests: int, stream: bool) -> None:
        self.request = request
        self.stream = stream
        self.left = requests
        self.times: list[float] = []
        self.events = 0
        self.reads = 0
        self.failed = 0
        self.failure = ""

    def another(self) -> bool:
        self.left -= 1
        return self.left >= 0

    def took(self, seconds: float, events: int, good: bool) -> None:
        self.times.append(seconds)
        self.events += events
        self.failed += not good


_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
    },
}


def question(model: str, *, stream: bool, size: int = 0, tools: int = 0) -> bytes:
    """The body of a request, of ``size`` bytes at least, with so many ``tools``."""
    asked = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello" + " world" * (size // 6)}],
        "max_tokens": 16,
        "stream": stream,
    }
    if tools:
        asked["tools"] = [_TOOL] * tools
    return json.dumps(asked, separators=(",", ":")).encode()


async def ask(
    port: int, connections: int, requests: int, stream: bool, headers: list[str], body: bytes
) -> dict[str, float | str]:
    lines = ["POST /v1/chat/completions HTTP/1.1", "host: bench", "content-type: application/json", *headers]
    head = "\r\n".join([*lines, f"content-length: {len(body)}"]).encode()
    run = Run(head + b"\r\n\r\n" + body, requests=requests, stream=stream)
    loop = asyncio.get_running_loop()
    start = time.perf_counter()
    askers = [
        (await loop.create_connection(lambda: Asker(run), "127.0.0.1", port))[1] for _ in range(connections)
    ]
    await asyncio.gather(*(asker.left for asker in askers))
    seconds = time.perf_counter() - start
    done = len(run.times)
    cuts = statistics.quantiles(run.times, n=100) if done > 1 else [0.0] * 99
    return {
        "requests": done,
        "failed": run.failed,
        "failure": run.failure,
        "seconds": seconds,
        "chunks": run.events,
        "reads": run.reads,
        "requests_per_second": done / seconds,
        "chunks_per_second": run.events / seconds,
        "p50_ms": statistics.median(run.times) * 1000,
        "p99_ms": cuts[98] * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["serve", "ask"])
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--header", action="append", default=[])
    parser.add_argument("--model", default="static")
    parser.add_argument("--size", type=int, default=0, help="bytes of the body, at least")
    parser.add_argument("--tools", type=int, default=0)
    given = parser.parse_args()
    if given.what == "ask":
        body = question(given.model, stream=given.stream, size=given.size, tools=given.tools)
        result = uvloop.run(
            ask(given.port, given.connections, given.requests, given.stream, given.header, body)
        )
        print(json.dumps(result))
        return

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Static, "127.0.0.1", given.port)
        await server.serve_forever()

    uvloop.run(serve())


if __name__ == "__main__":
    main()
