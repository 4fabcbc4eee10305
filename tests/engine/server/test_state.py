"""What the engine tells of itself, by a real one."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from struct import pack

import pytest

from tests.engine.live import EngineServer, eventually


def complete(server: EngineServer, prompt: list[int], **more: object) -> None:
    answer = server.post(
        "/v1/completions", model="tiny", prompt=prompt, max_tokens=4, temperature=0, ignore_eos=True, **more
    )
    assert answer.status_code == 200, answer.text


@pytest.fixture(scope="module")
def plain(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    log = tmp_path_factory.mktemp("plain") / "log"
    with EngineServer(tiny_model, "--check-integrity", "--kv-cache-blocks", "100", log=log) as server:
        yield server


@pytest.fixture(scope="module")
def bounded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """Of contexts, up to priority 0, and of places."""
    log = tmp_path_factory.mktemp("bounded") / "log"
    options = (
        "--over-context",
        "refuse",
        "--context-cap",
        "0=40",
        "--max-num-seqs",
        "2",
        "--max-waiting",
        "1",
    )
    with EngineServer(tiny_model, *options, log=log) as server:
        yield server


def test_a_prompt_finds_in_the_digest_what_it_has_in_common_with_the_cache(plain: EngineServer) -> None:
    shared = [2 + i % 90 for i in range(100)]
    before = plain.state()["prefix_cache"]["hit_tokens"]
    complete(plain, [*shared, 5, 6])
    complete(plain, [*shared, 7, 8, 9])
    assert plain.state()["prefix_cache"]["hit_tokens"] == before + 96

    key = blake2b(b"", digest_size=8).digest()
    for block in range(6):
        key = blake2b(key + pack("<16I", *shared[block * 16 : block * 16 + 16]), digest_size=8).digest()
    reported = f"{int.from_bytes(key, 'little'):016x}"

    def known() -> bool:
        complete(plain, [1, 2, 3])
        return {"key": reported, "tokens": 96} in plain.state()["prefix_cache"]["digest"]

    eventually(known)


def test_the_start_is_told_in_parts(plain: EngineServer, tiny_model: Path) -> None:
    state = plain.state()
    assert {"imports", "model", "warm-up"} <= set(state["startup_seconds"])
    memory = state["memory_bytes"]
    # Two layers, keys and values, two heads of 16 numbers, 16 tokens, four bytes.
    assert memory["kv_cache"] == 100 * 2 * 2 * 2 * 16 * 16 * 4
    assert memory["process"] > memory["weights"] >= 0
    size = (tiny_model / "model.safetensors").stat().st_size
    assert 0.9 * size < memory["weights_predicted"] <= size
    assert "started in" in plain.log and "predicted" in plain.log


def test_nothing_is_found_again_where_prefix_caching_is_off(tiny_model: Path, tmp_path: Path) -> None:
    with EngineServer(tiny_model, "--no-prefix-caching", log=tmp_path / "log") as server:
        for _ in range(2):
            complete(server, list(range(2, 80)))
        assert server.state()["prefix_cache"] == {"hit_tokens": 0, "hit_rate": 0.0, "digest": []}


def test_an_engine_may_refuse_what_it_would_clip(bounded: EngineServer) -> None:
    limit = bounded.state()["max_model_len"]
    body = {"model": "tiny", "prompt": [5] * 8, "max_tokens": limit - 7}
    refused = bounded.http.post("/v1/completions", json=body, headers={"x-tollgate-priority": "1"})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith(
        f"This model's maximum context length is {limit} tokens. However, you requested {limit + 1} tokens "
        f"(8 in the prompt, {limit - 7} in the completion)."
    )


def test_a_cap_on_the_context_holds_up_to_its_priority(bounded: EngineServer) -> None:
    body = {"model": "tiny", "prompt": [5] * 38, "max_tokens": 4}
    low = bounded.http.post("/v1/completions", json=body, headers={"x-tollgate-priority": "0"})
    assert low.status_code == 400
    assert low.json()["error"]["code"] == "context_length_exceeded"
    assert "40" in low.json()["error"]["message"]
    high = bounded.http.post("/v1/completions", json=body, headers={"x-tollgate-priority": "1"})
    assert high.status_code == 200
    # Without a number of tokens an answer is as long as the cap leaves room for.
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "ba"}], "ignore_eos": True}
    reported = bounded.http.post("/v1/chat/completions", json=chat, headers={"x-tollgate-priority": "-1"})
    assert reported.status_code == 200, reported.text
    assert reported.json()["usage"]["total_tokens"] == 40


def test_a_request_may_ask_for_a_refusal_itself(plain: EngineServer) -> None:
    body = {"model": "tiny", "prompt": [5] * 8, "max_tokens": plain.state()["max_model_len"]}
    refuse = {"x-tollgate-over-context": "refuse"}
    refused = plain.http.post("/v1/completions", json=body, headers=refuse)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_usage_tells_what_was_cached(plain: EngineServer) -> None:
    body = {"model": "tiny", "prompt": [7 + i % 80 for i in range(100)], "max_tokens": 3, "n": 2}
    usages = [plain.http.post("/v1/completions", json=body).json()["usage"] for _ in range(2)]
    assert [usage["prompt_tokens_details"] for usage in usages] == [
        {"cached_tokens": 0},
        {"cached_tokens": 96},
    ]


def test_one_tenant_learns_nothing_of_what_another_asked(tiny_model: Path, tmp_path: Path) -> None:
    with EngineServer(tiny_model, "--block-size", "4", log=tmp_path / "log") as server:
        system = {"role": "system", "content": "ba be bi bo bu " * 4}

        def cached(text: str, salt: str | None = None, **headers: str) -> int:
            """Tokens that were found of a prompt that is then there for others."""
            body = {"model": "tiny", "messages": [system, {"role": "user", "content": text}], "max_tokens": 1}
            named = {f"x-tollgate-{name.replace('_', '-')}": value for name, value in headers.items()}
            body |= {"cache_salt": salt} if salt else {}
            answer = server.http.post("/v1/chat/completions", json=body, headers=named)
            assert answer.status_code == 200, answer.text
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        secret = "the secret of acme is 42 " * 4
        assert cached(secret, tenant="acme") == 0
        own = cached(secret, tenant="acme")
        assert own > 40
        assert cached(secret, tenant="globex") == 0
        assert cached(secret) == 0
        assert cached(secret, "acme") == 0 == cached(secret, "own", tenant="acme")
        assert cached(secret, "own", tenant="acme") == own
        # With a system prompt that is shared, that and no more is found.
        shared = cached(secret, tenant="acme", prefix_sharing="system")
        assert 0 < shared < own, "whoever named no tenant left it to everybody"
        assert cached(secret, tenant="globex", prefix_sharing="system") == shared
        assert cached("other " * 9, tenant="initech", prefix_sharing="system") == shared
        assert cached(secret, tenant="initech", prefix_sharing="all") >= own


def test_more_prompts_than_there_is_room_for_are_refused_for_good(bounded: EngineServer) -> None:
    answer = bounded.post("/v1/completions", model="tiny", prompt=["a", "b"], n=2)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert "more than the 3" in answer.json()["error"]["message"]
