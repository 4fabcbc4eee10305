"""A model of an engine of several that dies and comes back, as the gateway's breaker sees it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import orjson
import pytest

from engine.processes import tree
from tests.engine.live import EngineServer
from tests.engine.tiny import SHAPE, write_model
from tests.serving import KEY, Gateway, key, serving

LONG = {"max_position_embeddings": 30_000}
"""So long a context that answers take many seconds: none ends before its process is killed."""
STREAMS = 4


@pytest.mark.slow
def test_one_death_is_one_failure_and_a_model_that_is_back_is_asked_at_once(tmp_path: Path) -> None:
    model = write_model(tmp_path / "long", {**SHAPE, **LONG})
    flags = ("--min=0", "--max-load-wait=10m", "--kv-cache-memory=128MiB")
    with EngineServer(model, *flags, log=tmp_path / "log") as engine:
        asyncio.run(_deaths(engine, tmp_path / "policies"))


async def _deaths(engine: EngineServer, folder: Path) -> None:
    policy = {
        "version": 1,
        "backends": {
            "own": {
                "kind": "engine",
                "base_url": engine.url,
                # Otherwise the gateway has the next process go on with what the first one began.
                "continues": False,
                # Of one death all streams are cut; the second is the second failure. Nothing but the model's return
                # ends the cooldown.
                "breaker": {"failures": 2, "share": 0.01, "window": "1h", "cooldown": "1h"},
            }
        },
        "models": {
            "long": {
                "targets": [{"backend": "own", "model": "long"}],
                "timeouts": {"first_token": "10m", "idle": "10m", "total": "1h"},
                "retry": {"attempts": 1},
            }
        },
        "keys": [key(KEY, "acme-1", tenant="acme")],
    }
    async with serving(folder, policy) as gateway:
        assert (await _ask(gateway)).status_code == 200
        await _cut_all(engine, gateway)
        assert (await _ask(gateway)).status_code == 200
        await _cut_all(engine, gateway)
        refused = await _ask(gateway)
        assert (refused.status_code, "has failed recently" in refused.text) == (503, True), refused.text
        async with httpx.AsyncClient(base_url=engine.url, timeout=300, trust_env=False) as operator:
            async with asyncio.timeout(300):  # a moment passes until a death is known
                while (await operator.get("/v1/models/long")).json()["status"]["deaths"] < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            (await operator.post("/models/load", json={"model": "long"})).raise_for_status()
        async with asyncio.timeout(300):
            while (await _ask(gateway)).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


def _body(tokens: int, **more: object) -> dict[str, object]:
    return {"model": "long", "prompt": "bad fin", "max_tokens": tokens, "temperature": 0, **more}


async def _ask(gateway: Gateway) -> httpx.Response:
    return await gateway.http.post("/v1/completions", json=_body(4))


async def _cut_all(engine: EngineServer, gateway: Gateway) -> None:
    """Kills the engine process while streams are being read, all of which end with an error."""
    begun = asyncio.Barrier(STREAMS + 1)

    async def read() -> None:
        body = _body(20_000, ignore_eos=True, stream=True)
        async with gateway.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            await begun.wait()
            last = [line async for line in lines if line][-1]
        assert "error" in orjson.loads(last.removeprefix("data: ")), last

    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(read())
        await begun.wait()
        (core,) = (pid for pid in tree(engine.process.pid) if _is_core(pid))
        os.kill(core, signal.SIGKILL)


def _is_core(pid: int) -> bool:
    return "engine.process" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
