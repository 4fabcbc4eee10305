"""Polls a bundled engine for its load: its queue, its KV cache, its speed."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from gateway.engine_load import EngineGpu, EngineLoad

log = logging.getLogger(__name__)

MAX_BODY = 256 * 2**10
"""Bytes; the engine's answer has some 5,000, and as many for each further model."""
MANY = 100
"""Servers that one process polls as often as it likes. Of more each is asked less often: the polls of so many take 6 %
of a core (docs/scale.md)."""
SLOWEST = 2.0
"""Seconds between two polls of one of them at most: figures count for 5 s."""
_ADDRESS = re.compile(r"(tcp|unix)://[\x21-\x7e]{1,255}")


class EnginePoller:
    """Polls ``{base_url}/v1/engine/state`` every ``interval`` seconds, each time for ``patience`` at most.

    ``on_load`` is called with each; it is not while the engine is away, so old figures must expire.
    The transport is the poller's own, closed with it.
    """

    most = MAX_BODY
    """Bytes of an answer."""

    def __init__(
        self,
        base_url: str,
        transport: httpx.AsyncBaseTransport,
        on_load: Callable[[EngineLoad], object],
        *,
        on_return: Callable[[], object] = lambda: None,
        on_model: Callable[[str], object] = lambda model: None,
        on_state: Callable[[Mapping[str, Any]], object] | None = None,
        interval: float = 0.5,
        patience: float = 1.0,
    ) -> None:
        """``on_return`` is called when an engine that was away answers again, ``on_model`` when one of its several
        models is loaded again, ``on_state`` with each answer as it is."""
        self._url = httpx.URL(base_url.rstrip("/") + "/v1/engine/state")
        self._transport = transport
        self._on_load = on_load
        self._on_return = on_return
        self._on_model = on_model
        self._on_state = on_state
        self._loads: dict[str, float] = {}
        """Of each model of several, how often it was loaded."""
        self.models: Mapping[str, str] = {}
        """Of an engine of several models, the last known state of each."""
        self.servers = 1
        """That this process polls, this one included."""
        self._interval = interval
        self._patience = patience
        self._task: asyncio.Task[None] | None = None

    def start(self) -> Self:
        """Begin, in the running event loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._poll())
        return self

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def interval(self) -> float:
        """Seconds between two polls."""
        slower = self._interval * self.servers / MANY
        return max(self._interval, min(slower, SLOWEST))

    async def _poll(self) -> None:
        away, share = False, random.random()
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    figures, loads = self.read(await self._ask())
            except (httpx.TransportError, TimeoutError, ValueError) as error:
                if not away:
                    log.debug(
                        "the engine at %s does not report its state: %r", self._url.netloc.decode(), error
                    )
                away = True
            else:
                if away:
                    self._on_return()
                away = False
                self.models = figures.models
                self._on_load(figures)
                for model, number in loads.items():
                    if self._loads.get(model, number) != number:
                        self._on_model(model)
                    self._loads[model] = number
            # All are asked at once when they begin, and from then on one after the other: together they would hold up
            # the requests that come meanwhile.
            await asyncio.sleep(self.interval * share)
            share = 1.0

    def read(self, body: bytes) -> tuple[EngineLoad, Mapping[str, float]]:
        """What an answer says, and of models that are loaded how often they were. Raises ValueError."""
        state = read_state(body)
        if self._on_state is not None:
            self._on_state(state)
        return figures_of(state, self._url.host), loads_of(state)

    async def _ask(self) -> bytes:
        """Raises ``httpx.TransportError`` or ValueError."""
        request = httpx.Request(
            "GET",
            self._url,
            headers={"accept-encoding": "identity", "user-agent": "tollgate"},
            extensions={"timeout": {"connect": self._patience}},
        )
        response = await self._transport.handle_async_request(request)
        try:
            if response.status_code != 200:
                raise ValueError(f"status {response.status_code}")
            body = b""
            async for part in response.aiter_raw():
                body += part
                if len(body) > self.most:
                    raise ValueError("the answer is too long")
            return body
        finally:
            await response.aclose()


def read_state(body: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    state = orjson.loads(body)
    if not isinstance(state, dict):
        raise ValueError("the engine's state is no JSON object")
    return state


def loads_of(state: Mapping[str, Any]) -> dict[str, float]:
    """Of models that are loaded now, how often they were. Raises ValueError."""
    return {
        name: _number(one.get("loads"))
        for name, one in _models(state).items()
        if one.get("value") == "loaded"
    }


def _models(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    models = state.get("models")
    if not isinstance(models, dict):
        return {}
    return {str(name): one for name, one in models.items() if isinstance(one, dict)}


def read_figures(body: bytes) -> EngineLoad:
    """The engine's JSON as figures; what is missing is 0. Raises ValueError for anything that is no such answer."""
    return figures_of(read_state(body))


def figures_of(state: Mapping[str, Any], host: str = "") -> EngineLoad:
    """``host``: where the engine was asked. Raises ValueError."""
    cache, prefixes = _object(state.get("kv_cache")), _object(state.get("prefix_cache"))
    cached, rate = _number(prefixes.get("hit_tokens")), _number(prefixes.get("hit_rate"))
    return EngineLoad(
        running=int(_number(state.get("running"))),
        waiting=int(_number(state.get("waiting"))),
        slots=int(_number(state.get("max_num_seqs"))),
        kv_usage=min(1.0, _number(cache.get("usage"))),
        kv_tokens=int(_number(cache.get("blocks_total")) * _number(cache.get("block_size"))),
        prompts=cached / rate if rate > 0 else 0.0,
        cached=cached,
        prefill=_number(state.get("prefill_tokens_per_second")),
        decode=_number(state.get("decode_tokens_per_second")),
        gpus=tuple(map(_gpu, gpus)) if isinstance(gpus := state.get("gpus"), list) else (),
        handover=_handover(state.get("handover"), host),
        models={name: str(one.get("value")) for name, one in _models(state).items()},
    )


def _object(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _handover(found: Any, host: str) -> str:
    """Where it hands blocks over, to be sent on in a header; one that listens everywhere, where it was asked."""
    address = found.get("address") if isinstance(found, dict) else None
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
        return ""
    for everywhere in ("tcp://0.0.0.0:", "tcp://[::]:"):
        if host and address.startswith(everywhere):
            return f"tcp://{f'[{host}]' if ':' in host else host}:{address[len(everywhere) :]}"
    return address


def _gpu(found: Any) -> EngineGpu:
    if not isinstance(found, dict):
        raise ValueError("an engine's GPU is no JSON object")

    def figure(*names: str) -> float | None:
        known = [_number(found[name]) for name in names if name in found]
        return sum(known) if known else None

    return EngineGpu(
        name=str(found["name"]) if "name" in found else None,
        utilization=figure("utilization_ratio"),
        memory_utilization=figure("memory_utilization_ratio"),
        memory_used=figure("memory_used_bytes"),
        memory_total=figure("memory_total_bytes"),
        pcie=figure("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second"),
        nvlink=figure("nvlink_receive_bytes_per_second", "nvlink_transmit_bytes_per_second"),
        temperature=figure("temperature_celsius"),
        power=figure("power_watts"),
        power_limit=figure("power_limit_watts"),
    )


def _number(value: Any) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"{value!r} is no figure of the engine's")
    return float(value)
