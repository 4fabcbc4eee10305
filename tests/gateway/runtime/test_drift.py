"""A gateway that looks for drifts: what it counts of requests, and whom it tells of what."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from gateway.databases.opening import open_tables
from gateway.drift.hour_sketch import HourSketch, merged
from gateway.drift.table import DRIFT, HOUR, WEEK, DriftTable, Place
from gateway.policy.schema import LedgerSettings
from tests.drifts import settled
from tests.fakes import FakeUpstream, answer_events, completion, reply, stream
from tests.serving import KEY, Gateway, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"
JSON = {"response_format": {"type": "json_object"}}


def tables(folder: Path) -> DriftTable:
    return DriftTable(open_tables(DRIFT, LedgerSettings(), folder))


def counted(table: DriftTable, place: Place, measure: str) -> Counter[Any]:
    hours = table.hours(0, int(time.time()) + HOUR, place)
    return merged(one.of(measure) for one in hours.values())


async def test_what_a_gateway_counts_is_there_when_it_has_stopped(tmp_path: Path) -> None:
    refused = {"role": "assistant", "content": None, "refusal": "I will not."}
    declined = completion("")
    declined["choices"][0]["message"] = refused
    async with (
        FakeUpstream(reply(completion("{")), reply(declined), stream(*answer_events("no ", "JSON"))) as up,
        serving(tmp_path / "p", a_policy(up.base_url, drift={}), state_dir=tmp_path) as gateway,
    ):
        for body in (
            {**chat("up", "Was ist das, und wie geht es?"), **JSON},
            chat("up", "How do I do that, and is it the right thing?"),
            {**chat("up", "Is this what you are?"), **JSON, "stream": True},
            {**chat("fake", "Is this what you are?"), **JSON},
        ):
            assert (await gateway.http.post(CHAT, json=body)).status_code == 200
        assert (await gateway.http.post(CHAT, json=chat("down", "Hi"))).status_code >= 500
    table = tables(tmp_path)
    up_, fake = Place("up", CHAT), Place("fake", CHAT)
    assert counted(table, up_, "languages") == {"de": 1, "en": 2}
    assert counted(table, up_, "refusals") == {1: 1, 0: 2}
    assert counted(table, up_, "json_failures") == {1: 2}
    assert counted(table, fake, "json_failures") == {1: 1}
    assert counted(table, up_, "first_token").total() == 1
    assert counted(table, up_, "seconds").total() == 3
    assert counted(table, up_, "prompt_tokens").total() == 3
    assert counted(table, Place("down", CHAT), "seconds").total() == 0
    text = (tmp_path / "drift.sqlite").read_bytes()
    assert b"right thing" not in text and b"JSON" not in text


async def test_what_caches_answer_says_nothing_of_the_model(tmp_path: Path) -> None:
    policy = a_policy("http://127.0.0.1:1/v1", drift={}, caches={"exact": {"ttl": "1h"}})
    async with serving(tmp_path / "p", policy, state_dir=tmp_path) as gateway:
        for _ in range(3):
            await gateway.http.post(CHAT, json=chat("fake", "How is it that you are here?"))
    table, fake = tables(tmp_path), Place("fake", CHAT)
    assert counted(table, fake, "languages") == {"en": 3}
    assert counted(table, fake, "seconds").total() == counted(table, fake, "refusals").total() == 1


def share(yes: int) -> HourSketch:
    return HourSketch({"refusals": Counter({1: yes, 0: 1000 - yes})})


def drifting(table: DriftTable) -> None:
    """Four weeks in which a model refuses 1 %, and hours up to now in which it refuses 6 %."""
    place, now = Place("fake", CHAT), int(time.time()) // HOUR * HOUR
    hours = range(now - 6 * HOUR, now + 2 * HOUR, HOUR)
    table.add(
        {(hour, place): share(60) for hour in hours}
        | {(hour - WEEK * back, place): share(10 + back) for hour in hours for back in range(1, 5)}
    )
    table.judge(now - 6 * HOUR, lambda rows: rows.keep(place, {"refusals": settled()}))


async def test_a_drift_is_told_to_all_who_are_to_hear_of_it(tmp_path: Path) -> None:
    drifting(tables(tmp_path))
    async with FakeUpstream(reply("", status=204)) as receiver:
        callback = {"url": f"http://127.0.0.1:{receiver.port}/hook", "secret": SECRET, "timeout": "60s"}
        policy = a_policy("http://127.0.0.1:1/v1", drift={}, callbacks=[callback])
        async with serving(tmp_path / "p", policy, state_dir=tmp_path) as gateway:
            await receiver.arrived(1)
            await shown(gateway)
        event = Webhook(SECRET).verify(receiver.requests[0].body, receiver.requests[0].headers)
        async with serving(tmp_path / "p", policy, state_dir=tmp_path) as gateway:  # another finds it told
            await shown(gateway)
        assert len(receiver.requests) == 1
    assert event["type"] == "drift.found"
    told = event["data"]
    assert (told["model"], told["route"], told["measure"], told["test"]) == ("fake", CHAT, "refusals", "psi")
    assert (told["now"], told["requests"]) == (0.06, 1000)
    entries = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    [entry] = [one for one in entries if one["action"] == "drift.found"]
    assert (entry["target"], entry["measure"], entry["test"]) == ("fake", "refusals", "psi")


_GAUGE = f'tollgate_drifts{{measure="refusals",model="fake",route="{CHAT}"}}'


async def shown(gateway: Gateway) -> None:
    """Wait until the drift is in the metrics."""
    async with asyncio.timeout(300):
        while (await gateway.metrics()).get(_GAUGE) != 1.0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_without_the_key_nothing_is_counted(tmp_path: Path) -> None:
    policy = a_policy("http://127.0.0.1:1/v1")
    policy["keys"] = [key(KEY, "acme-1")]
    async with serving(tmp_path / "p", policy, state_dir=tmp_path) as gateway:
        assert (await gateway.http.post(CHAT, json=chat("fake", "Hi"))).status_code == 200
    assert not (tmp_path / "drift.sqlite").exists()
