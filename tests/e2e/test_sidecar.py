"""The sidecar is killed and frozen under traffic: each guard does what its policy promised, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import OPERATOR, children
from tests.e2e.gateways import serving

pytestmark = pytest.mark.anyio

REPLY = "The river rises in the hills, runs north past three old mills, and meets the sea behind the harbour wall."
STRICT, LOOSE = "tg-strict", "tg-loose"
TIMEOUT = "500ms"


def guard(tenant: str, on_error: str, **more: Any) -> dict[str, Any]:
    """One that leaves nothing to the fast tier, so that every text needs the sidecar."""
    rules = {
        "tenants": [tenant],
        "action": "block",
        "on_error": on_error,
        "checks": ["model"],
        "timeout": TIMEOUT,
    }
    return {**rules, **more}


def a_policy() -> dict[str, Any]:
    both = {"kind": "toxicity", "on": ["input", "output"], "interval": 24, "window": 16}
    return {
        "version": 1,
        "backends": {
            "scripted": {"kind": "fake", "token_delay": "10ms", "script": [{"reply": REPLY}]},
            "embedder": {"kind": "sidecar"},
        },
        "models": {
            "scripted": {"targets": [{"backend": "scripted", "model": "any"}]},
            "minilm": {
                "targets": [{"backend": "embedder", "model": "minilm"}],
                "timeouts": {"first_token": "2s", "total": "3s"},
                "retry": {"attempts": 1},
            },
        },
        "guards": {
            "strict-in": guard("strict", "block", kind="injection", threshold=0.999),
            "strict-out": guard("strict", "block", **both),
            "loose-in": guard("loose", "allow", kind="injection", threshold=0.999),
            "loose-out": guard("loose", "allow", **both),
        },
        "caches": {"semantic": {"mode": "on"}},
        "keys": [
            {"id": tenant, "tenant": tenant, "sha256": sha256(key.encode()).hexdigest()}
            for tenant, key in (("strict", STRICT), ("loose", LOOSE))
        ],
    }


@dataclass
class Seen:
    """One request as its caller saw it."""

    kind: str
    key: str
    status: int
    seconds: float
    id: str
    code: str | None = None
    text: str = ""
    finish: str | None = None
    reason: str | None = None
    whole: bool = True
    """The stream had its end."""


@dataclass
class Traffic:
    """Callers of every kind, one request after the other, each with words that nobody has seen before."""

    http: httpx.AsyncClient
    seen: list[Seen] = field(default_factory=list)
    over: bool = False
    numbers: Iterator[int] = field(default_factory=count)

    async def chat(self, key: str, *, stream: bool) -> Seen:
        words = f"Where does river number {next(self.numbers)} begin?"
        body = {"model": "scripted", "stream": stream, "messages": [{"role": "user", "content": words}]}
        return await self._ask("stream" if stream else "whole", key, "chat/completions", body)

    async def embed(self, key: str) -> Seen:
        body = {"model": "minilm", "input": [f"river {next(self.numbers)}", "sea"]}
        return await self._ask("embed", key, "embeddings", body)

    async def moderate(self, key: str) -> Seen:
        return await self._ask("moderate", key, "moderations", {"input": f"river {next(self.numbers)}"})

    async def _ask(self, kind: str, key: str, path: str, body: dict[str, Any]) -> Seen:
        began = time.monotonic()
        headers = {"authorization": f"Bearer {key}"}
        response = await self.http.post(f"/v1/{path}", json=body, headers=headers)
        seen = Seen(
            kind, key, response.status_code, time.monotonic() - began, response.headers["x-request-id"]
        )
        if response.status_code != 200:
            seen.code = response.json()["error"]["code"]
        elif kind == "whole":
            seen.reason = response.json().get("tollgate", {}).get("reason")
            (choice,) = response.json()["choices"]
            seen.text, seen.finish = choice["message"]["content"] or "", choice["finish_reason"]
        elif kind == "stream":
            *events, last = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
            seen.whole = last == "[DONE]"
            for event in map(json.loads, events):
                for choice in event["choices"]:
                    seen.text += choice["delta"].get("content") or ""
                    seen.finish = choice["finish_reason"] or seen.finish
                seen.reason = event.get("tollgate", {}).get("reason", seen.reason)
        self.seen.append(seen)
        return seen

    async def flow(self, group: asyncio.TaskGroup) -> None:
        async def again_and_again(ask: Callable[[], Any]) -> None:
            while not self.over:
                await ask()
                await asyncio.sleep(0.1)

        for key in (STRICT, LOOSE):
            group.create_task(again_and_again(lambda key=key: self.chat(key, stream=True)))
            group.create_task(again_and_again(lambda key=key: self.chat(key, stream=False)))
        group.create_task(again_and_again(lambda: self.embed(LOOSE)))
        group.create_task(again_and_again(lambda: self.moderate(LOOSE)))

    async def until(self, condition: Callable[[], bool], seconds: float = 300.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def served_again(self) -> None:
        """Until there is an answer to each kind of request that is judged, made from now on."""
        start = len(self.seen)

        def served() -> bool:
            good = {
                (one.kind, one.key)
                for one in self.seen[start:]
                if one.status == 200 and one.finish != "content_filter"
            }
            return {("stream", STRICT), ("whole", STRICT), ("embed", LOOSE), ("moderate", LOOSE)} <= good

        await self.until(served)


def sidecar_of(url: str) -> list[int]:
    (gateway,) = children(os.getpid(), "serve", url.rpartition(":")[2])
    return children(gateway, "gateway.sidecar.worker")


@pytest.mark.slow
async def test_a_sidecar_that_dies_or_freezes_under_traffic(tmp_path: Path) -> None:
    with serving(tmp_path, a_policy(), workers=2, HF_HUB_OFFLINE="1") as url:
        async with httpx.AsyncClient(base_url=url, timeout=300) as http:
            traffic = Traffic(http)
            async with asyncio.TaskGroup() as group:
                await traffic.flow(group)
                await traffic.served_again()
                (first,) = sidecar_of(url)
                os.kill(first, signal.SIGKILL)
                await traffic.until(lambda: sidecar_of(url) not in ([], [first]))
                await traffic.served_again()
                (second,) = sidecar_of(url)
                os.kill(second, signal.SIGSTOP)
                try:
                    await asyncio.sleep(2.0)
                finally:
                    os.kill(second, signal.SIGCONT)
                await traffic.served_again()
                traffic.over = True
            assert sidecar_of(url) == [second], "who was frozen goes on"
            await _judged(traffic, http)
            page = (await http.get("/metrics", headers=OPERATOR)).text
            in_flight = re.findall(r"^tollgate_requests_in_flight(?:\{[^}]*\})? (\S+)$", page, re.MULTILINE)
            assert {float(figure) for figure in in_flight} == {0.0}
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert "river number" not in log


async def _judged(traffic: Traffic, http: httpx.AsyncClient) -> None:
    kinds: Counter[str] = Counter()
    for one in traffic.seen:
        assert one.whole, one
        if one.kind in ("embed", "moderate"):
            assert one.status in (200, 503, 504), one
        elif one.key == LOOSE:
            assert (one.status, one.text, one.finish) == (200, REPLY, "stop"), one
        elif one.status != 200:
            assert (one.status, one.code) == (503, "guard_unavailable"), one
            kinds["refused"] += 1
        elif one.finish == "content_filter":
            assert one.reason == "guard_unavailable" and REPLY.startswith(one.text), one
            kinds["cut"] += 1
        else:
            assert (one.text, one.finish) == (REPLY, "stop"), one
    assert kinds["refused"], "nobody was there to be refused: the test has tested nothing"
    chats = [one for one in traffic.seen if one.kind in ("whole", "stream") and one.status == 200]
    for one in chats:
        receipt = await http.get(f"/v1/requests/{one.id}", headers={"authorization": f"Bearer {one.key}"})
        if receipt.status_code == 404:  # not with this worker, where there is no Redis
            continue
        stages = receipt.json()["stages"]
        scanned = stages["guard_input"]["scanned"] and stages.get("guard_output", {}).get("scanned", True)
        kinds["scanned" if scanned else "unscanned"] += 1
        assert scanned or one.key == LOOSE or one.finish == "content_filter", (one, stages)
    assert kinds["scanned"] and kinds["unscanned"], kinds


async def test_who_waits_until_it_is_ready_is_served_at_once(tmp_path: Path) -> None:
    policy = a_policy()
    policy["guards"] = {"injection": guard("*", "block", threshold=0.999)}
    with serving(tmp_path, policy, HF_HUB_OFFLINE="1") as url:
        async with httpx.AsyncClient(base_url=url, timeout=300) as http:
            traffic = Traffic(http)
            assert (await traffic.chat(STRICT, stream=False)).status == 200
            (sidecar,) = sidecar_of(url)
            os.kill(sidecar, signal.SIGKILL)
            async with asyncio.timeout(300):
                while (answer := await http.get("/readyz", headers=OPERATOR)).status_code == 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert answer.status_code == 503
            assert set(answer.json()["guards"]) == {"injection"}
            async with asyncio.timeout(300):
                while (await http.get("/readyz", headers=OPERATOR)).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert (await traffic.chat(STRICT, stream=False)).status == 200
