"""``select: score`` by what servers say that they hold: a gateway, and scripted vLLM servers with real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.held_prefixes.block_keys import keys_of, packed
from gateway.held_prefixes.held_prefixes import FILE
from gateway.held_prefixes.table_reader import TableReader, places_of
from tests.gateway.held_prefixes.vllm_server import SIZE, VllmServer, ids_of
from tests.serving import KEY, OTHER_KEY, Gateway, a_policy, key, serving

pytestmark = pytest.mark.anyio

LONG = " ".join(f"word{n}" for n in range(800))
BLOCKS = 801 // SIZE
TENANTS = [key(KEY, "acme-1", tenant="acme"), key(OTHER_KEY, "other-1", tenant="other")]


def policy(*servers: VllmServer, sharing: str = "none", **backend: Any) -> dict[str, Any]:
    """Servers listen at ports of their own here: each is a backend."""
    backends = {
        f"vllm{n}": {
            "kind": "openai",
            "base_url": server.base_url,
            "kv_events": {"port": server.events.port, "replay_port": server.events.replay_port},
            **backend,
        }
        for n, server in enumerate(servers)
    }
    targets = [{"backend": name, "model": "llama"} for name in backends]
    model = {"targets": targets, "select": "score", "retry": {"attempts": 1}, "prefix_sharing": sharing}
    return a_policy("", backends=backends, models={"m": model}, keys=TENANTS)


@asynccontextmanager
async def vllms(count: int) -> AsyncIterator[list[VllmServer]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(VllmServer()) for _ in range(count)]


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


async def ask(gateway: Gateway, text: str, *, as_key: str = KEY, **more: Any) -> dict[str, Any]:
    """What its receipt says of the choice."""
    return await ask_body(gateway, chat(text, **more), as_key=as_key)


async def ask_body(gateway: Gateway, body: dict[str, Any], *, as_key: str = KEY) -> dict[str, Any]:
    head = {"authorization": f"Bearer {as_key}"}
    answer = await gateway.http.post("/v1/chat/completions", json=body, headers=head)
    assert answer.status_code == 200, answer.text
    receipt = await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}", headers=head)
    found: dict[str, Any] = receipt.json()["stages"]["score"]["m"]
    return found


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(300):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def went_to(score: dict[str, Any]) -> str:
    return str(score["looked_at"][0]["backend"])


def held(score: dict[str, Any]) -> dict[str, int]:
    """By backend, tokens."""
    return {one["backend"]: one["held_tokens"] for one in score["looked_at"]}


class Table:
    """What the gateway's table says of a prompt."""

    def __init__(self, folder: Path) -> None:
        self._reader = TableReader(folder / FILE)

    def blocks(self, server: int, text: str, salt: str = "") -> int:
        places = places_of(self._reader.replicas(), [f"vllm{server}"])
        keys = keys_of(packed(ids_of(chat(text))), SIZE, "", salt.encode())
        return max(self._reader.in_a_row(keys, places).values(), default=0)

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(tmp_path)
    yield made
    made.close()


def salt_of(server: VllmServer) -> str:
    return str(server.asked[-1].get("cache_salt", ""))


@pytest.mark.usefixtures("patient")
async def test_a_request_goes_where_its_prefix_is(tmp_path: Path, table: Table) -> None:
    async with vllms(2) as servers, serving(tmp_path / "p", policy(*servers), slots=tmp_path) as gateway:
        first = int(went_to(await ask(gateway, LONG + " one"))[-1])
        other = 1 - first
        salt = salt_of(servers[first])
        assert salt, "each tenant has its own"
        await until(lambda: table.blocks(first, LONG, salt) == BLOCKS)
        again = await ask(gateway, LONG + " two")
        assert went_to(again) == f"vllm{first}" and held(again)[f"vllm{first}"] == BLOCKS * SIZE
        # It has lost all of it, and another has it now: what the gateway has sent where says the contrary.
        servers[first].clear()
        servers[other].compute(chat(LONG), salt)
        await until(lambda: (table.blocks(first, LONG, salt), table.blocks(other, LONG, salt)) == (0, BLOCKS))
        moved = await ask(gateway, LONG + " three")
        assert went_to(moved) == f"vllm{other}" and held(moved)[f"vllm{first}"] == 0
        servers[other].evict()
        await until(lambda: table.blocks(other, LONG, salt) == 0)
        assert set(held(await ask(gateway, LONG + " four")).values()) == {0}
        told = 'tollgate_prompt_ids_total{outcome="told"}'
        async with asyncio.timeout(300):
            while (figures := await gateway.metrics()).get(told) != 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert figures[f'tollgate_kv_events_connected{{backend="vllm{other}"}}'] == 1
        assert f'tollgate_kv_events_total{{backend="vllm{other}"}}' in figures


@pytest.mark.usefixtures("patient")
async def test_no_tenant_counts_anothers_blocks(tmp_path: Path, table: Table) -> None:
    async with vllms(2) as servers:
        await _no_tenant_counts_anothers_blocks(tmp_path, table, servers)


async def _no_tenant_counts_anothers_blocks(tmp_path: Path, table: Table, servers: list[VllmServer]) -> None:
    async with serving(tmp_path / "p", policy(*servers), slots=tmp_path) as gateway:
        mine = int(went_to(await ask(gateway, LONG, cache_salt="own"))[-1])
        salt = salt_of(servers[mine])
        assert salt != "own"
        await until(lambda: table.blocks(mine, LONG, salt) == BLOCKS)
        theirs = await ask(gateway, LONG, as_key=OTHER_KEY, cache_salt="own")
        assert set(held(theirs).values()) == {0}
        they = int(went_to(theirs)[-1])
        their_salt = salt_of(servers[they])
        assert their_salt != salt
        await until(lambda: table.blocks(they, LONG, their_salt) == BLOCKS)
        # And a caller that knows the salt is not taken for the one whose it is.
        assert set(held(await ask(gateway, LONG, as_key=OTHER_KEY, cache_salt=salt)).values()) == {0}
        assert went_to(await ask(gateway, LONG, cache_salt="own")) == f"vllm{mine}"
    shared_by_all = policy(*servers, sharing="all")
    async with serving(tmp_path / "q", shared_by_all, slots=tmp_path) as gateway:
        shared = int(went_to(await ask(gateway, LONG))[-1])
        assert "cache_salt" not in servers[shared].asked[-1]
        await until(lambda: table.blocks(shared, LONG) == BLOCKS)
        assert held(await ask(gateway, LONG, as_key=OTHER_KEY))[f"vllm{shared}"] == BLOCKS * SIZE


@pytest.mark.usefixtures("patient")
async def test_who_claims_what_it_has_not_is_believed_less_and_asked_all_the_same(
    tmp_path: Path, table: Table
) -> None:
    async with vllms(2) as servers, serving(tmp_path / "p", policy(*servers), slots=tmp_path) as gateway:
        # Both have answered with cached tokens, so it is known that such servers tell.
        for n in range(12):
            await ask(gateway, f"{n % 2} {LONG}")
        salt = salt_of(servers[0] if servers[0].asked else servers[1])
        liar, honest = servers
        liar.remembers = False
        claims = []
        for n in range(8):
            text = f"lie{n} {LONG}"
            liar.claim(chat(text), salt)
            honest.compute(chat(" ".join(text.split()[:400])), salt)
            await until(lambda: table.blocks(0, text, salt) == BLOCKS and table.blocks(1, text, salt) >= 24)  # noqa: B023
            score = await ask(gateway, text)
            claims.append(held(score)["vllm0"])
        assert claims[0] == BLOCKS * SIZE, "it is believed at first"
        assert claims[-1] < claims[0] / 2, "and less with each answer"
        assert went_to(score) == "vllm1"
        # It is still asked where it has as much as others: nobody is shut out.
        before = len(liar.asked)
        async with asyncio.timeout(300):
            while len(liar.asked) == before:
                await ask(gateway, f"new{len(honest.asked)} {LONG[:200]}")


@pytest.mark.usefixtures("patient")
async def test_a_stream_goes_there_too_and_replicas_that_go_are_followed_no_more(
    tmp_path: Path, table: Table
) -> None:
    async with vllms(2) as servers, serving(tmp_path / "p", policy(*servers), slots=tmp_path) as gateway:
        first = int(went_to(await ask(gateway, LONG))[-1])
        salt = salt_of(servers[first])
        await until(lambda: table.blocks(first, LONG, salt) == BLOCKS)
        body = chat(LONG + " and more", stream=True)
        async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            text = (await answer.aread()).decode()
        assert "Hello " in text and "there" in text and text.rstrip().endswith("[DONE]")
        assert servers[first].asked[-1]["messages"] == body["messages"]
        # Where nobody asks for it, nothing is followed, nor sent.
        without = policy(*servers)
        for backend in without["backends"].values():
            del backend["kv_events"]
        gateway.write(without)
        await until(lambda: table.blocks(first, LONG, salt) == 0)
        async with asyncio.timeout(300):
            while "cache_salt" in servers[int(went_to(await ask(gateway, LONG))[-1])].asked[-1]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_ids_that_are_late_or_cannot_be_had_hold_nothing_up(tmp_path: Path) -> None:
    async with vllms(2) as servers, serving(tmp_path / "p", policy(*servers), slots=tmp_path) as gateway:
        servers[0].tokenizes, servers[1].tokenizes = (
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            None,
        )
        for n in range(2):
            first = went_to(await ask(gateway, f"{n} {LONG}"))
            # What was sent where decides.
            again = await ask(gateway, f"{n} {LONG} more")
            assert went_to(again) == first and held(again)[first] > 0


@pytest.mark.usefixtures("patient")
async def test_nobody_learns_by_kept_ids_what_another_tenant_asked(tmp_path: Path) -> None:
    async with vllms(2) as servers, serving(tmp_path / "p", policy(*servers), slots=tmp_path) as gateway:
        for number, who in enumerate((KEY, OTHER_KEY, KEY, OTHER_KEY)):
            await ask(gateway, LONG, as_key=who)
            assert sum(server.tokenized for server in servers) == min(number + 1, 2)
