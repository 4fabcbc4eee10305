from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from gateway.admission.speed import ENGINE_FIGURES_TTL
from gateway.backends.engine_poller import MANY, SLOWEST, EnginePoller, figures_of, read_figures
from gateway.backends.transport import OutgoingTransport
from gateway.engine_load import EngineGpu, EngineLoad
from tests.fakes import Action, FakeUpstream, head, reply

pytestmark = pytest.mark.anyio

STATE: dict[str, Any] = {
    "model": "demo",
    "max_model_len": 2048,
    "max_num_seqs": 16,
    "running": 4,
    "waiting": 2,
    "queue_depth": 2,
    "kv_cache": {"block_size": 16, "blocks_total": 100, "blocks_used": 75, "usage": 0.75},
    "prefill_tokens_per_second": 743.5,
    "decode_tokens_per_second": 258.0,
    "device": "cpu",
}
FIGURES = EngineLoad(
    running=4, waiting=2, slots=16, kv_usage=0.75, kv_tokens=1600, prefill=743.5, decode=258.0
)


class Told:
    def __init__(self) -> None:
        self.figures: asyncio.Queue[EngineLoad] = asyncio.Queue()

    def __call__(self, figures: EngineLoad) -> None:
        self.figures.put_nowait(figures)

    async def next(self) -> EngineLoad:
        async with asyncio.timeout(300):
            return await self.figures.get()


def polling(upstream: FakeUpstream, told: Told, *, patience: float = 1.0) -> EnginePoller:
    root = upstream.base_url.removesuffix("/v1")
    return EnginePoller(root, OutgoingTransport(), told, interval=0.01, patience=patience)


async def test_the_figures_are_told_again_and_again(upstream: FakeUpstream) -> None:
    upstream.health = reply(STATE)
    told = Told()
    async with polling(upstream, told):
        assert await told.next() == FIGURES
        upstream.health = reply({**STATE, "running": 5})
        while (await told.next()).running != 5:
            pass
    assert {probe.path for probe in upstream.probes} == {"/v1/engine/state"}


def test_of_many_servers_each_is_asked_less_often() -> None:
    poller = EnginePoller("http://127.0.0.1:1", OutgoingTransport(), Told(), interval=0.5)
    found = []
    for poller.servers in (1, MANY, 2 * MANY, 10_000):
        found.append(poller.interval)
    assert found == [0.5, 0.5, 1.0, SLOWEST]
    assert SLOWEST + 1.0 < ENGINE_FIGURES_TTL  # with the poller's patience
    slow = EnginePoller("http://127.0.0.1:1", OutgoingTransport(), Told(), interval=3.0)
    slow.servers = 10_000
    assert slow.interval == 3.0


def test_gpus_tell_what_they_know() -> None:
    gpus = [
        {"gpu": 0, "name": "H100", "utilization_ratio": 0.5, "pcie_receive_bytes_per_second": 3.0},
        {"gpu": 1, "nvlink_receive_bytes_per_second": 3.0, "nvlink_transmit_bytes_per_second": 4.0},
    ]
    assert read_figures(orjson.dumps({**STATE, "gpus": gpus})).gpus == (
        EngineGpu(name="H100", utilization=0.5, pcie=3.0),
        EngineGpu(nvlink=7.0),
    )


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(reply({}, status=503), id="error status"),
        pytest.param(reply("[1]"), id="no object"),
        pytest.param(reply("{"), id="no JSON"),
        pytest.param(reply({**STATE, "running": "many"}), id="no number"),
        pytest.param(reply({**STATE, "kv_cache": {"usage": -1}}), id="negative"),
        pytest.param(reply({**STATE, "gpus": ["H100"]}), id="no GPU"),
        pytest.param((head(200, {"content-length": "10"}), Action.ABORT), id="cut"),
        pytest.param((Action.HANG,), id="silent"),
        pytest.param(reply(b" " * 300_000), id="endless"),
    ],
)
async def test_an_engine_that_cannot_tell_is_asked_again(upstream: FakeUpstream, answer: Any) -> None:
    upstream.health = answer
    told = Told()
    async with polling(upstream, told, patience=0.05):
        async with asyncio.timeout(300):
            while len(upstream.probes) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert told.figures.empty()
        upstream.health = reply(STATE)
        assert await told.next() == FIGURES


async def test_an_engine_that_comes_back_is_heard_again(upstream: FakeUpstream) -> None:
    upstream.health = reply(STATE)
    told = Told()
    async with polling(upstream, told):
        await told.next()
        await upstream.stop()
        while not told.figures.empty():
            told.figures.get_nowait()
        await asyncio.sleep(0.05)
        assert told.figures.empty()
        await upstream.start()
        assert await told.next() == FIGURES


async def test_of_several_models_it_tells_which_is_loaded_again(upstream: FakeUpstream) -> None:
    def several(**loads: int) -> dict[str, Any]:
        models = {name: {"value": "loaded" if n else "unloaded", "loads": n} for name, n in loads.items()}
        return {**STATE, "models": models}

    upstream.health = reply(several(small=1, large=0))
    told, back = Told(), list[str]()
    root = upstream.base_url.removesuffix("/v1")
    async with EnginePoller(root, OutgoingTransport(), told, on_model=back.append, interval=0.01) as poller:
        assert (await told.next()).models == {"small": "loaded", "large": "unloaded"}
        assert back == []
        upstream.health = reply(several(small=2, large=0))
        async with asyncio.timeout(300):
            while not back:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert back == ["small"]
        assert poller.models["large"] == "unloaded"


async def test_closing_ends_it_at_once_and_twice_does_no_harm(upstream: FakeUpstream) -> None:
    upstream.health = (Action.HANG,)
    told = Told()
    state = polling(upstream, told, patience=60).start()
    async with asyncio.timeout(300):
        while not upstream.probes:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await state.aclose()
        await state.aclose()
        await upstream.probes[0].left.wait()


async def test_closing_before_it_began() -> None:
    await EnginePoller("http://127.0.0.1:1", OutgoingTransport(), Told()).aclose()


def test_what_is_missing_is_nothing() -> None:
    assert read_figures(b"{}") == EngineLoad()
    assert read_figures(b'{"running": 3, "kv_cache": null}') == EngineLoad(running=3)


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("tcp://10.0.0.5:8200", "tcp://10.0.0.5:8200"),
        ("tcp://0.0.0.0:8200", "tcp://engine:8200"),
        ("tcp://[::]:8200", "tcp://engine:8200"),
        ("unix:///run/kv.sock", "unix:///run/kv.sock"),
        ("tcp://a\r\nx: y", ""),
        ("http://a:1", ""),
        (None, ""),
        (5, ""),
    ],
)
async def test_where_blocks_are_handed_over_is_known_by_the_name_that_the_engine_has_here(
    address: object, found: str
) -> None:
    assert figures_of({**STATE, "handover": {"address": address}}, "engine").handover == found
    assert figures_of({**STATE, "handover": address}, "engine").handover == ""
