"""gateway/held_prefixes/prompt_tokens.py: who is asked for a prompt's ids, and for how long."""

from __future__ import annotations

import asyncio

import httpx
import orjson
import pytest

from gateway.held_prefixes.block_keys import packed
from gateway.held_prefixes.prompt_tokens import RESTS, PromptTokens, Server
from gateway.types import ChatRequest

pytestmark = pytest.mark.anyio
SERVERS = [Server(f"http://{name}/tokenize", {}) for name in ("a", "b")]


class Tokenizers(httpx.AsyncBaseTransport):
    def __init__(self, *hang: str) -> None:
        self.hang = set(hang)
        self.ids = [1, 2, 3]
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        if request.url.host in self.hang:
            await asyncio.Event().wait()
        return httpx.Response(200, stream=httpx.ByteStream(orjson.dumps({"tokens": self.ids})))


def prompt(text: str) -> ChatRequest:
    return ChatRequest(model="m", messages=({"role": "user", "content": text},))


async def test_a_server_that_hangs_is_soon_asked_no_more_and_later_again() -> None:
    now = [0.0]
    told = Tokenizers("a", "b")
    prompts = PromptTokens(told, patience=0.001, clock=lambda: now[0])
    for n in range(20):
        assert await prompts.of(prompt(f"{n}"), "m", SERVERS) is None
    assert sorted(told.asked) == ["a"] * 3 + ["b"] * 3
    told.hang.clear()
    assert await prompts.of(prompt("again"), "m", SERVERS) is None
    now[0] += RESTS
    prompts = _patient(prompts)
    assert await prompts.of(prompt("again"), "m", SERVERS) == packed([1, 2, 3])
    assert len(told.asked) == 7
    assert prompts.outcomes == {"told": 1, "kept": 0, "late": 6, "failed": 0, "skipped": 15}


def _patient(prompts: PromptTokens) -> PromptTokens:
    prompts._patience = 300.0
    return prompts


async def test_who_is_out_of_time_asks_nobody() -> None:
    told = Tokenizers()
    prompts = PromptTokens(told, patience=300.0)
    past = asyncio.get_running_loop().time()
    assert await prompts.of(prompt("x"), "m", SERVERS, until=past) is None
    assert not told.asked


async def test_the_ids_of_a_large_answer_are_the_same() -> None:
    told = Tokenizers()
    told.ids = list(range(100_000))
    prompts = PromptTokens(told, patience=300.0)
    assert await prompts.of(prompt("x"), "m", SERVERS) == packed(told.ids)


async def test_what_was_kept_for_one_is_asked_anew_for_another() -> None:
    told = Tokenizers()
    prompts = PromptTokens(told, patience=300.0)
    for owner in ("acme", "acme", "other", "", ""):
        assert await prompts.of(prompt("x"), "m", SERVERS, owner=owner) == packed([1, 2, 3])
    assert len(told.asked) == 3 and prompts.outcomes["kept"] == 2
