"""An engine process that was begun before anybody knew what it is to load."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from engine.begun_process import BegunProcess
from engine.channel import encode
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.messages import Start
from kernels import launch
from tests.engine.live import alive, eventually


def mapped(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


def test_it_imports_torch_before_it_is_told_anything_and_spares_triton(tiny_model: Path) -> None:
    begun = BegunProcess()
    config = EngineConfig(model=tiny_model, device="cpu", kv_cache_blocks=50, threads=1)

    async def go_on() -> None:
        client = await EngineClient.start(config, begun)
        ready = await client.ready()
        assert (client.pid, ready.device) == (begun.pid, "cpu")
        assert not mapped(begun.pid, "libtriton") or "TOLLGATE_KERNELS" in os.environ
        await client.close()

    try:
        eventually(lambda: mapped(begun.pid, "libtorch_cpu"))
        asyncio.run(go_on())
    finally:
        begun.end()
    assert not alive(begun.pid)


def test_who_is_gone_while_it_loads_takes_it_along(tmp_path: Path) -> None:
    """A model of which nothing can be read yet: the load would wait for it."""
    os.mkfifo(tmp_path / "config.json")
    begun = BegunProcess()
    try:
        config = EngineConfig(model=tmp_path, device="cpu", kv_cache_blocks=50, threads=1)
        begun.socket.sendall(encode(Start(config)))
        begun.socket.close()
        asyncio.run(asyncio.wait_for(begun.wait(), 120))
    finally:
        begun.end()


def test_it_ends_where_nothing_came_of_it() -> None:
    begun = BegunProcess()
    begun.end()
    assert not alive(begun.pid)
    begun.end()


def test_without_triton_c_is_chosen_as_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLGATE_KERNELS", "native")
    assert launch.path.__wrapped__() == "auto"
