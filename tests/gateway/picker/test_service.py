"""The endpoint picker, asked by a client of Envoy's published protos."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc import aio

from gateway.__main__ import main
from gateway.picker.figures import Figures
from gateway.picker.pool import EnginePool, NoPool, pool_of
from gateway.picker.service import Service
from gateway.picker.settings import PickerSettings
from gateway.policy.loader import load_policy
from tests.ext_proc import (
    BUFFERED,
    FULL_DUPLEX,
    GRPC,
    NONE,
    PARTIAL,
    STREAMED,
    Stream,
    all_calls_ended,
    chat,
    http_headers,
    protos,
)
from tests.kubernetes_api import a_pod, a_pool, kubernetes_api
from tests.ports import free_port

pytestmark = pytest.mark.anyio

FIRST, SECOND, THIRD = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


def policy_of(*endpoints: str, backend: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Models ``m``, which engines know by that name, and ``short``, which they know by another."""
    replicas = [f"http://{one}/v1" for one in endpoints]
    return {
        "version": 1,
        "backends": {"pool": {"kind": "openai", "replicas": replicas, **(backend or {})}},
        "models": {
            "m": {"targets": [{"backend": "pool", "model": "m"}]},
            "short": {"targets": [{"backend": "pool", "model": "org/long-name"}]},
        },
        **more,
    }


class Picker:
    def __init__(self, pool: EnginePool, channel: aio.Channel, figures: Figures, folder: Path) -> None:
        self.pool = pool
        self.channel = channel
        self.figures = figures
        self.folder = folder
        self.streams: list[Stream] = []

    def stream(self, mode: int = FULL_DUPLEX, response_mode: int | None = None) -> Stream:
        stream = Stream(self.channel, mode, response_mode)
        self.streams.append(stream)
        return stream

    def value(self, name: str, **labels: str) -> float:
        return self.figures.registry.get_sample_value(name, labels) or 0.0

    async def apply(self, policy: dict[str, Any]) -> None:
        (self.folder / "policy.yaml").write_text(yaml.safe_dump(policy))
        await self.pool.apply(load_policy(self.folder, {}))

    async def until_idle(self) -> None:
        await until(lambda: not sum(pool.load for pool in self.pool.pools))


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(300):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def picking(tmp_path: Path, policy: dict[str, Any], **settings: Any) -> AsyncIterator[Picker]:
    pool, figures = EnginePool(None, tmp_path / "state"), Figures()
    figures.show(pool)
    folder = tmp_path / "policies"
    folder.mkdir()
    async with all_calls_ended():
        server = aio.server(options=[("grpc.max_receive_message_length", 64 * 2**20)])
        Service(pool, PickerSettings(**settings), figures).add_to(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with aio.insecure_channel(
                f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", 64 * 2**20)]
            ) as channel:
                picker = Picker(pool, channel, figures, folder)
                await picker.apply(policy)
                try:
                    yield picker
                finally:
                    for stream in picker.streams:
                        stream.cancel()
        finally:
            await server.stop(None)
            await pool.aclose()


Start = Callable[..., Awaitable[Picker]]


@pytest.fixture
async def picker(tmp_path: Path) -> AsyncIterator[Picker]:
    async with picking(tmp_path, policy_of(FIRST, SECOND)) as picker:
        yield picker


@pytest.mark.parametrize("mode", [NONE, STREAMED, BUFFERED, PARTIAL, FULL_DUPLEX])
async def test_each_way_to_send_a_body_has_its_answer(picker: Picker, mode: int) -> None:
    stream = picker.stream(mode)
    body = chat(content="x" * 200_000)
    told = await stream.ask(body)
    assert told.endpoint in (FIRST, SECOND)
    assert told.metadata == told.endpoint
    assert told.body == (body if mode == FULL_DUPLEX else None)
    await stream.answered()
    await stream.end()
    await picker.until_idle()
    assert picker.value("tollgate_epp_picks_total", model="m") == 1


async def test_a_request_without_a_body_goes_to_any_engine(picker: Picker) -> None:
    for mode in (NONE, BUFFERED, FULL_DUPLEX):
        stream = picker.stream(mode)
        told = await stream.ask(None, path="/v1/models")
        assert told.endpoint == told.metadata
        await stream.answered()
        await stream.end()


@pytest.mark.parametrize("mode", [BUFFERED, FULL_DUPLEX])
async def test_an_empty_body_is_none(picker: Picker, mode: int) -> None:
    assert (await picker.stream(mode).ask(b"")).endpoint in (FIRST, SECOND)


@pytest.mark.parametrize("mode", [BUFFERED, FULL_DUPLEX])
async def test_the_engine_is_told_the_name_that_it_knows(picker: Picker, mode: int) -> None:
    stream = picker.stream(mode)
    told = await stream.ask(chat("short"))
    assert told.body is not None
    assert json.loads(told.body) == {**json.loads(chat("short")), "model": "org/long-name"}
    assert told.headers["content-length"] == str(len(told.body))
    stream.cancel()


async def test_a_large_body_comes_back_in_pieces_that_gateways_take(picker: Picker) -> None:
    body = chat(content="x" * 8 * 2**20)
    stream = picker.stream()
    told = await stream.ask(body)
    assert told.body == body
    assert told.chunks > 8 * 2**20 / 65_536
    stream.cancel()


async def test_the_least_loaded_engine_is_picked_until_its_request_ends(picker: Picker) -> None:
    streams = [picker.stream() for _ in range(8)]
    picked = [(await stream.ask(chat())).endpoint for stream in streams]
    assert sorted(picked) == [FIRST] * 4 + [SECOND] * 4
    for stream, endpoint in zip(streams, picked, strict=True):
        if endpoint == FIRST:
            stream.cancel()
    await until(lambda: picker.value("tollgate_epp_requests_in_flight", endpoint=FIRST) == 0)
    again = [picker.stream() for _ in range(4)]
    assert [(await stream.ask(chat())).endpoint for stream in again] == [FIRST] * 4
    for stream in streams + again:
        stream.cancel()
    await picker.until_idle()


async def test_what_is_no_request_is_refused_in_the_gateways_stead(picker: Picker) -> None:
    for body, status, code in (
        (b'{"model": "m", ', 400, "invalid_json"),
        (b'{"messages": []}', 400, "missing_required_parameter"),
        (chat("gone"), 404, "model_not_found"),
    ):
        for mode in (BUFFERED, FULL_DUPLEX):
            stream = picker.stream(mode)
            told = await stream.ask(body)
            assert (told.status, told.error["code"]) == (status, code)
            assert told.headers["content-type"] == "application/json"
            assert await stream.read() is None, "the picker ends what it has refused"
    await picker.until_idle()


@pytest.mark.parametrize("subset", [[SECOND], SECOND, [f"{SECOND}, 10.9.9.9:1"]])
async def test_only_endpoints_of_the_subset_are_picked(picker: Picker, subset: list[str] | str) -> None:
    streams = [picker.stream() for _ in range(4)]
    for stream in streams:
        assert (await stream.ask(chat(), subset=subset)).endpoint == SECOND
    for stream in streams:
        stream.cancel()


async def test_where_nothing_may_be_picked_it_is_503(picker: Picker) -> None:
    for subset in (["10.9.9.9:1"], []):
        told = await picker.stream().ask(chat(), subset=subset)
        assert (told.status, told.error["code"]) == (503, "no_endpoint")
        assert told.headers["retry-after"] == "1"


async def test_an_engine_that_fails_is_left_alone(tmp_path: Path) -> None:
    breaker = {"breaker": {"failures": 2, "cooldown": "1h"}}
    async with picking(tmp_path, policy_of(FIRST, SECOND, backend=breaker), fallbacks=2) as picker:
        for _ in range(2):
            stream = picker.stream()
            assert (await stream.ask(chat(), subset=[FIRST])).endpoint == FIRST
            await stream.answered(503)
            await stream.end()
        for _ in range(4):
            stream = picker.stream()
            assert (await stream.ask(chat())).endpoint.split(",")[0] == SECOND
            await stream.answered()
            await stream.end()
        told = await picker.stream().ask(chat(), subset=[FIRST])
        assert (told.status, told.error["code"]) == (503, "no_endpoint")
        assert int(told.headers["retry-after"]) > 3000


async def test_the_endpoint_that_a_gateway_went_on_to_is_heeded(tmp_path: Path) -> None:
    breaker = {"breaker": {"failures": 2, "cooldown": "1h"}}
    async with picking(tmp_path, policy_of(FIRST, SECOND, backend=breaker), fallbacks=1) as picker:
        for _ in range(2):
            stream = picker.stream()
            told = await stream.ask(chat())
            while not told.endpoint.startswith(FIRST):
                stream.cancel()
                stream = picker.stream()
                told = await stream.ask(chat())
            assert told.endpoint == told.metadata == f"{FIRST},{SECOND}"
            await stream.answered(200, served=SECOND)
            await stream.end()
        await picker.until_idle()
        assert (await picker.stream().ask(chat())).endpoint == SECOND, "the first has failed twice"


async def test_a_full_pool_drops_what_its_tier_sheds_and_lets_others_wait(tmp_path: Path) -> None:
    tiers = {"batch": {"on_saturation": {"action": "shed", "at": 0.5}}, "chat": {"priority": 1}}
    policy = policy_of(FIRST, backend={"max_concurrency": 1}, tiers=tiers)
    async with picking(tmp_path, policy, patience=300.0) as picker:
        first = picker.stream()
        assert (await first.ask(chat())).endpoint == FIRST
        dropped = await picker.stream().ask(chat(), {"x-gateway-inference-objective": "batch"})
        assert (dropped.status, dropped.error["code"]) == (429, "overloaded")
        assert int(dropped.headers["retry-after"]) >= 1
        waiting = picker.stream()
        asked = asyncio.ensure_future(waiting.ask(chat(), {"x-gateway-inference-objective": "chat"}))
        await until(lambda: sum(pool.load for pool in picker.pool.pools) == 2)
        first.cancel()
        assert (await asked).endpoint == FIRST
        waiting.cancel()


async def test_who_waits_for_too_long_is_dropped_and_who_leaves_is_forgotten(tmp_path: Path) -> None:
    policy = policy_of(FIRST, backend={"max_concurrency": 1})
    async with picking(tmp_path, policy, patience=0.01) as picker:
        first = picker.stream()
        await first.ask(chat())
        late = await picker.stream().ask(chat())
        assert (late.status, late.error["code"]) == (429, "queue_timeout")
        first.cancel()
        await picker.until_idle()


async def test_the_bundled_engine_is_told_whose_and_how_urgent_it_is(tmp_path: Path) -> None:
    policy = policy_of(FIRST, tiers={"chat": {"priority": 7, "weight": 3}})
    policy["backends"]["pool"] = {"kind": "engine", "replicas": [f"http://{FIRST}"]}
    async with picking(tmp_path, policy) as picker:
        stream = picker.stream()
        told = await stream.ask(
            chat(),
            {
                "x-gateway-inference-objective": "chat",
                "x-gateway-inference-fairness-id": "acme",
                "x-tollgate-priority": "99",
            },
        )
        assert (told.headers["x-tollgate-priority"], told.headers["x-tollgate-weight"]) == ("7", "3")
        assert told.headers["x-tollgate-tenant"] not in ("", "acme"), "by an alias"
        stream.cancel()


async def test_a_policy_edit_and_replicas_that_come_are_obeyed_at_once(picker: Picker) -> None:
    stream = picker.stream()
    await stream.ask(chat())
    await picker.apply(policy_of(THIRD))
    assert (await picker.stream().ask(chat())).endpoint == THIRD
    await stream.answered()  # what is in flight ends as it began
    await stream.end()


async def test_trailers_and_answers_pass(picker: Picker) -> None:
    stream = picker.stream()
    await stream.send(request_headers=http_headers({":path": "/v1/chat/completions"}))
    await stream.send(request_body={"body": chat()})
    await stream.send(request_trailers={})
    assert [await stream.read() for _ in range(3)] == ["request_headers", "request_body", "request_trailers"]
    await stream.send(response_headers=http_headers({":status": "200"}))
    assert await stream.read() == "response_headers"
    await stream.send(response_body={"body": b"data: 1\n\n"})
    response = await stream.call.read()
    piece = response.response_body.response.body_mutation.streamed_response
    assert (piece.body, piece.end_of_stream) == (b"data: 1\n\n", False)
    await stream.send(response_trailers={})
    assert await stream.read() == "response_trailers"
    await stream.end()
    await picker.until_idle()


async def test_a_gateway_that_only_looks_on_is_not_answered(picker: Picker) -> None:
    stream = picker.stream()
    await stream.send(request_headers=http_headers({}, end_of_stream=True), observability_mode=True)
    await stream.end()
    assert stream.told.headers == {}


@pytest.mark.parametrize("mode", [GRPC, 77])
async def test_bodies_of_other_modes_are_refused_with_the_reason(picker: Picker, mode: int) -> None:
    stream = picker.stream(mode)
    await stream.send(request_headers=http_headers({}))
    with pytest.raises(aio.AioRpcError) as caught:
        await stream.read()
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "FULL_DUPLEX_STREAMED" in (caught.value.details() or "")


async def test_health_is_told_by_service(tmp_path: Path) -> None:
    async with picking(tmp_path, policy_of(FIRST)) as picker:
        health = protos().health_client(picker.channel)
        ask = protos().health.HealthCheckRequest
        for ready, status in ((True, 1), (False, 2)):
            picker.pool.ready = ready
            for service in ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
                assert (await health.Check(ask(service=service))).status == status
            assert (await health.Check(ask(service="liveness"))).status == 1
        watch = health.Watch(ask())
        assert (await watch.read()).status == 2
        picker.pool.ready = True
        assert (await watch.read()).status == 1
        watch.cancel()
        with pytest.raises(aio.AioRpcError) as caught:
            await health.Check(ask(service="other"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_body_beyond_the_limit_is_413(tmp_path: Path) -> None:
    async with picking(tmp_path, policy_of(FIRST), max_body=1000) as picker:
        told = await picker.stream().ask(chat(content="x" * 1000), pieces=400)
        assert told.status == 413


async def test_a_thousand_requests_at_once_leave_nothing_behind(picker: Picker) -> None:
    async def one(number: int) -> str:
        stream = picker.stream()
        endpoint = (await stream.ask(chat(content=f"{number}"))).endpoint
        if number % 2:
            stream.cancel()
        else:
            await stream.answered()
            await stream.end()
        return endpoint

    picked = await asyncio.gather(*map(one, range(1000)))
    assert {*picked} == {FIRST, SECOND}
    await picker.until_idle()
    await until(lambda: picker.value("tollgate_epp_streams") == 0)


async def test_pods_of_an_inference_pool_are_picked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with kubernetes_api() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config")))
        api.put_one("inferencepools", "qwen", a_pool(8100, app="qwen"))
        api.put_one("pods", "a", a_pod("10.0.0.7", app="qwen"))
        policy = policy_of(FIRST)
        pool = {"pool": {"name": "qwen", "namespace": "models"}}
        policy["backends"]["pool"] = {"kind": "engine", "base_url": "http://engine", "replicas": pool}
        async with picking(tmp_path, policy) as picker:
            await until(lambda: picker.pool.ready)
            assert (await picker.stream().ask(chat())).endpoint == "10.0.0.7:8100"
            api.put_one("pods", "a", a_pod("10.0.0.7", ready=False, app="qwen"))
            api.put_one("pods", "b", a_pod("fd00::8", app="qwen"))
            await until(
                lambda: picker.pool.standing and "[fd00::8]:8100" in picker.pool.standing.endpoints.values()
            )
            assert (await picker.stream().ask(chat(), subset=["[fd00::8]:8100"])).status is None
        await until(lambda: not api.watchers)


async def test_before_its_engines_are_known_it_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.replicas.discovery.FIRST", 0.01)
    async with kubernetes_api() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config")))
        policy = policy_of(FIRST)
        policy["backends"]["pool"] |= {"base_url": "http://x", "replicas": {"pool": {"name": "qwen"}}}
        async with picking(tmp_path, policy) as picker:
            assert not picker.pool.ready
            told = await picker.stream().ask(chat())
            assert (told.status, told.error["code"]) == (503, "no_endpoint")
        await until(lambda: not api.watchers)


@pytest.mark.parametrize(
    ("change", "backend", "said"),
    [
        ({"replicas": ["http://engine:8000/v1"]}, None, "dns: engine"),
        ({"base_url": "http://x/v1", "replicas": {"srv": "_llm._tcp.test"}}, None, "SRV records have names"),
        ({"replicas": ["http://10.0.0.1/v1"]}, "other", "backend 'other' has no replicas"),
        ({"base_url": "http://10.0.0.1/v1", "replicas": None}, None, "has no such backend"),
    ],
)
def test_a_policy_without_engines_to_pick_says_what_to_write(
    tmp_path: Path, change: dict[str, Any], backend: str | None, said: str
) -> None:
    policy = policy_of(FIRST)
    changed = {**policy["backends"]["pool"], **change}
    policy["backends"]["pool"] = {name: value for name, value in changed.items() if value is not None}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy))
    with pytest.raises(NoPool, match=re.escape(said)):
        pool_of(load_policy(tmp_path, {}).policy, backend)


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for options, said in (
        (["--tls-cert", "x"], "belong together"),
        (["--self-signed", "--tls-cert", "x", "--tls-key", "y"], "leave --tls-cert"),
    ):
        assert main(["epp", *options]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["epp", "--listen", "127.0.0.1"])
    assert (caught.value.code, "HOST:PORT" in capsys.readouterr().err) == (2, True)


def test_a_policy_that_it_cannot_start_with_is_told_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy_of("engine:8000")))
    command = [sys.executable, "-m", "gateway", "epp", "--policies", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "The endpoint picker cannot start: replica http://engine:8000/v1 has a name"
    )
    assert "Traceback" not in done.stderr


def test_its_secrets_may_be_files_as_the_gateways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = policy_of("engine:8000")
    policy["keys"] = [{"id": "a", "sha256": "${KEY_HASH}", "tenant": "acme"}]
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "policy.yaml").write_text(yaml.safe_dump(policy))
    options = ["epp", "--policies", str(tmp_path / "policies"), "--metrics-port", "0"]
    assert main(options) == 1
    assert "the environment variable KEY_HASH is not set" in capsys.readouterr().err
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "KEY_HASH").write_text("0" * 64)
    monkeypatch.setenv("TOLLGATE_SECRETS_DIR", str(tmp_path / "secrets"))
    assert main(options) == 1
    # It is read: what is wrong is something else.
    assert "engine:8000/v1 has a name" in capsys.readouterr().err


@pytest.mark.slow
async def test_what_is_in_flight_ends_before_the_process_does(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(policy_of(FIRST)))
    listen, health = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    # Where it should hang it says at what, before it is killed.
    command = [sys.executable, "-X", "faulthandler", "-m", "gateway", "epp", "--policies", str(tmp_path)]
    process = await asyncio.create_subprocess_exec(
        *(*command, "--metrics-port", "0", "--listen", listen, "--health", health),
        stdout=asyncio.subprocess.PIPE,
        env={"TOLLGATE_SHUTDOWN_DELAY": "0"},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == f"endpoint picker ready on {listen}\n".encode()
    try:
        async with aio.insecure_channel(listen) as channel, aio.insecure_channel(health) as probes:
            check = protos().health_client(probes).Check
            readiness = protos().health.HealthCheckRequest(service="readiness")
            assert (await check(readiness)).status == 1
            stream = Stream(channel)
            assert (await stream.ask(chat())).endpoint == FIRST
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(300):
                while (await check(readiness)).status != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await stream.answered()
            await stream.end()
        async with asyncio.timeout(300):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGABRT)
            await process.wait()
