"""Prompts that come back from host memory, and from disk after the engine was killed; and those that ask to be kept."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from httpx import Response

from tests.engine.live import EngineServer, eventually

LONG = 320
OPTIONS = ("--check-integrity", "--dtype", "float32", "--kv-cache-blocks", "40", "--max-model-len", "384")


def ask(server: EngineServer, text: int, **more: object) -> tuple[str, int]:
    """The answer, and how much of the prompt was cached. Prompts of different ``text`` have nothing in common."""
    answer = server.post(
        "/v1/completions",
        model="tiny",
        prompt=[2 + (text * 37 + place * (1 + text)) % 300 for place in range(LONG)],
        max_tokens=8,
        temperature=0,
        ignore_eos=True,
        **more,
    )
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["choices"][0]["text"], body["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_killed_engine_has_on_disk_what_it_computed(tiny_model: Path, tmp_path: Path) -> None:
    disk = ("--host-kv-memory", "4MiB", "--disk-kv-size", "4MiB", "--disk-kv", str(tmp_path / "kv"))
    with EngineServer(tiny_model, *OPTIONS, *disk, log=tmp_path / "first") as server:
        first, cached = ask(server, 1)
        assert cached == 0
        for text in (2, 3):
            ask(server, text)
        again, cached = ask(server, 1)
        assert again == first and cached == LONG - 16
        eventually(lambda: server.state()["kv_tiers"]["blocks_written"] >= 3 * LONG // 16)
        tiers = server.state()["kv_tiers"]
        assert tiers["blocks_loaded"] > 0 and tiers["host_blocks"] == tiers["disk_blocks"] > 0

        def told() -> bool:
            ask(server, 3)  # the digest is of the last step
            return any(one.get("tier") == "host" for one in server.state()["prefix_cache"]["digest"])

        eventually(told)
        tiers = server.state()["kv_tiers"]
        metrics = server.http.get("/metrics").text
        assert f"kv_blocks_loaded_total {float(tiers['blocks_loaded'])}" in metrics
        os.kill(server.core_pid, signal.SIGKILL)
        assert server.process.wait() == 1
    with EngineServer(tiny_model, *OPTIONS, *disk, log=tmp_path / "second") as server:
        assert ask(server, 1) == (first, LONG - 16)
        assert server.state()["kv_tiers"]["blocks_read"] >= LONG // 16 - 1


def test_a_prompt_can_ask_to_be_kept(server: EngineServer) -> None:
    def ask_for(options: object) -> Response:
        return server.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "keep this " * 20}],
            model="long",
            max_tokens=1,
            prompt_cache_options=options,
        )

    assert ask_for({"mode": "implicit"}).status_code == 200
    before = server.state()["kv_cache"]["blocks_pinned"]
    assert ask_for({"ttl": "10m", "mode": "implicit"}).status_code == 200
    assert server.state()["kv_cache"]["blocks_pinned"] > before
    for wrong in ({"ttl": "soon"}, {"ttl": "-1m"}, {"ttl": 30}, "30m"):
        answer = ask_for(wrong)
        assert answer.status_code == 400 and "prompt_cache_options" in answer.json()["error"]["param"]
