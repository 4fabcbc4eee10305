"""Either process killed in the middle of ten prompts: no answer is lost, no block either."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.engine.live import EngineServer, eventually

# --check-integrity ends a process that loses a block.
OPTIONS = ("--check-integrity", "--dtype", "float32", "--kv-cache-blocks", "400", "--host-kv-memory", "16MiB")
TEN = range(10)


def ask(server: EngineServer, number: int, salt: str = "") -> str:
    prompt = [2 + (number * 37 + place * (1 + number)) % 300 for place in range(400)]
    seeded = {"temperature": 1.0, "seed": number} if number % 2 else {"temperature": 0}
    salted = {"cache_salt": salt} if salt else {}
    answer = server.post(
        "/v1/completions", model="tiny", prompt=prompt, max_tokens=16, ignore_eos=True, **seeded, **salted
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def all_of(server: EngineServer, salt: str = "") -> list[str]:
    with ThreadPoolExecutor(len(TEN)) as threads:
        return list(threads.map(lambda number: ask(server, number, salt), TEN))


def idle(server: EngineServer) -> bool:
    state = server.state()
    return state["kv_cache"]["blocks_used"] == state["waiting"] == state["loading"] == 0


def test_either_side_is_killed(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret of sixteen bytes or more")
    (tmp_path / "secret").chmod(0o600)
    secret = ("--handover-secret-file", str(tmp_path / "secret"))
    at = f"unix://{tmp_path}/kv.sock"
    decode = (*OPTIONS, *secret, "--role", "decode", "--prefill-from", at)
    # Prompts are shorter than the default of --handover-min-tokens once something of them is cached.
    decode = (*decode, "--handover-timeout", "250", "--handover-min-tokens", "32")
    prefill = (*OPTIONS, *secret, "--role", "prefill", "--handover-address", at)
    with EngineServer(tiny_model, *prefill, log=tmp_path / "prefill") as gives:
        core = gives.core_pid
        # By one engine that computes all of it.
        alone = all_of(gives, salt="alone")
        with EngineServer(tiny_model, *decode, log=tmp_path / "decode") as asks:
            assert all_of(asks, salt="first") == alone
            state = asks.state()["handover"]
            assert (state["role"], state["fetched_blocks"], state["failed"]) == ("decode", 240, 0)
            assert 'handover_blocks_total{outcome="fetched"} 240.0' in asks.http.get("/metrics").text
            os.kill(core, signal.SIGSTOP)
            with ThreadPoolExecutor(len(TEN)) as threads:
                lost = [threads.submit(ask, asks, number, "second") for number in TEN]
                eventually(lambda: asks.state()["loading"] == len(TEN))
                os.kill(asks.core_pid, signal.SIGKILL)
                assert all(isinstance(one.exception(), AssertionError | httpx.TransportError) for one in lost)
            os.kill(core, signal.SIGCONT)
        # Some were asked for on a connection of before: computed or not, they left nothing.
        eventually(
            lambda: gives.state()["handover"]["given_prompts"] + gives.state()["handover"]["abandoned"] > 10
        )
        eventually(lambda: idle(gives))
        assert all_of(gives) == alone
        with EngineServer(tiny_model, *decode, log=tmp_path / "successor") as asks:
            os.kill(core, signal.SIGSTOP)
            with ThreadPoolExecutor(1) as threads:
                answers = threads.submit(all_of, asks, "third")
                eventually(lambda: asks.state()["loading"] == len(TEN))
                os.kill(core, signal.SIGKILL)
                assert answers.result() == alone
            assert asks.state()["handover"]["failed"] == len(TEN) and idle(asks)
            assert gives.process.wait() == 1
            assert all_of(asks, "fourth") == alone
