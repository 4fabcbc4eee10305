"""How a message gets to its receiver, and when it does not: a real server that fails in many ways."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import ValidationError
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gateway.backends.transport import OutgoingTransport
from gateway.observe.callback_endpoint import MAX_WAITING, CallbackEndpoint, Message, signed_headers
from gateway.observe.metrics import Metrics
from gateway.policy.schema.callbacks import Callback
from tests.fakes import Action, FakeUpstream, Script, reply

pytestmark = pytest.mark.anyio

SECRET = f"whsec_{base64.b64encode(bytes(32)).decode()}"
OTHER = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"
OK = reply("", status=204)
BODY = b'{"type":"guard.blocked"}'
SOON = (0.001, 0.001)
VECTOR = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
OTHER_KEY = bytes(range(32))


@dataclass
class Bench:
    server: FakeUpstream
    endpoint: CallbackEndpoint
    metrics: Metrics

    def add(self, id: str = "msg_1") -> None:
        self.endpoint.add(Message(id, "guard", BODY))

    async def done(self) -> None:
        async with asyncio.timeout(300):
            while self.endpoint._tasks:
                await asyncio.wait(self.endpoint._tasks)

    def outcomes(self) -> dict[str, int]:
        lines = [line for line in self.metrics.render().decode().splitlines() if "callbacks_total{" in line]
        counts: Counter[str] = Counter()
        for line in lines:
            counts[line.split('outcome="')[1].split('"')[0]] += int(float(line.split()[-1]))
        return dict(counts)


@asynccontextmanager
async def bench(*scripts: Script, delays: Any = SOON, **config: Any) -> AsyncIterator[Bench]:
    transport, metrics = OutgoingTransport(), Metrics()
    async with FakeUpstream(*scripts) as server:
        callback = Callback.model_validate(
            {"url": f"http://127.0.0.1:{server.port}/hook", "secret": SECRET, **config}
        )
        endpoint = CallbackEndpoint(callback, transport, metrics, delays=delays)
        yield Bench(server, endpoint, metrics)
        await endpoint.aclose(0.0)
        await transport.aclose()


async def test_a_message_is_signed_so_that_its_receiver_can_verify_it() -> None:
    async with bench(OK, previous_secret=OTHER) as it:
        it.add()
        await it.done()
    (request,) = it.server.requests
    assert (request.path, request.headers["content-type"]) == ("/hook", "application/json")
    assert request.headers["webhook-id"] == "msg_1"
    for secret in (SECRET, OTHER):
        assert Webhook(secret).verify(request.body, request.headers) == {"type": "guard.blocked"}
    assert it.outcomes() == {"delivered": 1}


@pytest.mark.parametrize(
    "failure",
    [
        reply("no", status=500),
        reply("no", status=404),
        reply("", status=302, headers={"location": "/other"}),
        (Action.ABORT,),
        (Action.CLOSE,),
    ],
    ids=["500", "404", "redirect", "reset", "closed"],
)
async def test_what_fails_is_tried_again_under_its_id(failure: Script) -> None:
    async with bench(failure, failure, OK) as it:
        it.add()
        await it.done()
    assert [request.headers["webhook-id"] for request in it.server.requests] == ["msg_1"] * 3
    assert {request.path for request in it.server.requests} == {"/hook"}
    assert it.outcomes() == {"retried": 2, "delivered": 1}


async def test_after_the_last_attempt_it_is_counted_as_failed(caplog: pytest.LogCaptureFixture) -> None:
    async with bench(reply("no", status=500)) as it:
        it.add()
        await it.done()
    assert len(it.server.requests) == 3
    assert it.outcomes() == {"retried": 2, "failed": 1}
    assert "was not delivered: status 500" in caplog.text and SECRET not in caplog.text


async def test_no_answer_is_a_failure_too() -> None:
    async with bench((Action.HANG,), OK, timeout="50ms") as it:
        it.add()
        await it.server.arrived(2)
    assert it.outcomes()["retried"] >= 1


async def test_one_that_is_tried_again_holds_up_no_other() -> None:
    async with bench(reply("no", status=500), OK, delays=(600.0,)) as it:
        it.add("msg_1")
        await it.server.arrived(1)
        it.add("msg_2")
        await it.server.arrived(2)
        assert it.server.requests[1].headers["webhook-id"] == "msg_2"


async def test_a_receiver_that_is_gone_gets_no_more() -> None:
    async with bench(reply("", status=410)) as it:
        it.add()
        await it.done()
        it.add("msg_2")
        await it.done()
    assert len(it.server.requests) == 1
    assert it.outcomes() == {"failed": 1}


async def test_no_more_than_so_many_a_minute_and_waiting() -> None:
    async with bench(OK, per_minute=2) as it:
        for number in range(5):
            it.add(f"msg_{number}")
        it.endpoint.add(Message("msg_p", "policy", BODY))  # kinds have room of their own
        await it.done()
    # Where a minute begins in between, there is room for more.
    counts = it.outcomes()
    assert counts["delivered"] + counts["limited"] == 6 and counts["limited"] >= 1
    assert len(it.server.requests) == counts["delivered"]

    async with bench((Action.HANG,), per_minute=10_000) as it:
        for number in range(MAX_WAITING + 3):
            it.add(f"msg_{number}")
        lost = it.outcomes()["lost"]
    assert lost == 3


async def test_at_the_end_what_waits_is_tried_once_more() -> None:
    async with bench(reply("no", status=500), OK, delays=(600.0,)) as it:
        it.add()
        await it.server.arrived(1)
        began = time.monotonic()
        await it.endpoint.aclose(300.0)
        assert time.monotonic() - began < 200
        assert it.outcomes() == {"retried": 1, "delivered": 1}
        it.add("msg_2")
        assert it.outcomes()["lost"] == 1


async def test_at_the_end_it_does_not_wait_for_ever() -> None:
    async with bench((Action.HANG,)) as it:
        it.add()
        await it.server.arrived(1)
        await it.endpoint.aclose(0.01)
        assert it.outcomes() == {"lost": 1}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"secret": "hunter2"}, "Standard Webhooks"),
        ({"secret": "whsec_###"}, "openssl rand"),
        ({"secret": "whsec_c2hvcnQ="}, "5 bytes"),
        ({"url": "slack"}, "URL"),
        ({"events": ["moon"]}, "budget"),
        ({"budget_at": [1.5]}, "less than or equal to 1"),
        ({"events": []}, "at least 1"),
    ],
)
def test_what_cannot_work_is_said(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        Callback.model_validate({"url": "http://127.0.0.1:1/x", "secret": SECRET, **more})
    assert "hunter2" not in str(caught.value.errors()[0]["msg"])


def test_the_published_vector() -> None:
    headers = signed_headers([VECTOR], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_while_keys_are_changed_either_verifies_and_no_other() -> None:
    body = '{"type":"budget.reached","data":{"key":"für"}}'.encode()
    headers = signed_headers([OTHER_KEY, VECTOR], "msg_1", int(time.time()), body)
    for key in (VECTOR, OTHER_KEY):
        secret = f"whsec_{base64.b64encode(key).decode()}"
        assert Webhook(secret).verify(body, headers)["type"] == "budget.reached"
    for wrong, sent in ((b"x" * 32, body), (OTHER_KEY, body + b" ")):
        with pytest.raises(WebhookVerificationError):
            Webhook(wrong).verify(sent, headers)
