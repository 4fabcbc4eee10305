from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.engine_load import EngineLoad
from gateway.routing.affinity import Prefix
from gateway.routing.held import Asked
from gateway.routing.score import Ranking, Scores, Sent

PIECE = 100
FULL = EngineLoad(running=100, waiting=900, kv_usage=1.0, kv_tokens=10_000)


class World:
    """A clock, replicas that take as long as they do, and what they say of themselves."""

    def __init__(self, names: str = "ab", *, drawn: int = 2, seed: int = 1, **weights: float) -> None:
        self.now = 0.0
        self.scores = Scores(clock=lambda: self.now, drawn=drawn)
        self.names = {name: weights.get(name, 1.0) for name in names}
        self.random = Random(seed)
        self.says: dict[str, EngineLoad] = {}
        self.speed = dict.fromkeys(names, 1e-4)
        self.loads: Counter[str] = Counter()

    def load(self, name: str, /) -> int:
        return self.loads[name]

    def told(self, name: str, /) -> EngineLoad | None:
        return self.says.get(name)

    def rank(self, prompt: Asked) -> Ranking:
        return self.scores.rank(prompt, self.names, self, self.random)

    def send(self, prompt: Asked, name: str | None = None) -> tuple[str, Sent]:
        ranking = self.rank(prompt)
        chosen = name or ranking.names[0]
        look = ranking.look(chosen) or self.scores.look(prompt, chosen, self)
        self.loads[chosen] += 1
        return chosen, self.scores.sent(prompt, look)

    def serve(self, prompt: Asked, name: str | None = None) -> str:
        """From its choice to its end, alone."""
        chosen, sent = self.send(prompt, name)
        held = self.scores.look(prompt, chosen, self).held if name else 0
        self.now += self.speed[chosen] * max(1, prompt.tokens - held) + 0.01
        sent.began()
        sent.ended()
        self.loads[chosen] -= 1
        return chosen


def asked(first: int, pieces: int = 10) -> Asked:
    blocks = [first * 1000 + index for index in range(pieces)]
    return Asked(Prefix(b"%d" % first, blocks), PIECE * pieces, piece_tokens=PIECE)


def test_the_one_that_holds_the_prompt_is_asked_while_it_is_not_worth_less_than_waiting() -> None:
    world = World("abcdef")
    prompt = asked(1)
    first = world.serve(prompt)
    assert {world.rank(prompt).names[0] for _ in range(30)} == {first}
    # Four prompts of the same length are before it there.
    for number in range(4):
        world.send(asked(100 + number), first)
    assert world.rank(prompt).names[0] != first


def test_tokens_on_their_way_count_until_the_first_one_comes() -> None:
    world = World("ab")
    _, sent = world.send(asked(1, 50), "a")
    assert world.rank(asked(2)).names == ["b", "a"]
    sent.began()
    world.loads.clear()
    assert {world.rank(asked(number)).names[0] for number in range(40)} == {"a", "b"}
    sent.ended()


def test_a_first_token_that_nobody_sees_is_taken_to_come_when_it_is_expected() -> None:
    world = World("ab")
    prompt = asked(1, 50)
    sent = world.scores.sent(prompt, world.scores.look(prompt, "a", world), seen=False)
    assert world.scores.look(asked(2), "a", world).ahead == 5000
    world.now += 60
    assert world.scores.look(asked(2), "a", world).ahead == 0
    sent.ended()
    assert world.scores.look(asked(2), "a", world).ahead == 0


def test_a_slow_replica_gets_less_and_is_not_forgotten() -> None:
    world = World("abcd")
    world.speed["a"] = 1e-3
    seen: Counter[str] = Counter()
    for number in range(400):
        seen[world.serve(asked(number))] += 1
        world.now += 0.2
    assert 0 < seen["a"] < min(seen[name] for name in "bcd") / 2


@given(
    load=st.builds(
        EngineLoad,
        running=st.integers(0, 10**6),
        waiting=st.integers(0, 10**6),
        kv_usage=st.floats(0, 1),
        kv_tokens=st.integers(0, 10**9),
        prefill=st.floats(0, 1e9),
    ),
    slow=st.booleans(),
    names=st.sampled_from(["ab", "abcde"]),
    seed=st.integers(0, 99),
)
def test_whatever_a_replica_says_or_was_it_is_asked_again(
    load: EngineLoad, slow: bool, names: str, seed: int
) -> None:
    world = World(names, seed=seed)
    if slow:
        world.speed["a"] = 1.0
        for number in range(5):
            world.serve(asked(10_000 + number), "a")
        world.speed["a"] = 1e-4
    world.says["a"] = load
    found = Counter(world.serve(asked(number)) for number in _paced(world, 600))
    assert found["a"] > 0


def _paced(world: World, count: int) -> Any:
    for number in range(count):
        world.now += 0.5
        yield number


def test_one_that_says_that_it_is_full_and_is_not_is_believed_less_each_time() -> None:
    world = World("abcd")
    world.says["a"] = FULL
    seen = [world.serve(asked(number)) for number in _paced(world, 1200)]
    early, late = seen[:100].count("a"), seen[-300:].count("a")
    assert early < 10
    assert late > 30


def test_one_that_is_full_and_says_so_is_left_alone() -> None:
    world = World("abcd")
    world.says["a"] = FULL
    world.speed["a"] = 0.1
    seen = Counter(world.serve(asked(number)) for number in _paced(world, 300))
    assert seen["a"] < 15


def test_kv_memory_that_is_used_up_is_a_wait() -> None:
    world = World("ab")
    for name in "ab":
        for number in range(5):
            world.serve(asked(number), name)
    world.says = {
        name: EngineLoad(running=5, kv_usage=use, kv_tokens=10_000) for name, use in (("a", 0.9), ("b", 0.5))
    }
    looks = {name: world.scores.look(asked(77), name, world) for name in "ab"}
    assert looks["a"].told > 0 == looks["b"].told
    assert world.rank(asked(77)).names[0] == "b"


@given(
    weights=st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.1, 9), min_size=1),
    drawn=st.integers(0, 3),
    seed=st.integers(0, 9),
)
def test_all_are_named_once_and_the_order_in_which_they_are_given_is_no_matter(
    weights: dict[str, float], drawn: int, seed: int
) -> None:
    orders = []
    for given_order in (list(weights), list(reversed(weights))):
        world = World("", drawn=drawn, seed=seed)
        world.names = {name: weights[name] for name in given_order}
        for number in range(3):
            world.scores.sent(asked(number), world.scores.look(asked(number), sorted(weights)[0], world))
        orders.append([world.rank(asked(number)).names for number in range(6)])
    assert orders[0] == orders[1]
    assert all(sorted(order) == sorted(weights) for order in orders[0])


def test_equals_have_equal_shares_and_one_that_comes_into_service_a_small_one() -> None:
    world = World("abcd")
    seen = Counter(world.rank(asked(number)).names[0] for number in range(2000))
    assert all(350 < seen[name] < 650 for name in "abcd")
    world.names["a"] = 0.1
    seen = Counter(world.rank(asked(number)).names[0] for number in range(2000))
    assert 0 < seen["a"] < 120


def test_what_two_processes_do_not_know_they_draw_alike() -> None:
    worlds = [World("abcdefgh", seed=seed) for seed in range(2)]
    same = sum(len({world.rank(asked(number)).names[0] for world in worlds}) == 1 for number in range(200))
    assert same > 150


def test_one_that_was_started_again_holds_nothing_and_those_that_are_gone_are_forgotten() -> None:
    world = World("ab")
    world.serve(asked(1), "a")
    assert world.scores.look(asked(1), "a", world).held == 1000
    world.scores.told("a", EngineLoad(prompts=5000, cached=1000))
    world.scores.told("a", EngineLoad(prompts=5100, cached=1050))
    assert world.scores.look(asked(1), "a", world).held == 1000
    world.scores.told("a", EngineLoad(prompts=10, cached=0))
    assert world.scores.look(asked(1), "a", world).held == 0
    world.scores.keep(["b"])
    assert set(world.scores.known()) <= {"b"}
