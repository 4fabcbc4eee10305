"""``select: score`` of an endpoint picker, by what engines say that they hold of a prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.held_prefixes.block_keys import keys_of, packed
from gateway.picker.answer_usage import AnswerUsage
from gateway.prefix_sharing import alias, block_salt
from tests.ext_proc import BUFFERED, FULL_DUPLEX, Told, chat
from tests.fakes import FakeUpstream, reply
from tests.gateway.held_prefixes.test_engines import engine
from tests.gateway.held_prefixes.test_over_http import BLOCKS, LONG
from tests.gateway.held_prefixes.vllm_server import SIZE, VllmServer
from tests.gateway.picker.test_service import Picker, picking, policy_of, until

pytestmark = pytest.mark.anyio


def scored(servers: list[VllmServer], **model: Any) -> dict[str, Any]:
    """``m``, of two replicas: their events come from the same port of two hosts."""
    events = {"port": servers[0].events.port, "replay_port": servers[0].events.replay_port}
    backend = {
        "kind": "openai",
        "replicas": [server.base_url for server in servers],
        "kv_events": events,
    }
    targets = [{"backend": "pool", "model": "llama"}]
    return {
        "version": 1,
        "backends": {"pool": backend},
        "models": {"m": {"targets": targets, "select": "score", **model}},
    }


@pytest.fixture
async def servers() -> AsyncIterator[list[VllmServer]]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(VllmServer())
        yield [first, await stack.enter_async_context(VllmServer("127.0.0.2", beside=first))]


def place(server: VllmServer) -> str:
    return server.base_url.removeprefix("http://").removesuffix("/v1")


async def pick(
    picker: Picker, text: str, *, tenant: str = "acme", answer: bytes = b"{}", mode: int = FULL_DUPLEX
) -> Told:
    """A whole request, answered."""
    stream = picker.stream(mode)
    told = await stream.ask(chat("m", text), {"x-gateway-inference-fairness-id": tenant})
    assert told.status is None, told.error
    await stream.answered(body=answer)
    await stream.end()
    await picker.until_idle()
    return told


def sent(told: Told) -> dict[str, Any]:
    assert told.body is not None
    body: dict[str, Any] = json.loads(told.body)
    return body


async def connected(picker: Picker) -> None:
    await until(lambda: [one.connected for one in picker.pool.held.figures.values()] == [True, True])


async def blocks(picker: Picker, *counts: int) -> None:
    """Until so many are known of each."""

    def known() -> list[int]:
        figures = picker.pool.held.figures
        return [figures[name].blocks for name in sorted(figures)]

    await until(lambda: known() == list(counts))


@pytest.mark.usefixtures("patient")
async def test_a_request_goes_where_events_say_its_prefix_is(
    tmp_path: Path, servers: list[VllmServer]
) -> None:
    async with picking(tmp_path, scored(servers)) as picker:
        await connected(picker)
        salt = sent(await pick(picker, "hello"))["cache_salt"]
        for number, server in enumerate(servers):
            # By another gateway, and never through this picker.
            server.compute(json.loads(chat("llama", f"{number} {LONG}")), salt)
        await blocks(picker, BLOCKS, BLOCKS)
        for mode in (FULL_DUPLEX, BUFFERED):
            for number, server in enumerate(servers):
                told = await pick(picker, f"{number} {LONG}", mode=mode)
                assert told.endpoint == place(server)
                assert (sent(told)["model"], sent(told)["cache_salt"]) == ("llama", salt)
        assert picker.value("tollgate_epp_prompt_ids_total", outcome="told") > 0
        name = f"pool@{place(servers[0])}"
        assert picker.value("tollgate_epp_kv_blocks_held", backend=name) >= BLOCKS
        assert picker.value("tollgate_epp_kv_events_connected", backend=name) == 1


@pytest.mark.usefixtures("patient")
async def test_tenants_have_salts_of_their_own_and_count_no_others_blocks(
    tmp_path: Path, servers: list[VllmServer]
) -> None:
    async with picking(tmp_path, scored(servers)) as picker:
        await connected(picker)
        mine = sent(await pick(picker, "hi", tenant="acme"))["cache_salt"]
        theirs = sent(await pick(picker, "hi", tenant="other"))["cache_salt"]
        assert mine != theirs
        servers[0].compute(json.loads(chat("llama", LONG)), mine)
        await blocks(picker, BLOCKS, 0)
        places = {(await pick(picker, f"{LONG} {n}")).endpoint for n in range(4)}
        assert places == {place(servers[0])}
        # A caller that knows the salt is not taken for the one whose it is.
        stream = picker.stream()
        body = chat("m", LONG, cache_salt=mine)
        told = await stream.ask(body, {"x-gateway-inference-fairness-id": "other"})
        assert sent(told)["cache_salt"] not in (mine, theirs)
        stream.cancel()
        await picker.apply(scored(servers, prefix_sharing="all"))
        assert "cache_salt" not in sent(await pick(picker, "hi"))


@pytest.mark.usefixtures("patient")
async def test_who_claims_what_it_has_not_is_found_out_by_the_answers(
    tmp_path: Path, servers: list[VllmServer]
) -> None:
    liar = servers[0]
    async with picking(tmp_path, scored(servers)) as picker:
        await connected(picker)
        tokens = len(LONG.split()) + 1
        usage = {"prompt_tokens": tokens, "prompt_tokens_details": {"cached_tokens": 16}}
        salt = sent(await pick(picker, "hello", answer=json.dumps({"usage": usage}).encode()))["cache_salt"]
        texts = [f"{n} {LONG}" for n in range(8)]
        for text in texts:
            liar.claim(json.loads(chat("llama", text)), salt)
        await blocks(picker, BLOCKS * len(texts), 0)
        usage["prompt_tokens_details"] = {"cached_tokens": 0}
        places = [
            (await pick(picker, text, answer=json.dumps({"choices": [], "usage": usage}).encode())).endpoint
            for text in texts
        ]
        assert places[0] == place(liar), "it is believed at first"
        credit = picker.pool.holdings.credit
        assert credit.of(f"pool@{place(liar)}") < 0.95
        assert credit.of(f"pool@{place(servers[1])}") == 1.0


async def test_ids_that_never_come_and_a_policy_without_events_hold_nothing_up(
    tmp_path: Path, servers: list[VllmServer]
) -> None:
    for server in servers:
        server.tokenizes = None
    written = scored(servers)
    async with picking(tmp_path, written) as picker:
        first = (await pick(picker, LONG)).endpoint
        assert (await pick(picker, LONG)).endpoint == first, "what was sent where decides"
        assert picker.pool.held.outcomes["told"] == 0
        del written["backends"]["pool"]["kv_events"]
        await picker.apply(written)
        assert "cache_salt" not in sent(await pick(picker, LONG))
        assert not picker.pool.held.figures


@pytest.mark.usefixtures("patient")
async def test_a_bundled_engines_digest_is_heeded(tmp_path: Path) -> None:
    ids = list(range(1000, 1256))
    keys = keys_of(packed(ids), SIZE, "", block_salt("acme", "none"))
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(FakeUpstream(reply({"tokens": ids, "count": len(ids)})))
            for _ in range(2)
        ]
        cache = {"block_size": SIZE, "blocks_total": 1000, "usage": 0.0}
        policy = policy_of()
        urls = [one.base_url.removesuffix("/v1") for one in engines]
        policy["backends"]["pool"] = {"kind": "engine", "replicas": urls}
        policy["models"] = {"m": {"targets": [{"backend": "pool", "model": "m"}], "select": "score"}}
        for one in engines:
            one.health = reply({"kv_cache": cache, "prefix_cache": {}})
        picker = await stack.enter_async_context(picking(tmp_path, policy))
        for holder in (0, 1):
            name = f"pool@{urls[holder].removeprefix('http://')}"
            digest = [{"key": f"{keys[-1]:016x}", "tokens": len(ids)}]
            engines[holder].health = reply({"kv_cache": cache, "prefix_cache": {"digest": digest}})
            engines[1 - holder].health = reply({"kv_cache": cache, "prefix_cache": {"digest": []}})
            digests = picker.pool.held.digests
            other = f"pool@{urls[1 - holder].removeprefix('http://')}"
            await until(
                lambda: (
                    digests.block_size(name)  # noqa: B023
                    and digests.block_size(other)  # noqa: B023
                    and digests.held(name, keys) > digests.held(other, keys)  # noqa: B023
                )
            )
            # Another prompt each time, of the same tokens: nothing was sent there.
            assert f"pool@{(await pick(picker, f'{holder} hello')).endpoint}" == name


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    "path",
    ["/llm/v1/chat/completions", "http://models.test/v1/chat/completions?a=/x", "/v1/chat/completions?"],
)
async def test_a_path_with_a_prefix_and_a_whole_url_are_read_alike(
    tmp_path: Path, servers: list[VllmServer], path: str
) -> None:
    async with picking(tmp_path, scored(servers)) as picker:
        stream = picker.stream()
        assert "cache_salt" in sent(await stream.ask(chat(), path=path))
        stream.cancel()


@pytest.mark.parametrize(
    ("status", "response_mode", "learned"),
    [(200, FULL_DUPLEX, True), (429, FULL_DUPLEX, False), (200, BUFFERED, False)],
)
async def test_only_an_answers_first_piece_tells_how_fast_an_engine_is(
    tmp_path: Path, status: int, response_mode: int, learned: bool
) -> None:
    policy = policy_of("10.0.0.1:8000", "10.0.0.2:8000")
    policy["models"]["m"]["select"] = "score"
    async with picking(tmp_path, policy) as picker:
        stream = picker.stream(FULL_DUPLEX, response_mode)
        told = await stream.ask(chat("m", LONG, stream=True))
        await stream.answered(status, body=b"data: {}\n\n")
        await stream.end()
        await picker.until_idle()
        outlook = picker.pool.scores.known()[f"pool@{told.endpoint}"]
        assert (outlook.speed is not None) is learned
        assert (outlook.running, outlook.ahead) == (0, 0.0)


@pytest.mark.slow
async def test_a_request_goes_to_the_engine_whose_digest_has_its_prefix(tmp_path: Path) -> None:
    text = "The quick brown fox jumps over the lazy dog and runs into the wood. " * 6
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(engine(tmp_path)) for _ in range(2)]
        policy = policy_of()
        policy["backends"]["pool"] = {"kind": "engine", "replicas": urls}
        policy["models"] = {"m": {"targets": [{"backend": "pool", "model": "demo"}], "select": "score"}}
        picker = await stack.enter_async_context(picking(tmp_path, policy))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=300))
        for number, url in enumerate([*urls, urls[0]]):
            right = 0
            async with asyncio.timeout(300):
                # Asked past the picker, and never before: only the digest tells.
                for attempt in range(1000):
                    body = json.loads(chat("demo", f"{number} {attempt} {text}", max_tokens=1))
                    headers = {"x-tollgate-tenant": alias("acme")}
                    answer = await http.post(f"{url}/v1/chat/completions", json=body, headers=headers)
                    assert answer.status_code == 200, answer.text
                    await asyncio.sleep(1.0)  # it is told once a second, and asked for twice
                    told = await pick(picker, f"{number} {attempt} {text}")
                    right = right + 1 if f"http://{told.endpoint}" == url else 0
                    if right == 4:
                        break
            assert right == 4


@pytest.mark.parametrize(
    ("body", "cached"),
    [
        (b'{"usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}}}', 0.64),
        (b'data: {"usage":{"prompt_tokens":100,"completion_tokens":1}}\n\ndata: [DONE]\n\n', 0.0),
        (b'{"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 64}}}', 1.0),
        (b'{"usage": {"prompt_tokens": 0}}', None),
        (b'{"choices": [{"message": {"content": "\\"prompt_tokens\\": 7"}}]}', None),
        (b"\x1f\x8b compressed", None),
        (b"", None),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_how_much_was_cached_is_read_at_an_answers_end(body: bytes, cached: float | None, size: int) -> None:
    usage, whole = AnswerUsage(), b"x" * 9000 + body
    for start in range(0, len(whole), size):
        usage.add(whole[start : start + size])
    assert usage.cached() == cached
