"""What the keys of ``callbacks`` do: ``other`` is the receiver."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from gateway.observe.callback_endpoint import signed_headers
from tests.e2e.keys.harness import OTHER, Look, Row, Site, a_site, shows
from tests.fakes import Action, completion, reply
from tests.serving import KEY, OPERATOR, key

pytestmark = pytest.mark.anyio

ONE, TWO = (f"whsec_{base64.b64encode(bytes([number]) * 32).decode()}" for number in (1, 2))
GUARD = {"guards": {"it": {"kind": "topics", "words": ["cat"], "action": "block"}}}
TAKEN = (reply("", status=204),)
BUDGET = {
    "keys": [key(KEY, "one", tenant="acme", budget={"usd_per_day": 100.0})],
    "prices": {"u": {"input": 0, "output": 1_000_000}},
}
"""A dollar for each of an answer's three tokens."""


def callback(**more: Any) -> dict[str, Any]:
    return {**GUARD, "callbacks": [{"url": OTHER, "secret": ONE, **more}]}


async def is_told(site: Site) -> bool:
    """Whether it has been told of something: what is beyond ``per_minute`` is counted at once."""
    for _ in range(4):
        await site.ask("cat")
    page = (await site.gateway.http.get("/metrics", headers=OPERATOR)).text
    return 'tollgate_callbacks_total{event="guard",outcome="limited"}' in page


def told(read: Any) -> Look:
    async def look(site: Site) -> Any:
        await site.ask("cat")
        return read(await site.other.arrived())

    return look


def verified_by(secret: str) -> Any:
    def read(request: Any) -> bool:
        headers = request.headers
        signed = signed_headers(
            [base64.b64decode(secret.removeprefix("whsec_"))],
            headers["webhook-id"],
            int(headers["webhook-timestamp"]),
            request.body,
        )
        return signed["webhook-signature"] in headers["webhook-signature"].split(" ")

    return read


ROWS = [
    Row("callbacks", callback(per_minute=1), is_told, True, False, GUARD, other=TAKEN),
    Row(
        "callbacks[].url",
        callback(url=f"{OTHER}/hook"),
        told(lambda request: request.path),
        "/v1/hook",
        "/v1",
        callback(),
        other=TAKEN,
    ),
    Row(
        "callbacks[].secret",
        callback(secret=TWO),
        told(verified_by(TWO)),
        True,
        False,
        callback(),
        other=TAKEN,
    ),
    Row(
        "callbacks[].previous_secret",
        callback(previous_secret=TWO),
        told(verified_by(TWO)),
        True,
        False,
        callback(),
        other=TAKEN,
    ),
    Row(
        "callbacks[].events",
        callback(per_minute=1, events=["budget"]),
        is_told,
        False,
        True,
        callback(per_minute=1),
        other=TAKEN,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@shows("callbacks[].budget_at")
@pytest.mark.parametrize("share", [0.01, 0.03])
async def test_the_share_of_a_budget(tmp_path: Path, share: float) -> None:
    policy = BUDGET | {
        "callbacks": [{"url": OTHER, "secret": ONE, "events": ["budget"], "budget_at": [share]}]
    }
    async with a_site(tmp_path, policy, (reply(completion()),), TAKEN) as site:
        await site.ask(model="up", max_tokens=3)
        assert (await site.other.arrived()).json()["data"]["share"] == share


@shows("callbacks[].per_minute")
@pytest.mark.parametrize(("more", "limited"), [({"per_minute": 1}, True), ({}, False)])
async def test_messages_in_a_minute(tmp_path: Path, more: dict[str, Any], limited: bool) -> None:
    async with a_site(tmp_path, callback(**more), other=TAKEN) as site:
        for _ in range(4):  # of which a minute that begins in between lets two pass
            await site.ask("cat")
        page = (await site.gateway.http.get("/metrics", headers=OPERATOR)).text
    assert ('outcome="limited"' in page) == limited


@shows("callbacks[].timeout")
async def test_an_attempt_has_its_time(tmp_path: Path) -> None:
    async with a_site(tmp_path, callback(timeout="50ms"), other=((Action.HANG,), *TAKEN)) as site:
        await site.ask("cat")
        await site.other.arrived(2)
    gate = asyncio.Event()
    async with a_site(tmp_path / "2", callback(), other=((gate, *TAKEN[0]), *TAKEN)) as site:
        await site.ask("cat")
        first = await site.other.arrived(1)
        assert not first.left.is_set()
        gate.set()
        await first.finished.wait()
