"""Records made where requests queue: they tell what the backend took apart from what the queue did, and replays use it.

No time is compared with the clock's: a backend that answers one request after the other makes each wait for as long as
all before it took, however slow the machine is.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.lab.replay.service_times import ServiceTimes
from gateway.lab.replay.survey import survey
from gateway.recording.recorded_request import RecordedRequest
from tests.fakes import FakeUpstream, answer_events, stream
from tests.recordings import at_once, recorded
from tests.serving import KEY, Gateway, key, serving

pytestmark = pytest.mark.anyio

WAITING = 10
TAKES = 0.05
"""Seconds that the backend takes for an answer, at least."""


async def test_a_wait_in_the_queue_is_no_time_of_the_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(monkeypatch)
    may_end = asyncio.Event()
    events = answer_events("Hello", " there")
    async with FakeUpstream(stream(may_end, *events), stream(TAKES, *events)) as up:
        policy = {
            "version": 1,
            "backends": {"up": {"kind": "openai", "base_url": up.base_url, "max_concurrency": 1}},
            "models": {
                "m": {"targets": [{"backend": "up", "model": "x"}]},
                "first": {"targets": [{"backend": "up", "model": "y"}]},
            },
            "tiers": {"default": {"max_wait": "10m"}},
            "keys": [key(KEY, "one", tenant="acme")],
            "record": {"enabled": True, "rotate": "50ms"},
        }
        async with serving(tmp_path / "policies", policy) as gateway:
            holds = asyncio.create_task(ask(gateway, "first"))
            await up.arrived()
            others = [asyncio.create_task(ask(gateway, "m")) for _ in range(WAITING)]
            await waiting(gateway, WAITING)
            may_end.set()
            assert await asyncio.gather(holds, *others) == [200] * (WAITING + 1)
            found = await recorded(tmp_path, WAITING + 1)
    queued = [one for one in found if one.model == "m"]
    for one in queued:
        assert one.queued is not None and one.sent is not None and one.duration is not None
        assert one.ttft is not None
        assert 0 < one.queued <= one.sent < one.ttft <= one.duration
        assert (one.since_sent(one.ttft) or 0.0) >= TAKES  # the fake's own sleep is in it
    assert max(one.queued or 0.0 for one in queued) >= (WAITING - 1) * TAKES  # the last waits for all others
    assert RecordedRequest.from_json({"at": 1.0, "ttft": 2.0}).since_sent(2.0) == 2.0  # of an older gateway

    told = measured(tmp_path, queued)
    untold = measured(tmp_path, [replace(one, queued=None, sent=None) for one in queued])
    # The mean of waits that add up is five times what one takes.
    assert (
        TAKES <= told.to_first(queued[0].prompt_tokens, 1) < untold.to_first(queued[0].prompt_tokens, 1) / 2
    )


def measured(folder: Path, records: list[RecordedRequest]) -> ServiceTimes:
    path = folder / "trace.jsonl"
    path.write_bytes(b"\n".join(one.to_json() for one in records))
    return survey(path, None).measured["up", "x"]


async def waiting(gateway: Gateway, count: int) -> None:
    """Until so many are in the queue."""
    async with asyncio.timeout(300):
        while (await gateway.metrics()).get('tollgate_backend_requests_waiting{backend="up"}') != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def ask(gateway: Gateway, model: str) -> int:
    asked = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    return (await gateway.http.post("/v1/chat/completions", json=asked)).status_code
