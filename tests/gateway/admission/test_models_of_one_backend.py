"""A backend that names no limit, whose one model is overloaded while another answers at once: over sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.fakes import FakeUpstream, Received, Script, answer_events, stream
from tests.serving import a_policy, chat, serving

pytestmark = pytest.mark.anyio

CLIENTS, UNHURT = 40, 4
"""Requests for ``busy`` at once, and so many that it answers at once."""


class Models(FakeUpstream):
    """``busy`` takes longer the more of its requests it has; ``quick`` answers at once."""

    def __init__(self) -> None:
        super().__init__()
        self.busy: list[Received] = []
        self.holding = False
        self.released = asyncio.Event()

    def under_way(self) -> int:
        """Of ``busy``."""
        self.busy = [one for one in self.busy if not (one.finished.is_set() or one.left.is_set())]
        return len(self.busy)

    def next_script(self) -> Script:
        asked = self.requests[-1]
        if asked.json()["model"] != "busy":
            return stream(*answer_events("Hello"))
        self.busy.append(asked)
        late = self.released if self.holding else 0.1 * max(0, self.under_way() - UNHURT)
        return stream(late, *answer_events("Hello"))


@pytest.mark.parametrize("separate", [False, True], ids=["one backend", "a backend each"])
async def test_an_overloaded_model_is_limited_where_it_is_a_backend_of_its_own(
    tmp_path: Path, separate: bool
) -> None:
    async with Models() as upstream:
        policy = a_policy(upstream.base_url, tiers={"default": {"max_wait": "5m"}})
        policy["backends"]["own"] = {"kind": "openai", "base_url": upstream.base_url}
        of_busy = "own" if separate else "up"
        policy["models"]["busy"] = {"targets": [{"backend": of_busy, "model": "busy"}]}
        policy["models"]["quick"] = {"targets": [{"backend": "up", "model": "quick"}]}
        async with serving(tmp_path / "p", policy) as gateway:

            async def ask(model: str) -> None:
                response = await gateway.http.post("/v1/chat/completions", json=chat(model, stream=True))
                assert response.status_code == 200

            async def again_and_again() -> None:
                while True:
                    await ask("quick")
                    await asyncio.sleep(0.01)

            for _ in range(12):  # both are known from a quiet time
                await ask("busy")
                await ask("quick")
            others = [asyncio.create_task(again_and_again()) for _ in range(4)]
            for _ in range(2):
                await asyncio.gather(*(ask("busy") for _ in range(CLIENTS)))
            upstream.holding = True
            asked = [asyncio.create_task(ask("busy")) for _ in range(CLIENTS)]
            waiting = f'tollgate_backend_requests_waiting{{backend="{of_busy}"}}'
            async with asyncio.timeout(60):
                queued = 0.0
                while queued + upstream.under_way() < CLIENTS:
                    queued = (await gateway.metrics()).get(waiting, 0.0)
            upstream.released.set()
            await asyncio.gather(*asked)
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
    if separate:
        assert queued > 0, "they wait here, in fair turns"
    else:
        assert queued == 0, "a limit for both would make the quick one's callers wait for the busy one"
