"""What the keys of ``backends.<name>.kv_events`` do: what a gateway knows then of what a server says that it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.held_prefixes.block_keys import keys_of, packed
from gateway.held_prefixes.held_prefixes import FILE
from gateway.held_prefixes.table_reader import TableReader, places_of
from tests.e2e.keys.harness import shows
from tests.gateway.held_prefixes.vllm_server import SIZE, VllmServer, ids_of
from tests.serving import KEY, a_policy, key, serving

pytestmark = pytest.mark.anyio

EVENTS = "backends.<name>.kv_events"
MARK, HELD = "the mark", "the prompt that is held"
"""Each with so many words that it has whole blocks."""


def chat(text: str) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": " ".join(f"{text}{n}" for n in range(40))}],
    }


def policy(server: VllmServer, events: dict[str, Any] | None) -> dict[str, Any]:
    backend = {
        "kind": "openai",
        "base_url": server.base_url,
        **({} if events is None else {"kv_events": events}),
    }
    model = {"targets": [{"backend": "vllm", "model": "llama"}], "select": "score", "prefix_sharing": "all"}
    return a_policy(
        "", backends={"vllm": backend}, models={"m": model}, keys=[key(KEY, "acme-1", tenant="acme")]
    )


async def known(
    folder: Path,
    server: VllmServer,
    events: dict[str, Any] | None,
    say: Callable[[], None],
    until: Callable[[set[str]], bool],
) -> set[str]:
    """Which of the two prompts the gateway knows to be held once ``until`` holds; ``say`` is said again and again, as a
    subscriber misses what was published before it had connected."""
    async with serving(folder / "p", policy(server, events), slots=folder):
        reader = TableReader(folder / FILE)
        try:
            async with asyncio.timeout(300):
                while True:
                    say()
                    await asyncio.sleep(0.05)
                    names = [f"vllm{rank}" for rank in ("", "#0", "#1")]
                    places = places_of(reader.replicas(), names)
                    found = {
                        text
                        for text in (MARK, HELD)
                        if any(reader.in_a_row(keys_of(packed(ids_of(chat(text))), SIZE), places).values())
                    }
                    if until(found):
                        return found
        finally:
            reader.close()


@shows(EVENTS + " (openai)", EVENTS + ".port (openai)")
async def test_what_is_published_is_known(tmp_path: Path) -> None:
    async with VllmServer() as server:
        given = {"port": server.events.port}
        found = await known(tmp_path / "1", server, given, lambda: server.claim(chat(HELD), None), bool)
        assert found == {HELD}
    async with (
        VllmServer() as server,
        serving(tmp_path / "2" / "p", policy(server, None), slots=tmp_path / "2"),
    ):
        assert not (tmp_path / "2" / FILE).exists()


@shows(EVENTS + ".topic (openai)")
async def test_other_topics_are_not_heard(tmp_path: Path) -> None:
    for topic, expected in (("", {MARK, HELD}), ("kv@", {MARK})):
        async with VllmServer() as server:

            def say(server: VllmServer = server) -> None:
                for name, text in ((b"other", HELD), (b"kv@", MARK)):
                    server.events.topic = name
                    server.claim(chat(text), None)

            given = {"port": server.events.port, "topic": topic}
            found = await known(tmp_path / str(len(topic)), server, given, say, lambda found: MARK in found)
            assert found == expected


@shows(EVENTS + ".replay_port (openai)")
async def test_what_was_missed_is_asked_for_again(tmp_path: Path) -> None:
    for replay in (False, True):
        async with VllmServer() as server:
            said = [0]

            def say(server: VllmServer = server, said: list[int] = said) -> None:
                if not said[0]:
                    publish, server.events.publish = (
                        server.events.publish,
                        lambda *events, **_: publish(*events, silently=True),
                    )
                    server.claim(chat(HELD), None)
                    server.events.publish = publish
                said[0] += 1
                server.claim(chat(MARK), None)

            given = {"port": server.events.port}
            if replay:
                given["replay_port"] = server.events.replay_port
            expected = {MARK, HELD} if replay else {MARK}
            found = await known(tmp_path / str(replay), server, given, say, expected.issubset)
            assert found == expected


@shows(EVENTS + ".ranks (openai)")
async def test_each_rank_is_heard_at_a_port_of_its_own(tmp_path: Path) -> None:
    async with VllmServer() as server:
        given = {"port": server.events.port - 1, "ranks": 2}
        found = await known(tmp_path, server, given, lambda: server.claim(chat(HELD), None), bool)
        assert found == {HELD}
