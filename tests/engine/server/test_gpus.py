"""GPUs' figures, by a library that a compiler makes: the bindings are those that run beside a driver."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import re
import shlex
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import httpx
import orjson
import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.server.app import create_app
from engine.server.gpus import FIGURES, GpuSampler
from engine.server.nvml import Nvml, NvmlError
from engine.server.tokenizer import Tokenizer
from engine.worker.device import gpu_uuids
from gateway.backends.engine_poller import read_figures
from tests.engine.live import EngineServer

WHOLE = {
    "name": "Fake H100",
    "utilization_ratio": 0.37,
    "memory_utilization_ratio": 0.12,
    "memory_used_bytes": 4 * 2**30,
    "memory_total_bytes": 80 * 2**30,
    "pcie_receive_bytes_per_second": 4e6,
    "pcie_transmit_bytes_per_second": 250e3,
    "temperature_celsius": 60,
    "power_watts": 350.5,
    "power_limit_watts": 700,
}
LOST = 15


class FakeNvml:
    """Opened twice it is one library, whose variables the test sets."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.path = str(folder / "libnvidia-ml.so.1")
        source = Path(__file__).with_name("fake_nvml.c")
        compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
        subprocess.run([compiler, "-shared", "-fPIC", *options, "-o", self.path, source], check=True)
        self._library = ctypes.CDLL(self.path)

    def get(self, name: str) -> int:
        return ctypes.c_int.in_dll(self._library, name).value

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self._library, name).value = value

    def fail(self, gpu: int, code: int) -> None:
        (ctypes.c_int * 3).in_dll(self._library, "errors")[gpu] = code

    def send_by_nvlink(self, gpu: int, received: int, sent: int) -> None:
        counters = (ctypes.c_ulonglong * 6).in_dll(self._library, "nvlink")
        counters[2 * gpu] += sent
        counters[2 * gpu + 1] += received


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[FakeNvml]:
    fake = FakeNvml(tmp_path)
    yield fake
    fake.set("hang", 0)


@pytest.fixture
def sampling(nvml: FakeNvml) -> Iterator[Callable[..., GpuSampler]]:
    made: list[GpuSampler] = []

    def start(*uuids: str, library: str = nvml.path, every: float = 0.02) -> GpuSampler:
        made.append(GpuSampler(uuids, library=library, every=every, again=every).start())
        return made[-1]

    yield start
    for one in made:
        one.close()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def metrics(sampler: GpuSampler) -> str:
    registry = CollectorRegistry()
    registry.register(sampler)
    return generate_latest(registry).decode()


def test_each_gpu_of_the_engine_tells_its_figures(sampling: Callable[..., GpuSampler]) -> None:
    """And no other of the machine's, in the order of the engine's ranks."""
    sampler = sampling("bbbb", "aaaa", every=60.0)
    until(lambda: len(sampler.to_list()) == 2)
    second, first = sampler.to_list()
    assert first == {"gpu": 1, "uuid": "aaaa", **WHOLE}
    assert (second["gpu"], second["utilization_ratio"], second["temperature_celsius"]) == (0, 0.05, 61)
    text = metrics(sampler)
    assert 'tollgate_engine_gpu_info{gpu="1",name="Fake H100",uuid="aaaa"} 1.0' in text
    assert 'tollgate_engine_gpu_utilization_ratio{gpu="1"} 0.37' in text
    assert 'tollgate_engine_gpu_memory_used_bytes{gpu="0"} 4.294967296e+09' in text


def test_nvlinks_counters_become_rates(nvml: FakeNvml) -> None:
    times = iter([100.0, 104.0, 108.0])
    sampler = GpuSampler(["aaaa"], library=nvml.path, clock=lambda: next(times))
    sampler._latest = sampler._sample(Nvml(nvml.path))
    assert sampler._latest["aaaa"].value("nvlink_sent") is None
    nvml.send_by_nvlink(0, received=4096, sent=8)
    sampler._latest = sampler._sample(Nvml(nvml.path))
    assert sampler._latest["aaaa"].value("nvlink_received") == 4096 * 1024 / 4
    assert sampler._latest["aaaa"].value("nvlink_sent") == 8 * 1024 / 4
    nvml.send_by_nvlink(0, received=-5000, sent=0)  # a driver that was loaded anew
    assert sampler._sample(Nvml(nvml.path))["aaaa"].value("nvlink_received") is None


def test_a_part_of_a_gpu_has_its_own_memory_and_the_chips_temperature(
    sampling: Callable[..., GpuSampler],
) -> None:
    sampler = sampling("cccc", every=60.0)
    until(sampler.to_list)
    assert sampler.to_list() == [
        {
            "gpu": 0,
            "uuid": "cccc",
            "name": "Fake MIG 1g.10gb",
            "memory_used_bytes": 4 * 2**30,
            "memory_total_bytes": 10 * 2**30,
            "temperature_celsius": 60,
            "power_watts": 350.5,
            "power_limit_watts": 700,
        }
    ]
    assert "utilization" not in metrics(sampler)


def test_what_an_old_driver_does_not_have_is_left_out(
    tmp_path: Path, sampling: Callable[..., GpuSampler]
) -> None:
    (tmp_path / "old").mkdir()
    sampler = sampling("aaaa", library=FakeNvml(tmp_path / "old", "-DOLD").path, every=60.0)
    until(sampler.to_list)
    assert sampler.to_list() == [{"gpu": 0, "uuid": "aaaa", **WHOLE}]


def test_a_lost_gpu_is_not_told_of_and_the_others_are(
    nvml: FakeNvml, sampling: Callable[..., GpuSampler], caplog: pytest.LogCaptureFixture
) -> None:
    nvml.fail(1, LOST)
    sampler = sampling("aaaa", "bbbb")
    until(lambda: [one["gpu"] for one in sampler.to_list()] == [0])
    time.sleep(0.1)
    nvml.fail(1, 0)
    until(lambda: len(sampler.to_list()) == 2)
    assert caplog.text.count("no figures of GPU bbbb: nvmlDevice") == 1


def test_where_no_gpu_answers_the_library_is_begun_anew(
    nvml: FakeNvml, sampling: Callable[..., GpuSampler]
) -> None:
    sampler = sampling("aaaa")
    until(sampler.to_list)
    nvml.fail(0, LOST)
    until(lambda: nvml.get("inits") > 2)
    assert sampler.to_list() == []
    assert metrics(sampler) == ""
    nvml.fail(0, 0)
    until(sampler.to_list)
    sampler.close()
    until(lambda: nvml.get("inits") == nvml.get("shutdowns"))


def test_a_driver_that_hangs_holds_up_nobody(nvml: FakeNvml, sampling: Callable[..., GpuSampler]) -> None:
    sampler = sampling("aaaa")
    until(sampler.to_list)
    nvml.set("hang", 1)
    until(lambda: not sampler.to_list())  # old figures are none
    began = time.monotonic()
    assert metrics(sampler) == ""
    sampler.close()
    assert time.monotonic() - began < 60
    nvml.set("hang", 0)


@pytest.mark.parametrize("broken", ["absent", "no library", "refuses"])
def test_without_a_library_there_are_no_figures(
    broken: str,
    nvml: FakeNvml,
    tmp_path: Path,
    sampling: Callable[..., GpuSampler],
    caplog: pytest.LogCaptureFixture,
) -> None:
    library = {
        "absent": "libnvidia-ml-absent.so.1",
        "no library": str(tmp_path / "text"),
        "refuses": nvml.path,
    }
    (tmp_path / "text").write_text("no library")
    nvml.set("init_error", 9)
    with caplog.at_level(logging.WARNING):
        sampler = sampling("aaaa", library=library[broken])
        until(lambda: "no figures of GPUs" in caplog.text)
        time.sleep(0.1)
    assert sampler.to_list() == []
    assert caplog.text.count("no figures of GPUs") == 1


def test_without_a_gpu_nothing_is_loaded_and_nothing_runs(nvml: FakeNvml) -> None:
    GpuSampler((), library=nvml.path).start()
    assert "gpus" not in [thread.name for thread in threading.enumerate()]
    assert nvml.get("inits") == 0
    assert gpu_uuids(torch.device("cpu"), 2) == ()


def test_a_gpu_that_nobody_knows_is_an_error_and_no_crash(nvml: FakeNvml) -> None:
    with pytest.raises(NvmlError, match="ByUUID"):
        Nvml(nvml.path).sample("dddd")


def test_an_engine_tells_of_its_gpus(
    nvml: FakeNvml, sampling: Callable[..., GpuSampler], tiny_model: Path
) -> None:
    sampler = sampling("aaaa", every=60.0)
    until(sampler.to_list)

    async def ask() -> tuple[bytes, str]:
        client = await EngineClient.start(EngineConfig(model=tiny_model, kv_cache_blocks=50, threads=1))
        try:
            ready = await client.ready()
            assert ready.gpus == ()
            ready = replace(ready, gpus=("aaaa",))
            app = create_app(
                client, ready, Tokenizer(tiny_model), None, name="tiny", max_body_bytes=2**16, gpus=sampler
            )
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://engine"
            ) as asked:
                state = await asked.get("/v1/engine/state")
                return state.content, (await asked.get("/metrics")).text
        finally:
            await client.close()

    state, text = asyncio.run(ask())
    assert orjson.loads(state)["gpus"] == [{"gpu": 0, "uuid": "aaaa", **WHOLE}]
    assert 'tollgate_engine_gpu_power_watts{gpu="0"} 350.5' in text
    assert "tollgate_engine_running_requests" in text

    # And the gateway understands all of it.
    (gpu,) = read_figures(state).gpus
    assert [name for name, value in asdict(gpu).items() if value is None] == ["nvlink"]
    assert gpu.pcie == 4.25e6


def test_an_engine_without_a_gpu_tells_of_none(server: EngineServer) -> None:
    assert server.state()["gpus"] == []
    assert "tollgate_engine_gpu" not in httpx.get(f"{server.url}/metrics").text


def test_dashboards_and_alerts_name_figures_that_there_are() -> None:
    root = Path(__file__).parents[3] / "deploy"
    texts = (
        (root / "prometheus" / "rules.yml").read_text(),
        json.dumps(json.loads((root / "grafana" / "engine.json").read_text())),
    )
    for text in texts:
        named = set(re.findall(r"tollgate_engine_gpu_(\w+)", text))
        assert named and named <= set(FIGURES)
