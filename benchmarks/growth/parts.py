"""Parts of one message: processor time, in ms, to find the texts of a request and to scan them for personal data

All is done on the event loop here, in turns; ``tollgate serve`` scans what is long in another process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from gateway.guards.evaluation import Guards, RequestTexts, Screening, build_scanners
from gateway.observe.metrics import Metrics
from gateway.policy.schema import Policy
from gateway.sidecar.client import NoSidecar
from gateway.types import Call, ChatRequest, Principal, Receipt

COLUMNS = (
    "parts",
    "finding them",
    "mask, words alone",
    "mask, a number in each",
    "mask, an address in every 10th",
)
SIZES = (6_000, 60_000, 600_000)
POLICY = Policy.model_validate(
    {
        "version": 1,
        "backends": {"up": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}},
        "models": {"m": {"targets": [{"backend": "up", "model": "u"}]}},
        "guards": {"pii": {"on": ["input"], "action": "mask"}},
    }
)


def rows() -> Iterator[Sequence[object]]:
    for size in SIZES:
        found = [
            asyncio.run(measured(size, *texts)) for texts in (("hi",), ("no 12",), ("hi",) * 9 + ("a@b.org",))
        ]
        yield (size, found[0][0], *(scanned for _, scanned in found))


async def measured(size: int, *texts: str) -> tuple[float, float]:
    guards = Guards(POLICY, build_scanners(POLICY, NoSidecar(), {})).of("acme").input
    parts = [{"type": "text", "text": texts[number % len(texts)]} for number in range(size)]
    call = Call(
        request_id="req_0",
        principal=Principal("key", "acme"),
        request=ChatRequest(model="m", messages=({"role": "user", "content": parts},)),
        policy=POLICY,
        receipt=Receipt("req_0", time.time()),
        started=time.perf_counter(),
    )
    began = time.process_time_ns()
    await RequestTexts.read(call.request)
    reading = time.process_time_ns() - began
    began = time.process_time_ns()
    await Screening(call, guards, Metrics()).run()
    return reading / 1e6, (time.process_time_ns() - began - reading) / 1e6
