"""The scaler as a process, asked by a client that protoc made; and what it reads of a real gateway."""

from __future__ import annotations

import asyncio
import importlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from aiohttp import web

from gateway.__main__ import main
from gateway.scaler import figures, service
from gateway.scaler.figures import NoFigures, Reader
from gateway.scaler.service import Service
from gateway.scaler.target import BadMetadata, Target
from tests.ports import free_port
from tests.serving import a_policy, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """What protoc makes of the interface: messages and the client."""
    folder = tmp_path_factory.mktemp("stubs")
    proto = Path(__file__).with_name("externalscaler.proto")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto.parent}", f"--python_out={folder}"]
    subprocess.run([*command, f"--grpc_python_out={folder}", str(proto)], check=True, timeout=300)
    sys.path.insert(0, str(folder))
    try:
        yield (
            importlib.import_module("externalscaler_pb2"),
            importlib.import_module("externalscaler_pb2_grpc"),
        )
    finally:
        sys.path.remove(str(folder))


class Pods:
    """Metrics of a gateway and of an engine, as the test sets them."""

    def __init__(self) -> None:
        self.in_flight, self.waiting, self.kv = 0.0, 0.0, 0.5
        self.up = True
        self.asked = asyncio.Event()
        self.hold: asyncio.Event | None = None
        """Nothing is said before ``hold`` is set."""

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.set()
        if self.hold is not None:
            await self.hold.wait()
        if not self.up:
            return web.Response(status=503)
        if request.headers.get("authorization") != "Bearer secret":
            return web.Response(text=f"vllm:kv_cache_usage_perc {self.kv}\n")
        lines = [
            "# TYPE tollgate_backend_requests_in_flight gauge",
            f'tollgate_backend_requests_in_flight{{backend="engine"}} {self.in_flight}',
            'tollgate_backend_requests_in_flight{backend="other"} 900',
            "# TYPE tollgate_backend_requests_waiting gauge",
            f'tollgate_backend_requests_waiting{{backend="engine"}} {self.waiting}',
        ]
        return web.Response(text="\n".join(lines) + "\n")


@asynccontextmanager
async def metrics_of(pods: Pods) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/metrics", pods.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Scaler:
    """``tollgate scaler`` as a process."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "scaler", "--listen", f"127.0.0.1:{free_port()}", *options],
            stdout=subprocess.PIPE,
            env={"TOLLGATE_METRICS_TOKEN": "secret"},
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().removeprefix("scaler ready on ").strip()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(300)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def test_an_address_without_a_port_and_one_that_is_taken_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for address, code in (("127.0.0.1", 2), (f"127.0.0.1:{taken.getsockname()[1]}", 1)):
            command = [sys.executable, "-m", "gateway", "scaler", "--listen", address]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == code
            assert address in done.stderr or "HOST:PORT" in done.stderr


async def test_keda_is_told_what_gateways_and_engines_say(stubs: tuple[Any, Any], tmp_path: Path) -> None:
    messages, services = stubs
    pods, state = Pods(), tmp_path / "demand.json"
    scaler = await asyncio.to_thread(Scaler, "--state", str(state), "--every", "0.2")
    try:
        async with metrics_of(pods) as place, grpc.aio.insecure_channel(scaler.address) as channel:
            client = services.ExternalScalerStub(channel)
            metadata = {"backend": "engine", "gateways": place, "engines": place, "requestsPerReplica": "8"}
            one = messages.ScaledObjectRef(name="engine", namespace="llm", scalerMetadata=metadata)
            spec = await client.GetMetricSpec(one)
            assert {(m.metricName, m.targetSizeFloat, m.targetSize) for m in spec.metricSpecs} == {
                ("demand", 8.0, 8),
                ("kv-usage", 85.0, 85),
            }
            assert not (await client.IsActive(one)).result, "nobody asks for anything"
            stream = client.StreamIsActive(one)
            assert not (await stream.read()).result

            pods.in_flight, pods.waiting = 20, 5
            assert (await stream.read()).result, "the first request wakes an engine"
            stream.cancel()

            async def value(name: str) -> tuple[float, int]:
                request = messages.GetMetricsRequest(scaledObjectRef=one, metricName=name)
                (found,) = (await client.GetMetrics(request)).metricValues
                assert found.metricName == name
                return found.metricValueFloat, found.metricValue

            assert await value("demand") == (25.0, 25)
            assert await value("kv-usage") == (50.0, 50)
            with pytest.raises(grpc.aio.AioRpcError, match="there is no metric 'gpu', but demand, kv-usage"):
                await value("gpu")
    finally:
        code = await asyncio.to_thread(scaler.stop)
    assert code == 0
    assert '"llm/engine engine"' in state.read_text()


async def test_who_does_not_answer_is_told_to_keda(stubs: tuple[Any, Any]) -> None:
    messages, services = stubs
    scaler = await asyncio.to_thread(Scaler)
    try:
        async with grpc.aio.insecure_channel(scaler.address) as channel:
            client = services.ExternalScalerStub(channel)
            metadata = {
                "backend": "engine",
                "gateways": f"127.0.0.1:{free_port()}",
                "requestsPerReplica": "8",
            }
            one = messages.ScaledObjectRef(name="a", namespace="b", scalerMetadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError, match=r"no gateway behind 127\.0\.0\.1") as error:
                await client.IsActive(one)
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            assert len((await client.GetMetricSpec(one)).metricSpecs) == 1, "an autoscaler can be made of it"
            bad = messages.ScaledObjectRef(name="a", namespace="b", scalerMetadata={"backend": "x"})
            with pytest.raises(grpc.aio.AioRpcError, match="lack gateways, requestsPerReplica") as error:
                await client.IsActive(bad)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    finally:
        await asyncio.to_thread(scaler.stop)


@asynccontextmanager
async def asked(stubs: tuple[Any, Any], state: Path | None = None) -> AsyncIterator[Any]:
    """A client of a scaler in this process."""
    server = grpc.aio.server()
    scaler = Service("secret", state, 0.05)
    try:
        scaler.add_to(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield stubs[1].ExternalScalerStub(channel)
    finally:
        await server.stop(None)
        await scaler.aclose()


async def test_who_never_answers_delays_nobody_else(
    stubs: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "PATIENCE", 600.0)
    hangs = Pods()
    hangs.hold = asyncio.Event()
    async with metrics_of(hangs) as silent, metrics_of(Pods()) as place, asked(stubs) as client:

        def one(name: str, gateways: str) -> Any:
            metadata = {"backend": "engine", "gateways": gateways, "requestsPerReplica": "8"}
            return stubs[0].ScaledObjectRef(name=name, namespace="b", scalerMetadata=metadata)

        waits = asyncio.ensure_future(client.IsActive(one("hangs", silent)))
        async with asyncio.timeout(300):
            await hangs.asked.wait()
            assert not (await client.IsActive(one("works", place))).result
            assert not waits.done()
            hangs.hold.set()
            assert not (await waits).result


async def test_two_triggers_of_one_object_are_followed_beside_each_other(
    stubs: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = Pods()
    async with metrics_of(pods) as place, asked(stubs) as client:

        def one(backend: str, share: int = 8) -> Any:
            metadata = {"backend": backend, "gateways": place, "requestsPerReplica": str(share)}
            return stubs[0].ScaledObjectRef(name="a", namespace="b", scalerMetadata=metadata)

        stream = client.StreamIsActive(one("engine"))
        assert not (await stream.read()).result
        assert (await client.IsActive(one("other"))).result
        pods.in_flight = 1
        assert (await stream.read()).result, "its stream goes on"

        monkeypatch.setattr(service, "MOST_TARGETS", 2)
        with pytest.raises(grpc.aio.AioRpcError, match="2 triggers are followed already"):
            await client.IsActive(one("other", 9))
        monkeypatch.setattr(service, "FORGOTTEN", 0.0)
        assert (await client.IsActive(one("other", 9))).result, "what nobody asks for makes room"
        stream.cancel()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "127.0.0.1:99999"], "write HOST:PORT"),
        (["--tls-cert", __file__, "--tls-key", __file__], "are no certificate and its key, in PEM"),
    ],
)
def test_options_that_cannot_be_meant_are_said_so(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code: object
    try:
        code = main(["scaler", "--listen", f"127.0.0.1:{free_port()}", *options])
    except SystemExit as ended:
        code = ended.code
    assert code and said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", '{"version": 1, "hist', '{"version": 2}', "[" * 100_000])
async def test_a_damaged_file_is_put_aside(stubs: tuple[Any, Any], tmp_path: Path, text: str) -> None:
    state = tmp_path / "demand.json"
    state.write_text(text)
    async with asked(stubs, state):
        assert (tmp_path / "demand.json.damaged").read_text() == text
    assert '"histories"' in state.read_text()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("gateways", "http://a:1/", "HOST:PORT"),
        ("gateways", "a", "HOST:PORT"),
        ("requestsPerReplica", "0", "above 0"),
        ("requestsPerReplica", "nan", "above 0"),
        ("forecast", "maybe", "true or false"),
        ("leadSeconds", "1e8", "up to 86400"),
    ],
)
def test_metadata_that_cannot_be_read_say_how_to_write_them(name: str, value: str, said: str) -> None:
    good = {"backend": "engine", "gateways": "a:1", "requestsPerReplica": "8", "scalerAddress": "x:1"}
    assert Target.read(good) == Target("engine", "a:1", 8.0)
    with pytest.raises(BadMetadata, match=f"{name}: '.*' cannot be read; write .*{said}"):
        Target.read({**good, name: value})


async def test_a_real_gateway_tells_its_demand(tmp_path: Path) -> None:
    policy = a_policy("http://127.0.0.1:1")
    policy["backends"]["slow"] = {
        "kind": "fake",
        "script": [{"reply": "a b"}],
        "token_delay": "60s",
        "max_concurrency": 2,
    }
    async with (
        serving(tmp_path, policy, metrics_token="secret", metrics_age=0.0) as gateway,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        body = {"model": "slow", "messages": [{"role": "user", "content": "hi"}]}
        asked = [
            asyncio.ensure_future(gateway.http.post("/v1/chat/completions", json=body)) for _ in range(5)
        ]
        target = Target("slow", f"127.0.0.1:{gateway.port}", 8)
        reader = Reader(http, "secret")
        async with asyncio.timeout(300):
            while (await reader.read(target)).demand < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert (await reader.read(target)).demand == 5, "two in flight, three waiting"
        with pytest.raises(NoFigures, match="set TOLLGATE_METRICS_TOKEN"):
            await Reader(http, "").read(target)
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
