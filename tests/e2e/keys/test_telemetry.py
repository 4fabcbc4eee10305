"""What the keys of ``telemetry`` do, as a receiver of OTLP sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.keys.harness import a_site, shows
from tests.json_server import json_server
from tests.otlp_receiver import Receiver, grpc_receiver, http_receiver
from tests.serving import KEY

pytestmark = pytest.mark.anyio

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


@pytest.fixture(params=[http_receiver], ids=["http"])
def receiver(request: pytest.FixtureRequest) -> Iterator[Receiver]:
    with request.param() as running:
        yield running


async def seen(
    folder: Path, receiver: Receiver, *, headers: dict[str, str] = CALLER, **keys: Any
) -> Receiver:
    """``receiver`` after one request to a gateway with these keys has been answered, and all is exported."""
    receiver.spans, receiver.points, receiver.headers = [], {}, []
    async with a_site(folder, {"telemetry": {"endpoint": receiver.url, **keys}}) as site:
        assert (await site.ask(headers=headers)).status_code == 200
    return receiver


@shows("telemetry", "telemetry.endpoint")
async def test_nothing_is_sent_without_a_receiver(receiver: Receiver, tmp_path: Path) -> None:
    assert (await seen(tmp_path / "1", receiver)).spans
    assert not (await seen(tmp_path / "2", receiver, endpoint="")).headers


@shows("telemetry.protocol")
async def test_a_receiver_of_grpc(tmp_path: Path) -> None:
    with grpc_receiver() as receiver:
        assert (await seen(tmp_path / "1", receiver, protocol="grpc")).spans
        assert not (await seen(tmp_path / "2", receiver, protocol="http", timeout="200ms")).spans


@shows("telemetry.headers", "telemetry.compression")
async def test_how_it_is_sent(receiver: Receiver, tmp_path: Path) -> None:
    await seen(tmp_path / "1", receiver, headers=CALLER, compression="gzip")
    assert {headers["content-encoding"] for headers in receiver.headers} == {"gzip"}
    receiver.headers = []
    keys = {"endpoint": receiver.url, "headers": {"X-Key": "secret"}}
    async with a_site(tmp_path / "2", {"telemetry": keys}) as site:
        await site.ask(headers=CALLER)
    assert {headers["x-key"] for headers in receiver.headers} == {"secret"}
    assert not any("content-encoding" in headers for headers in receiver.headers)


@shows("telemetry.timeout")
async def test_an_export_has_its_time(tmp_path: Path) -> None:
    with grpc_receiver() as receiver:
        await seen(tmp_path / "1", receiver, protocol="grpc", timeout="1h")
        assert receiver.patience > 600
        await seen(tmp_path / "2", receiver, protocol="grpc")
        assert receiver.patience < 60  # gRPC rounds up


@shows("telemetry.traces", "telemetry.metrics")
async def test_traces_or_metrics_alone(receiver: Receiver, tmp_path: Path) -> None:
    both = await seen(tmp_path / "1", receiver)
    assert both.spans
    assert both.points
    without = await seen(tmp_path / "2", receiver, traces=False)
    assert not without.spans
    assert without.points
    without = await seen(tmp_path / "3", receiver, metrics=False)
    assert without.spans
    assert not without.points


@shows("telemetry.interval")
async def test_metrics_come_at_intervals(receiver: Receiver, tmp_path: Path) -> None:
    keys = {"endpoint": receiver.url, "interval": "10ms", "traces": False}
    async with a_site(tmp_path, {"telemetry": keys}) as site:
        await site.ask()
        async with asyncio.timeout(300):
            while len(receiver.headers) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@shows("telemetry.sample")
async def test_a_share_of_requests_is_traced(receiver: Receiver, tmp_path: Path) -> None:
    assert (await seen(tmp_path / "1", receiver, headers={}, sample=1.0)).spans
    assert not (await seen(tmp_path / "2", receiver, headers={}, sample=0.0)).spans


@shows("telemetry.follow_caller")
async def test_the_caller_decides_or_does_not(receiver: Receiver, tmp_path: Path) -> None:
    assert (await seen(tmp_path / "1", receiver, sample=0.0)).spans
    assert not (await seen(tmp_path / "2", receiver, sample=0.0, follow_caller=False)).spans


@shows(
    "telemetry.scores", "telemetry.scores.receiver", "telemetry.scores.endpoint", "telemetry.scores.headers"
)
async def test_scores_follow_their_traces(receiver: Receiver, tmp_path: Path) -> None:
    for place, scores in enumerate(({}, {"receiver": "phoenix", "headers": {"x-key": "secret"}})):
        with json_server() as tool:
            given = {**scores, "endpoint": tool.url} if scores else {}
            keys = {"endpoint": receiver.url, "content": True, "scores": given}
            async with a_site(tmp_path / str(place), {"telemetry": keys}) as site:
                for headers in (CALLER, {}, {"traceparent": CALLER["traceparent"][:-1] + "0"}):
                    request_id = (await site.ask(headers=headers)).headers["x-request-id"]
                    path = f"/v1/requests/{request_id}/feedback"
                    told = {"score": 0, "comment": "It is Tuesday."}
                    answer = await site.post(path, told, authorization=f"Bearer {KEY}")
                    assert answer.status_code == 200, answer.text
        if not scores:
            assert not tool.asked
            continue
        # As the third request was not traced by the will of its caller, it has no score.
        assert {asked.headers["x-key"] for asked in tool.asked} == {"secret"}
        found = [body["data"][0] for body in tool.bodies("/v1/span_annotations")]
        requests = [span.span_id for span in receiver.spans if span.kind == "server"]
        assert [one["span_id"] for one in found] == requests[-2:]
        assert found[0]["result"] == {"score": 0.0, "explanation": "It is Tuesday."}


def told(receiver: Receiver) -> dict[str, Any]:
    return {name: value for span in receiver.spans for name, value in span.attributes.items()}


@shows("telemetry.content", "telemetry.conventions", "telemetry.service", "telemetry.resource")
@pytest.mark.parametrize(
    ("keys", "look"),
    [
        ({"content": True}, lambda receiver: "gen_ai.output.messages" in told(receiver)),
        ({"conventions": "v1.36"}, lambda receiver: "gen_ai.system" in told(receiver)),
        ({"service": "mine"}, lambda receiver: receiver.spans[0].resource["service.name"] == "mine"),
        ({"resource": {"zone": "a"}}, lambda receiver: receiver.spans[0].resource.get("zone") == "a"),
    ],
    ids=["content", "conventions", "service", "resource"],
)
async def test_what_is_told(
    keys: dict[str, Any], look: Callable[[Receiver], bool], receiver: Receiver, tmp_path: Path
) -> None:
    assert look(await seen(tmp_path / "1", receiver, **keys))
    assert not look(await seen(tmp_path / "2", receiver))
