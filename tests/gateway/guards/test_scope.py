"""Guards of one key, model or route among requests of others, whose answers a cache keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.serving import KEY, NARROW_KEY, Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio


def cutting(**more: Any) -> dict[str, Any]:
    words = {"kind": "topics", "on": ["output"], "words": ["two"], **more}
    return a_policy("http://127.0.0.1:1/v1", guards={"words": words}, caches={"exact": {}})


async def ask(
    gateway: Gateway, token: str, path: str = "/v1/chat/completions", **body: Any
) -> tuple[Any, ...]:
    """How it ended, what the cache did, and what the caller is told of the cut."""
    answer = await gateway.http.post(
        path, json=body or chat("fake"), headers={"authorization": f"Bearer {token}"}
    )
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["choices"][0]["finish_reason"], answer.headers["x-tollgate-cache"], found.get("tollgate", {})


async def test_a_cached_answer_is_not_given_past_the_guard_of_another_key(tmp_path: Path) -> None:
    async with serving(tmp_path / "p", cutting(keys=["narrow-*"])) as gateway:
        for _ in range(3):  # by the stages, by the cache, and as rendered bytes
            assert (await ask(gateway, KEY))[0] == "stop"
            assert (await ask(gateway, NARROW_KEY))[0] == "content_filter"
        assert (await ask(gateway, KEY))[1] == "exact"


async def test_a_cached_answer_is_not_given_past_the_guard_of_another_route(tmp_path: Path) -> None:
    text = {"model": "fake", "prompt": "Hi"}
    async with serving(tmp_path / "p", cutting(routes=["/v1/completions"])) as gateway:
        for _ in range(3):
            assert (await ask(gateway, KEY))[0] == "stop"
            assert (await ask(gateway, KEY, "/v1/completions", **text))[0] == "content_filter"


async def test_guards_for_all_share_a_tenants_answers(tmp_path: Path) -> None:
    async with serving(tmp_path / "p", cutting(words=["absent"])) as gateway:
        assert (await ask(gateway, KEY))[1] == "miss"
        assert (await ask(gateway, NARROW_KEY))[1] == "exact"


async def test_who_gets_a_cut_answer_is_told_in_the_policys_words(tmp_path: Path) -> None:
    async with serving(tmp_path / "p", cutting(message="Not here.")) as gateway:
        assert (await ask(gateway, KEY))[2]["message"] == "Not here."
