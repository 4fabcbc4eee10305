"""What callers feel of a batch: the time to the first token of a stream, without a batch and beside one.

    python -m benchmarks.batches [--lines 5000] [--rate 20] [--utilization 0.5] [--repeats 1] [--json FILE]

A scripted server answers ``SLOTS`` requests at once and has the others wait in its own queue, first come first served:
the first token after 50 ms, then one every 10 ms. Streams arrive at random (Poisson) at ``--rate`` a second, for
``--quiet`` seconds, then while a batch of ``--lines`` runs, then again without one. The two quiet stretches are one
sample; how far they differ from each other says what the machine does by itself. ``--as-requests`` sends what the
lines ask as 64 plain requests at once instead, of another tenant: what a batch is there to avoid.
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


async def run_batch(http: aiohttp.ClientSession, count: int) -> dict[str, Any]:
    """Until it has ended."""
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", lines(count), filename="input.jsonl")
    async with http.post("/v1/files", data=form) as answer:
        file = (await answer.json())["id"]
    asked = {"input_file_id": file, "endpoint": PATH, "completion_window": "24h"}
    async with http.post("/v1/batches", json=asked) as answer:
        batch = await answer.json()
    while batch["status"] not in ("completed", "failed", "expired", "cancelled"):
        await asyncio.sleep(0.5)
        async with http.get(f"/v1/batches/{batch['id']}") as answer:
            batch = await answer.json()
    return dict(batch)


async def run_requests(http: aiohttp.ClientSession, count: int, at_once: int = 64) -> dict[str, Any]:
    """The same questions as plain requests."""
    waiting = iter(lines(count).splitlines())
    headers = {"authorization": f"Bearer {OTHER}"}
    done = 0

    async def worker() -> None:
        nonlocal done
        for line in waiting:
            async with http.post(PATH, json=orjson.loads(line)["body"], headers=headers) as answer:
                await answer.read()
                done += answer.status == 200

    await asyncio.gather(*(worker() for _ in range(at_once)))
    return {"status": "completed", "request_counts": {"completed": done}}


async def measure(port: int, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    random = Random(seed)
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}",
        headers={"authorization": f"Bearer {KEY}"},
        timeout=timeout,
        connector=connector,
    ) as http:
        async with load(http, options.rate, random):
            await asyncio.sleep(3)
        quiet = []
        async with load(http, options.rate, random) as sample:
            await asyncio.sleep(options.quiet)
        quiet.append(sample)
        began = time.perf_counter()
        async with load(http, options.rate, random) as beside:
            run = run_requests if options.as_requests else run_batch
            batch = await run(http, options.lines)
        seconds = time.perf_counter() - began
        async with load(http, options.rate, random) as sample:
            await asyncio.sleep(options.quiet)
        quiet.append(sample)
        async with http.get("/metrics", headers={"authorization": "Bearer metrics-token"}) as answer:
            page = await answer.text()
    runs = {
        name.partition('outcome="')[2].partition('"')[0]: float(value)
        for name, _, value in (line.rpartition(" ") for line in page.splitlines())
        if name.startswith("tollgate_batch_line_runs_total{")
    }
    return {
        "quiet": sum(quiet, Sample()).told(),
        "quiet_by_itself": [one.told()["ttft_p99_ms"] for one in quiet],
        "beside": beside.told(),
        "batch": batch["status"],
        "completed": batch["request_counts"]["completed"],
        "seconds": seconds,
        "runs": runs,
    }


def policy(port: int, options: argparse.Namespace) -> dict[str, Any]:
    def key(text: str, name: str) -> dict[str, Any]:
        return {"id": name, "sha256": sha256(text.encode()).hexdigest(), "tenant": name}

    return {
        "version": 1,
        "backends": {
            "up": {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "max_concurrency": SLOTS}
        },
        "models": {"m": {"targets": [{"backend": "up", "model": "m"}]}},
        "keys": [key(KEY, "callers"), key(OTHER, "others")],
        "batches": {"max_utilization": options.utilization},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--quiet", type=float, default=60.0)
    parser.add_argument("--utilization", type=float, default=0.5)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--as-requests", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(Server(SLOTS).serve(options.serve))
        return
    found = []
    cores = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name, ExitStack() as stack:
        folder, upstream, port = Path(name), free_port(), free_port()
        (folder / "gateway.yaml").write_text(yaml.safe_dump(policy(upstream, options)))
        here = [sys.executable, "-m", "benchmarks.batches", "--serve", str(upstream)]
        stack.enter_context(running(here, cores=cores))
        env = {"TOLLGATE_STATE_DIR": str(folder / "state"), "TOLLGATE_METRICS_TOKEN": "metrics-token"}
        argv = [sys.executable, "-m", "gateway", "serve", "--policies", str(folder), "--port", str(port)]
        stack.enter_context(running(argv, cores=cores, env=env))
        wait_for(port, "/readyz")
        for repeat in range(options.repeats):
            one = asyncio.run(measure(port, options, repeat))
            found.append(one)
            quiet, beside = one["quiet"], one["beside"]
            rise = beside["ttft_p99_ms"] / quiet["ttft_p99_ms"] - 1
            print(
                f"TTFT p50 {quiet['ttft_p50_ms']:.1f} ms, p99 {quiet['ttft_p99_ms']:.1f} ms without a batch "
                f"({', '.join(f'{p99:.1f}' for p99 in one['quiet_by_itself'])} before and after); p50 "
                f"{beside['ttft_p50_ms']:.1f} ms, p99 {beside['ttft_p99_ms']:.1f} ms beside it: {100 * rise:+.1f} %. "
                f"{one['completed']} of {options.lines} lines in {one['seconds']:.0f} s, runs {one['runs']}; "
                f"{quiet['failed'] + beside['failed']} streams failed",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
