"""What callers feel of a batch: the time to the first token of a stream, without a batch and beside one.

    python -m benchmarks.batches [--lines 5000] [--rate 20] [--utilization 0.5] [--slice 20] [--most 900] [--json FILE]

A scripted server answers ``SLOTS`` requests at once and has the others wait in its own queue, first come first served:
the first token after 50 ms, then one every 10 ms. Streams arrive at random (Poisson) at ``--rate`` a second all the
time. A batch of ``--lines`` runs for ``--slice`` seconds and is held for as long (``batches.enabled``), in
turn, until it has ended or ``--most`` seconds are over: what else the machine does falls on both alike. The first
seconds after each change count for neither. ``--as-requests`` sends what the lines ask as 64 plain requests at once
instead, of another tenant, in the same slices: what a batch is there to avoid.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import orjson
import yaml

from benchmarks.processes import free_port, running, wait_for

SLOTS = 16
FIRST, EACH, TOKENS = 0.05, 0.01, 20
"""Seconds to the first token and between tokens, and tokens of an answer."""
KEY, OTHER = "tg-benchmark-batches", "tg-benchmark-others"
PATH = "/v1/chat/completions"
SETTLE = 3.0
"""Seconds after a change that count for neither."""


# The server.


class Server:
    def __init__(self, slots: int) -> None:
        self._slots = asyncio.Semaphore(slots)

    async def serve(self, port: int) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", port)
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0] or 0)
                body = orjson.loads(await reader.readexactly(length)) if length else {}
                gone = asyncio.create_task(reader.read(1))
                answer = asyncio.create_task(self._answer(writer, stream=bool(body.get("stream"))))
                await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    answer.cancel()
                    return
                answer.result()
                gone.cancel()
                with suppress(asyncio.CancelledError):
                    await gone
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, *, stream: bool) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": TOKENS, "total_tokens": 9 + TOKENS}
        async with self._slots:
            await asyncio.sleep(FIRST)
            if not stream:
                await asyncio.sleep(EACH * TOKENS)
                message = {"role": "assistant", "content": "word " * TOKENS}
                whole = {
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": usage,
                }
                body = orjson.dumps(whole)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % len(body)
                )
                writer.write(body)
                await writer.drain()
                return
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for number in range(TOKENS):
                choice = {"index": 0, "delta": {"content": f"word{number} "}, "finish_reason": None}
                _chunk(writer, orjson.dumps({"choices": [choice]}))
                await writer.drain()
                await asyncio.sleep(EACH)
            last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
            _chunk(writer, orjson.dumps(last))
            _chunk(writer, b"[DONE]")
            writer.write(b"0\r\n\r\n")
            await writer.drain()


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    event = b"data: " + data + b"\n\n"
    writer.write(b"%x\r\n%b\r\n" % (len(event), event))


# The load.


@dataclass
class Sample:
    """Of one stretch of time."""

    first: list[float] = field(default_factory=list)
    """Seconds to the first token."""
    whole: list[float] = field(default_factory=list)
    failed: int = 0

    def __add__(self, other: Sample) -> Sample:
        return Sample(self.first + other.first, self.whole + other.whole, self.failed + other.failed)

    def told(self) -> dict[str, float]:
        first = sorted(self.first)
        return {
            "streams": len(first),
            "failed": self.failed,
            "ttft_p50_ms": 1000 * statistics.median(first),
            "ttft_p99_ms": 1000 * first[int(0.99 * len(first))],
            "ttft_max_ms": 1000 * first[-1],
            "whole_p99_ms": 1000 * sorted(self.whole)[int(0.99 * len(self.whole))],
        }


async def one_stream(http: aiohttp.ClientSession, sample: Sample, number: int) -> None:
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": f"Hello {number}"}]}
    began = time.perf_counter()
    try:
        async with http.post(PATH, json=body) as answer:
            answer.raise_for_status()
            first = 0.0
            async for line in answer.content:
                if not first and line.startswith(b"data:") and b"word" in line:
                    first = time.perf_counter() - began
            sample.first.append(first)
            sample.whole.append(time.perf_counter() - began)
    except aiohttp.ClientError:
        sample.failed += 1


@asynccontextmanager
async def load(http: aiohttp.ClientSession, rate: float, random: Random) -> AsyncIterator[Sample]:
    """Streams arrive within the block."""
    sample, streams = Sample(), set[asyncio.Task[None]]()

    async def arrive() -> None:
        due = time.perf_counter()
        while True:
            due += random.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(one_stream(http, sample, len(streams)))
            streams.add(task)

    arriving = asyncio.create_task(arrive())
    try:
        yield sample
    finally:
        arriving.cancel()
        await asyncio.gather(arriving, *streams, return_exceptions=True)


def lines(count: int) -> bytes:
    shared = "You are a careful clerk who files letters. " * 12
    return b"\n".join(
        orjson.dumps(
            {
                "custom_id": f"letter {number}",
                "method": "POST",
                "url": PATH,
                "body": {
                    "model": "m",
                    "messages": [
                        {"role": "system", "content": shared},
                        {"role": "user", "content": f"Letter {number}"},
                    ],
                },
            }
        )
        for number in range(count)
    )


async def start_batch(http: aiohttp.ClientSession, count: int) -> str:
    """Its id."""
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", lines(count), filename="input.jsonl")
    async with http.post("/v1/files", data=form) as answer:
        file = (await answer.json())["id"]
    asked = {"input_file_id": file, "endpoint": PATH, "completion_window": "24h"}
    async with http.post("/v1/batches", json=asked) as answer:
        return str((await answer.json())["id"])


class Requests:
    """The same questions as plain requests, 64 at once."""

    def __init__(self, http: aiohttp.ClientSession, count: int) -> None:
        self._http = http
        self._waiting = iter(lines(count).splitlines())
        self._workers: list[asyncio.Task[None]] = []
        self.done = 0

    async def run(self, *, on: bool) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers = [asyncio.create_task(self._work()) for _ in range(64 if on else 0)]

    async def _work(self) -> None:
        headers = {"authorization": f"Bearer {OTHER}"}
        for line in self._waiting:
            async with self._http.post(PATH, json=orjson.loads(line)["body"], headers=headers) as answer:
                await answer.read()
                self.done += answer.status == 200


async def measure(port: int, folder: Path, upstream: int, options: argparse.Namespace) -> dict[str, Any]:
    random = Random(0)
    connector = aiohttp.TCPConnector(limit=0)
    found = {True: Sample(), False: Sample()}
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}",
        headers={"authorization": f"Bearer {KEY}"},
        timeout=aiohttp.ClientTimeout(total=None),
        connector=connector,
    ) as http:
        requests = Requests(http, options.lines) if options.as_requests else None
        name = "" if requests is not None else await start_batch(http, options.lines)
        began, on, done, slices = time.perf_counter(), False, 0, 0
        while time.perf_counter() - began < options.most and done < options.lines:
            async with load(http, options.rate, random):
                write(folder, upstream, options, on=on)
                if requests is not None:
                    await requests.run(on=on)
                await asyncio.sleep(SETTLE)
            async with load(http, options.rate, random) as sample:
                await asyncio.sleep(options.slice)
            found[on] += sample
            slices += 1
            if requests is not None:
                done = requests.done
            else:
                async with http.get(f"/v1/batches/{name}") as answer:
                    done = (await answer.json())["request_counts"]["completed"]
            on = not on
        if requests is not None:
            await requests.run(on=False)
        async with http.get("/metrics", headers={"authorization": "Bearer metrics-token"}) as answer:
            page = await answer.text()
    runs = {
        name.partition('outcome="')[2].partition('"')[0]: float(value)
        for name, _, value in (line.rpartition(" ") for line in page.splitlines())
        if name.startswith("tollgate_batch_line_runs_total{")
    }
    return {
        "held": found[False].told(),
        "beside": found[True].told(),
        "lines": done,
        "slices": slices,
        "seconds": time.perf_counter() - began,
        "runs": runs,
    }


def write(folder: Path, upstream: int, options: argparse.Namespace, *, on: bool) -> None:
    fresh = folder / "gateway.yaml.new"
    fresh.write_text(yaml.safe_dump(policy(upstream, options, on=on)))
    fresh.replace(folder / "gateway.yaml")


def policy(port: int, options: argparse.Namespace, *, on: bool) -> dict[str, Any]:
    def key(text: str, name: str) -> dict[str, Any]:
        return {"id": name, "sha256": sha256(text.encode()).hexdigest(), "tenant": name}

    return {
        "version": 1,
        "backends": {
            "up": {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "max_concurrency": SLOTS}
        },
        "models": {"m": {"targets": [{"backend": "up", "model": "m"}]}},
        "keys": [key(KEY, "callers"), key(OTHER, "others")],
        "batches": {"enabled": on or options.as_requests, "max_utilization": options.utilization},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--slice", type=float, default=20.0)
    parser.add_argument("--most", type=float, default=900.0)
    parser.add_argument("--utilization", type=float, default=0.5)
    parser.add_argument("--as-requests", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(Server(SLOTS).serve(options.serve))
        return
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name, ExitStack() as stack:
        folder, upstream, port = Path(name), free_port(), free_port()
        write(folder, upstream, options, on=True)
        here = [sys.executable, "-m", "benchmarks.batches", "--serve", str(upstream)]
        stack.enter_context(running(here, cores=cores))
        env = {"TOLLGATE_STATE_DIR": str(folder / "state"), "TOLLGATE_METRICS_TOKEN": "metrics-token"}
        argv = [sys.executable, "-m", "gateway", "serve", "--policies", str(folder), "--port", str(port)]
        stack.enter_context(running(argv, cores=cores, env=env))
        wait_for(port, "/readyz")
        found = asyncio.run(measure(port, folder, upstream, options))
    held, beside = found["held"], found["beside"]
    for share in ("p50", "p99"):
        before, after = held[f"ttft_{share}_ms"], beside[f"ttft_{share}_ms"]
        print(
            f"TTFT {share} {before:.1f} ms held, {after:.1f} ms beside it: {100 * (after / before - 1):+.1f} %"
        )
    print(
        f"{found['lines']} of {options.lines} lines in {found['seconds']:.0f} s, half of them held; "
        f"runs {found['runs']}; "
        f"{held['streams']} and {beside['streams']} streams, {held['failed'] + beside['failed']} failed"
    )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
