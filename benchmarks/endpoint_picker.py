"""What a pick costs: ``tollgate epp`` as a process, asked over gRPC as a gateway asks it.

    python -m benchmarks.endpoint_picker [--requests 2000] [--engines 8] [--json]

Each request is one stream as Envoy has it with FULL_DUPLEX_STREAMED: headers, body, the answer's headers and its end.
The time of a pick is from the last piece of the body to the first answer, at the client; the processor time is the
picker's, of the whole stream. Engines are addresses alone: nothing is sent to them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from grpc import aio

from benchmarks.processes import ended_in_order
from gateway.picker.messages import SERVICE, Messages, messages

SELECTS = ("least_loaded", "prefix_affinity")
SIZES = (("1 KiB", 2**10), ("16 KiB", 2**14), ("256 KiB", 2**18), ("8 MiB", 2**23))
PIECE = 65_536
FULL_DUPLEX = 4
BIG = [("grpc.max_receive_message_length", 2**26), ("grpc.max_send_message_length", 2**26)]


@contextmanager
def picker(select: str, engines: int) -> Iterator[tuple[str, int]]:
    """Its address and process id."""
    replicas = [f"http://10.0.{number // 250}.{number % 250 + 1}:8000/v1" for number in range(engines)]
    policy = {
        "version": 1,
        "backends": {"pool": {"kind": "openai", "replicas": replicas}},
        "models": {"m": {"targets": [{"backend": "pool", "model": "m"}], "select": select}},
    }
    with ended_in_order(), TemporaryDirectory() as folder:
        (Path(folder) / "policy.yaml").write_text(json.dumps(policy))
        command = [sys.executable, "-m", "gateway", "epp", "--policies", folder, "--metrics-port", "0"]
        command += ["--listen", "127.0.0.1:0", "--health", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            found = re.fullmatch(r"endpoint picker ready on (\S+)\n", process.stdout.readline())
            if found is None:
                raise RuntimeError("the endpoint picker did not start")
            yield found[1], process.pid
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Asker:
    def __init__(self, channel: aio.Channel, kinds: Messages, body: bytes) -> None:
        request = kinds.request
        self._open = channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=request.SerializeToString,
            response_deserializer=kinds.response.FromString,
        )
        headers = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
        values = [{"key": name, "raw_value": value.encode()} for name, value in headers.items()]
        modes = {"request_body_mode": FULL_DUPLEX, "response_body_mode": FULL_DUPLEX}
        self._headers = request(request_headers={"headers": {"headers": values}}, protocol_config=modes)
        starts = range(0, len(body), PIECE)
        self._pieces = [
            request(
                request_body={
                    "body": body[start : start + PIECE],
                    "end_of_stream": start + PIECE >= len(body),
                }
            )
            for start in starts
        ]
        answer = {"headers": {"headers": [{"key": ":status", "raw_value": b"200"}]}}
        self._answer = [
            request(response_headers=answer),
            request(response_body={"body": b"{}", "end_of_stream": True}),
        ]

    async def __call__(self) -> float:
        """Seconds of the pick."""
        call = self._open()
        await call.write(self._headers)
        for piece in self._pieces:
            await call.write(piece)
        began = time.perf_counter()
        response: Any = await call.read()
        seconds = time.perf_counter() - began
        if response is aio.EOF or not response.HasField("request_headers"):
            raise RuntimeError(f"no engine was picked: {response}")
        while not response.request_body.response.body_mutation.streamed_response.end_of_stream:
            response = await call.read()
        for one in self._answer:
            await call.write(one)
            await call.read()
        await call.done_writing()
        await call.read()
        return seconds


async def measure(address: str, pid: int, size: int, requests: int, at_once: int) -> dict[str, float]:
    content = "the quick brown fox " * (size // 20)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    async with aio.insecure_channel(address, options=BIG) as channel:
        ask = Asker(channel, messages(), body)
        await asyncio.gather(*(ask() for _ in range(at_once)))  # what is made once
        times: list[float] = []

        async def some(count: int) -> None:
            for _ in range(count):
                times.append(await ask())  # noqa: PERF401

        used, began = processor_seconds(pid), time.perf_counter()
        await asyncio.gather(*(some(max(1, requests // at_once)) for _ in range(at_once)))
        took = time.perf_counter() - began
        used = processor_seconds(pid) - used
    return {
        "p50": median(times),
        "p99": quantiles(times, n=100)[98],
        "processor": used / len(times),
        "rate": len(times) / took,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for select in SELECTS:
        with picker(select, given.engines) as (address, pid):
            for name, size in SIZES:
                for at_once in (1, 32):
                    requests = max(
                        2, min(given.requests, 2**30 // size, given.requests * 2**14 // size or 64)
                    )
                    found = asyncio.run(measure(address, pid, size, max(requests, 2 * at_once), at_once))
                    rows.append({"select": select, "body": name, "at once": at_once, **found})
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    print("| select | body | at once | a pick, p50 | p99 | processor time | requests/s |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for row in rows:
        times = [f"{row[name] * 1e3:.2f} ms" for name in ("p50", "p99", "processor")]
        print(
            f"| {row['select']} | {row['body']} | {row['at once']} | {' | '.join(times)} | {row['rate']:,.0f} |"
        )


if __name__ == "__main__":
    main()
