from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.schema import Target, Timeouts
from gateway.routing.affinity import BLOCK, MAX_BYTES, Affinity, Prefix, prefix_of, rendezvous, target_name
from gateway.types import Candidate, ChatRequest

KEYS = [key.to_bytes(8, "big") for key in range(3000)]


class Loads:
    """Requests under way, as the test counts them."""

    def __init__(self, **loads: int) -> None:
        self.loads = Counter(loads)

    def load(self, backend: str, /) -> int:
        return self.loads[backend]


def candidates(**weights: float) -> list[Candidate]:
    return [Candidate("m", Target(backend=b, model="x", weight=w), Timeouts()) for b, w in weights.items()]


FOUR = candidates(a=1, b=1, c=1, d=1)
IDLE = Loads()


def chat(*contents: Any, **params: Any) -> ChatRequest:
    roles = ("system", "user", "assistant")
    messages = tuple({"role": roles[i % 3], "content": content} for i, content in enumerate(contents))
    return ChatRequest("m", messages=messages, params=params)


def prefix(*contents: Any, tenant: str = "acme", **params: Any) -> Prefix:
    return prefix_of(chat(*contents, **params), tenant)


def first(affinity: Affinity, of: Prefix, loads: Loads = IDLE, among: list[Candidate] = FOUR) -> str:
    return affinity.order("m", of, among, loads)[0].target.backend


def words(count: int, seed: str = "") -> str:
    return " ".join(f"{seed}{i}" for i in range(count))


def test_one_prefix_has_one_replica_before_and_after_it_is_known() -> None:
    affinity = Affinity()
    of = prefix(words(500), "What?")
    assert len({first(affinity, of) for _ in range(10)}) == 1
    other = next(c for c in FOUR if c.target.backend != first(affinity, of))
    affinity.remember("m", of, other)
    assert first(affinity, of) == other.target.backend


def test_the_longest_known_prefix_counts() -> None:
    affinity = Affinity()
    system, question, answer = words(300), words(200, "q"), words(200, "a")
    a, b, *_ = FOUR
    affinity.remember("m", prefix(system, question, answer), a)
    affinity.remember("m", prefix(system, words(200, "other")), b)
    assert first(affinity, prefix(system, question, answer, "And then?")) == "a"
    assert first(affinity, prefix(system, words(200, "third"))) == "b", "the last that served the common part"


def test_the_conversation_goes_on_where_it_was() -> None:
    talk = [words(100, str(turn)) for turn in range(8)]
    for turns in range(1, 8):
        shorter, longer = prefix(*talk[:turns]).blocks, prefix(*talk[: turns + 1]).blocks
        assert longer[: len(shorter)] == shorter
        assert len(longer) > len(shorter)


def test_tenants_share_nothing() -> None:
    ours, theirs = prefix(words(900), tenant="acme"), prefix(words(900), tenant="other")
    assert not set(ours.blocks) & set(theirs.blocks)
    assert ours.key != theirs.key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (chat("a", "b"), chat("ab")),
        (chat("a"), chat("a", tools=[{"type": "function"}])),
        (chat(["a", "b"]), chat(["ab"])),
        (ChatRequest("m", prompt=[1, 23]), ChatRequest("m", prompt=[12, 3])),
        (ChatRequest("m", prompt="a"), ChatRequest("m", prompt=["a"])),
        (chat("a", None), chat("a", "")),
        (chat([{"type": "text", "text": "a"}]), chat([{"type": "text", "text": "b"}])),
    ],
)
def test_what_differs_has_different_keys(one: ChatRequest, other: ChatRequest) -> None:
    assert prefix_of(one, "acme").key != prefix_of(other, "acme").key
    assert prefix_of(one, "acme") == prefix_of(one, "acme")


def test_only_the_beginning_is_looked_at() -> None:
    long = prefix("x" * MAX_BYTES)
    assert len(long.blocks) == MAX_BYTES // BLOCK
    assert prefix("x" * MAX_BYTES + "y" * 10**6, "and more") == long
    assert len(prefix("x" * (2 * BLOCK)).blocks) == 2
    assert len(prefix("").blocks) == 1
    assert len(prefix_of(ChatRequest("m", prompt=list(range(10**5))), "acme").blocks) == MAX_BYTES // BLOCK


def test_text_that_is_no_unicode_and_nesting_without_end() -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    assert len(prefix("\ud800", deep, tenant="\ud800", tools=[deep]).blocks) == 1


def test_a_key_means_the_same_in_every_process() -> None:
    program = (
        "from gateway.routing.affinity import prefix_of; from gateway.types import ChatRequest;"
        "print(prefix_of(ChatRequest('m', prompt='Hello there'), 'acme').key.hex())"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == prefix_of(ChatRequest("m", prompt="Hello there"), "acme").key.hex()


def test_unknown_prefixes_are_spread_by_weight() -> None:
    among = candidates(a=6, b=3, c=1)
    shares = Counter(rendezvous(key, among)[0].target.backend for key in KEYS)
    assert {name: count / len(KEYS) for name, count in shares.items()} == pytest.approx(
        {"a": 0.6, "b": 0.3, "c": 0.1}, abs=0.03
    )


def test_a_new_replica_takes_its_share_and_nothing_else_moves() -> None:
    before = [rendezvous(key, FOUR)[0].target.backend for key in KEYS]
    after = [rendezvous(key, [*FOUR, *candidates(e=1)])[0].target.backend for key in KEYS]
    moved = [now for then, now in zip(before, after, strict=True) if then != now]
    assert set(moved) == {"e"}
    assert len(moved) / len(KEYS) == pytest.approx(0.2, abs=0.03)


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=6),
    prefixes=st.lists(st.integers(0, 3), min_size=1, max_size=120),
)
def test_no_replica_gets_more_than_its_bounded_share(weights: list[float], prefixes: list[int]) -> None:
    among = candidates(**dict(zip("abcdef", weights, strict=False)))
    affinity, loads = Affinity(), Loads()
    flood = [prefix(words(200, str(number))) for number in range(4)]
    for total, number in enumerate(prefixes, 1):
        order = affinity.order("m", flood[number], among, loads)
        assert sorted(map(target_name, order)) == sorted(map(target_name, among))
        chosen = order[0]
        affinity.remember("m", flood[number], chosen)
        loads.loads[chosen.target.backend] += 1
        bound = math.ceil(1.25 * total * chosen.target.weight / sum(weights) + 1e-9)
        assert loads.load(chosen.target.backend) <= bound


def test_a_flood_of_one_prefix_spreads_no_further_than_it_must() -> None:
    affinity, loads = Affinity(), Loads()
    of = prefix(words(500))
    for _ in range(8):
        order = affinity.order("m", of, FOUR, loads)
        affinity.remember("m", of, order[0])
        loads.loads[order[0].target.backend] += 1
    assert max(loads.loads.values()) <= math.ceil(1.25 * 8 / 4)
    # Once the flood is over, one replica is enough again.
    loads.loads.clear()
    assert len({first(affinity, of) for _ in range(20)}) == 1


def test_a_replica_that_is_gone_is_not_chosen() -> None:
    affinity = Affinity()
    of = prefix(words(300))
    affinity.remember("m", of, FOUR[0])
    assert first(affinity, of, among=FOUR[1:]) != "a"


def test_what_is_not_used_is_forgotten_the_longest_first() -> None:
    affinity = Affinity(remembered=12)
    old, new = prefix("x" * BLOCK * 8), prefix("y" * BLOCK * 8)
    by_hash = first(affinity, old)
    other = next(c for c in FOUR if c.target.backend != by_hash)
    affinity.remember("m", old, other)
    affinity.remember("m", new, FOUR[0])
    assert first(affinity, old) == other.target.backend, "its beginning is still known"
    affinity.remember("m", prefix("z" * BLOCK * 8), FOUR[0])
    assert first(affinity, old) == by_hash


def test_models_that_are_gone_are_forgotten() -> None:
    affinity = Affinity()
    of = prefix(words(300))
    other = next(c for c in FOUR if c.target.backend != first(affinity, of))
    affinity.remember("m", of, other)
    affinity.keep({"m"})
    assert first(affinity, of) == other.target.backend
    affinity.keep({"n"})
    assert first(affinity, of) != other.target.backend


def shared(first: str, *rest: str, tenant: str, sharing: Any) -> list[int]:
    return list(prefix_of(chat(first, *rest), tenant, sharing).blocks)


def test_what_the_policy_shares_has_one_replica_for_all_tenants_and_nothing_else_has() -> None:
    system, question = words(200), words(200, "q")
    one, other = (shared(system, question, tenant=name, sharing="system") for name in ("acme", "globex"))
    common = len(system) // BLOCK
    assert one[: common - 1] == other[: common - 1], "what both begin with"
    assert not set(one[common + 1 :]) & set(other[common + 1 :]), "not what each of them asks"
    assert len(set(one)) == len(one)
    one, other = (shared("short", question, tenant=name, sharing="system") for name in ("acme", "globex"))
    assert not set(one) & set(other)
    one, other = (shared(system, question, tenant=name, sharing="all") for name in ("acme", "globex"))
    assert one == other
    one, other = (shared(system, question, tenant=name, sharing="none") for name in ("acme", "globex"))
    assert not set(one) & set(other)


def test_tools_before_a_shared_system_prompt_are_the_tenants_own() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": words(100)}}]
    found = [prefix_of(chat(words(200), tools=tools), name, "system").blocks for name in ("acme", "globex")]
    assert not set(found[0]) & set(found[1])
