"""gateway/held_prefixes: whom a policy has followed, and asked for token ids; what engines' digests say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.held_prefixes.block_keys import keys_of, packed
from gateway.held_prefixes.digests import Digests
from gateway.held_prefixes.held_prefixes import HeldPrefixes
from gateway.held_prefixes.watched import groups_of, publishers_of
from gateway.policy.loader import load_policy
from gateway.policy.members import Members, with_members
from gateway.policy.schema import KvEvents, Policy
from gateway.replicas.discovery import written_down
from tests.fakes import a_call
from tests.gateway.held_prefixes.test_prompt_tokens import Tokenizers

POLICY = """
version: 1
backends:
  vllm:
    kind: openai
    api_key: sk-1
    replicas: ["http://10.0.0.7:8000/v1", "http://[fd00::8]:8000/v1"]
    kv_events: {port: 6000, topic: kv@, replay_port: 7000, ranks: 2}
  own: {kind: engine, replicas: ["http://10.0.1.1:8100"]}
  other: {kind: openai, base_url: "http://10.0.2.1:8000/v1"}
models:
  a: {targets: [{backend: vllm, model: llama}, {backend: own, model: qwen}, {backend: other, model: x}], select: score}
  b: {targets: [{backend: vllm, model: llama}]}
"""


def test_a_policys_publishers_and_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(POLICY)
    loaded = load_policy(tmp_path, env={})
    loaded, members = with_members(loaded, written_down(loaded.policy))
    groups = groups_of(loaded.policy, members)
    assert groups.keys() == {"a"}
    vllm, own = groups["a"]
    assert [one.url for one in vllm.servers] == [
        "http://10.0.0.7:8000/tokenize",
        "http://[fd00::8]:8000/tokenize",
    ]
    assert vllm.servers[0].headers == {"authorization": "Bearer sk-1"}
    assert own.servers[0].url == "http://10.0.1.1:8100/tokenize" and not own.lines
    found = publishers_of(loaded.policy, groups)
    assert found.keys() == {f"vllm@{host}:8000#{rank}" for host in ("10.0.0.7", "fd00::8") for rank in (0, 1)}
    assert found["vllm@fd00::8:8000#1"] == ("tcp://[fd00::8]:6001", "kv@", "tcp://[fd00::8]:7001")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"port": 5557, "replay_port": 5557}, "apart from"),
        ({"port": 5557, "replay_port": 5558, "ranks": 2}, "apart from"),
        ({"port": 65535, "ranks": 2}, "below 65536"),
        ({"ports": 1}, "ports"),
    ],
)
def test_ports_that_cannot_be(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        KvEvents.model_validate(given)


def test_a_digest_counts_for_as_long_as_it_is_fresh() -> None:
    now = [0.0]
    digests, prompt = Digests(clock=lambda: now[0]), packed(range(64))
    keys = keys_of(prompt, 16)
    digests.keep({"a"})
    state = {
        "kv_cache": {"block_size": 16},
        "prefix_cache": {
            "digest": [{"key": f"{keys[1]:016x}", "tokens": 32}, {"key": "no"}, 7, {"key": "x", "tokens": 1}]
        },
    }
    digests.told("a", state)
    digests.told("b", state)
    assert digests.block_size("a") == 16 and digests.block_size("b") is None
    assert digests.held("a", keys) == 32 and digests.held("a", keys_of(packed([9] * 64), 16)) == 0
    now[0] = 6.0
    assert digests.block_size("a") is None
    for nonsense in ({}, {"kv_cache": 3}, {"kv_cache": {"block_size": "x"}, "prefix_cache": {"digest": {}}}):
        digests.told("a", nonsense)
        assert digests.block_size("a") is None


@pytest.mark.anyio
async def test_a_call_of_an_earlier_policy_is_looked_up_by_its_own(tmp_path: Path) -> None:
    """As one policy takes another's place requests are on their way, and the new one may not have their model."""
    held = HeldPrefixes(None, Tokenizers)
    before, members = _replicated(tmp_path, POLICY.replace("kv_events: {", "priority: lower_first  # {"))
    after, _ = _replicated(tmp_path, POLICY.replace("  a: {", "  z: {"))
    await held.update(before, members)
    call = a_call(policy_=before, model="a", messages=({"role": "user", "content": "hello"},))
    assert held.tells("a", call.request)
    await held.look(call)
    assert held.prompts is not None and held.prompts.outcomes["told"] == 1
    await held.update(after, members)
    assert not held.tells("a", call.request)
    await held.look(call)
    assert held.of(call, ["own@10.0.1.1:8100"]) is None
    held.done(call.request)
    await held.aclose()


def _replicated(folder: Path, text: str) -> tuple[Policy, Members]:
    (folder / "gateway.yaml").write_text(text)
    loaded = load_policy(folder, env={})
    loaded, members = with_members(loaded, written_down(loaded.policy))
    return loaded.policy, members
