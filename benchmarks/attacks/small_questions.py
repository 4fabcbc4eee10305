"""Requests of 150 bytes that have megabytes read: does anybody else wait, and what does the gateway hold?"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from benchmarks.attacks.frame import ALICE, MALLORY, Gateway, Rig, must

POINT = "30.6"
TRIED = (
    "8 connections of mallory's without a pause: input_items of a conversation of 26 MB, the response itself, "
    "both of a conversation of 9,900 letters, follow-ups by previous_response_id, a file_id of 30 MB; alice's chats "
    "meanwhile"
)
HOLDS = "alice waits no longer than 50 ms (p50), or five times what she does alone; no gigabyte of memory"
TURNS, ITEMS, CONTENT = 4, 13, 500_000
FILE = 30_000_000
CONNECTIONS, SECONDS = 8, 8.0
MEDIAN, TIMES, WORST = 0.05, 5, 1.0
"""Seconds that alice may wait; of a machine that others use, too."""
MEMORY = 900_000_000
FLOOD = """
import collections, os, signal, socket, sys, threading, time
request, statuses = sys.stdin.buffer.read(), collections.Counter()
def told(*_):
    os.write(1, ", ".join(f"{count} times {status}" for status, count in statuses.items()).encode())
    os._exit(0)
def flood():
    while True:
        try:
            with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
                sock.sendall(request)
                status = sock.recv(2**18)[9:12].decode()
                while sock.recv(2**18): pass
            statuses[status] += 1
        except OSError:
            status = ""
        if status != "200": time.sleep(0.05)
signal.signal(signal.SIGTERM, told)
for _ in range(int(sys.argv[2])): threading.Thread(target=flood, daemon=True).start()
signal.pause()
"""


async def attack(rig: Rig) -> str:
    gateway = await rig.gateway(rig.policy(), TOLLGATE_MAX_BODY_BYTES=str(48 * 2**20))
    previous = await _conversation(gateway)
    many = await _many(gateway)
    file = await _file(gateway)
    alone, _ = await _alice(gateway, 3.0)
    told = [f"alone {alone * 1000:.0f} ms"]
    bad: list[str] = []
    parts = [{"type": "text", "text": "Hi"}, {"type": "file", "file": {"file_id": file}}]
    more = {"model": "m", "input": "And?", "previous_response_id": previous, "store": False}
    abuses = {
        "input items": _request("GET", f"/v1/responses/{previous}/input_items"),
        "one item": _request("GET", f"/v1/responses/{previous}/input_items?limit=1"),
        "responses": _request("GET", f"/v1/responses/{previous}"),
        "one of many": _request("GET", f"/v1/responses/{many[1]}/input_items?limit=1"),
        "an answer to many": _request("GET", f"/v1/responses/{many[0]}"),
        "follow-ups": _request("POST", "/v1/responses", more),
        "files": _request(
            "POST", "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": parts}]}
        ),
    }
    for name, request in abuses.items():
        # In a process of its own: what it reads must not be in alice's way here.
        flood = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FLOOD, str(gateway.port), str(CONNECTIONS)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        if flood.stdin is None or flood.stdout is None:
            raise RuntimeError("no pipes")
        try:
            flood.stdin.write(request)
            flood.stdin.close()
            await asyncio.sleep(1)
            median, worst = await _alice(gateway, SECONDS)
        finally:
            flood.terminate()
        got = (await flood.stdout.read()).decode().strip()
        await flood.wait()
        memory = max(map(_peak, gateway.workers))
        told.append(f"{name}: {median * 1000:.0f} ms, {worst * 1000:.0f} at most, {memory >> 20} MiB ({got})")
        if median > max(MEDIAN, TIMES * alone) or worst > WORST or memory > MEMORY:
            bad.append(name)
        await asyncio.sleep(1)
    must(not bad, "; ".join(told))
    return "; ".join(told)


async def _conversation(gateway: Gateway) -> str:
    previous = None
    for turn in range(TURNS):
        texts = [f"{turn} {item} " + "river " * (CONTENT // 6) for item in range(ITEMS)]
        body = {
            "model": "m",
            "input": [{"role": "user", "content": text} for text in texts],
            **({"previous_response_id": previous} if previous else {}),
        }
        answer = await gateway.post(MALLORY, body, "/v1/responses")
        must(answer.status_code == 200, f"turn {turn} got {answer.status_code}: {answer.text[:200]}")
        previous = answer.json()["id"]
    return str(previous)


async def _many(gateway: Gateway) -> list[str]:
    """A response to 9,900 letters, and one that follows it."""
    made: list[str] = []
    for letters in (9_900, 1):
        body = {"model": "m", "input": [{"role": "user", "content": "x"}] * letters}
        answer = await gateway.post(
            MALLORY, {**body, "previous_response_id": made[0]} if made else body, "/v1/responses"
        )
        must(answer.status_code == 200, f"{letters} letters got {answer.status_code}: {answer.text[:200]}")
        made.append(answer.json()["id"])
    return made


async def _file(gateway: Gateway) -> str:
    answer = await gateway.http.post(
        "/v1/files",
        headers={"authorization": f"Bearer {MALLORY}"},
        files={"file": ("long.pdf", b"%PDF-1.4\n" + b"x" * FILE)},
        data={"purpose": "user_data"},
    )
    must(answer.status_code == 200, f"the upload got {answer.status_code}: {answer.text[:200]}")
    return str(answer.json()["id"])


def _request(method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    data = b"" if body is None else orjson.dumps(body)
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {MALLORY}\r\ncontent-length: {len(data)}"
    return f"{head}\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n".encode() + data


async def _alice(gateway: Gateway, seconds: float) -> tuple[float, float]:
    """The median and the longest of her waits."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        answer = await gateway.chat(ALICE, f"Hi at {began}")
        must(answer.status_code == 200, f"alice got {answer.status_code}: {answer.text[:150]}")
        times.append(time.monotonic() - began)
        await asyncio.sleep(0.01)
    return statistics.median(times), max(times)


def _peak(pid: int) -> int:
    """Bytes that the process has had in memory at most."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
