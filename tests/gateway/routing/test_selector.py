from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.schema import Target, Timeouts
from gateway.routing.affinity import Affinity, Prefix
from gateway.routing.selector import Caller, ModelTargets, Selector, least_loaded, weighted
from gateway.types import Candidate

DRAWS = 6000


class Loaded:
    def __init__(self, **loads: int) -> None:
        self.loads = loads

    def saturation(self, backend: str, caller: Caller | None = None, /) -> float:
        return 0.0

    def load(self, backend: str, /) -> int:
        return self.loads.get(backend, 0)

    cold: frozenset[tuple[str, str]] = frozenset()

    def has_capacity(self, backend: str, tokens: int, caller: Caller | None = None, /) -> bool:
        return True


def candidates(**weights: float) -> list[Candidate]:
    return [Candidate("m", Target(backend=b, model="x", weight=w), Timeouts()) for b, w in weights.items()]


def names(order: list[Candidate]) -> str:
    return "".join(candidate.target.backend for candidate in order)


def test_a_model_that_is_loaded_goes_before_one_that_would_have_to_be() -> None:
    group = tuple(candidates(a=100.0, b=1.0, c=1.0))
    loads = Loaded()
    loads.cold = frozenset({("a", "x"), ("b", "other")})
    selector = Selector(loads, Affinity(), Random(1))
    orders = {names(selector.order(ModelTargets("m", "weighted", (group,)), None)) for _ in range(100)}
    assert orders == {"bca", "cba"}
    loads.cold = frozenset({(one, "x") for one in "abc"})
    orders = {names(selector.order(ModelTargets("m", "weighted", (group,)), None)) for _ in range(100)}
    assert any(order[0] == "a" for order in orders)


@given(
    weights=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    seed=st.integers(0, 2**32),
)
def test_each_is_first_for_its_weights_share(weights: list[int], seed: int) -> None:
    random = Random(seed)
    among = candidates(**dict(zip("abcde", map(float, weights), strict=False)))
    first = Counter(weighted(among, random)[0].target.backend for _ in range(DRAWS // 10))
    for candidate in among:
        share = candidate.target.weight / sum(weights)
        # Five standard deviations of a binomial share.
        bound = 5 * (share * (1 - share) / (DRAWS // 10)) ** 0.5
        assert abs(first[candidate.target.backend] / (DRAWS // 10) - share) < bound


def test_those_that_follow_are_drawn_by_weight_too() -> None:
    random = Random(7)
    among = candidates(a=5, b=3, c=2)
    orders = Counter(names(weighted(among, random)) for _ in range(DRAWS))
    expected = {
        "abc": 0.5 * 3 / 5,
        "acb": 0.5 * 2 / 5,
        "bac": 0.3 * 5 / 7,
        "bca": 0.3 * 2 / 7,
        "cab": 0.2 * 5 / 8,
        "cba": 0.2 * 3 / 8,
    }
    assert {order: count / DRAWS for order, count in orders.items()} == pytest.approx(expected, abs=0.025)


def test_a_draw_of_zero_is_no_trouble() -> None:
    class Zero(Random):
        def random(self) -> float:
            return 0.0

    assert names(weighted(candidates(a=1, b=2), Zero())) == "ab"


def test_the_least_load_for_its_weight() -> None:
    loads = Loaded(a=3, b=3, c=1)
    assert names(least_loaded(candidates(a=1, b=6, c=1), loads, Random(7))) == "bca"


def test_equal_loads_are_taken_in_random_order() -> None:
    random = Random(7)
    among = candidates(a=1, b=2, c=1)
    first = Counter(names(least_loaded(among, Loaded(a=1, b=2, c=5), random))[0] for _ in range(DRAWS))
    assert first["c"] == 0
    assert first["a"] / DRAWS == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("select", ["weighted", "least_loaded", "prefix_affinity"])
def test_groups_keep_their_order(select: str) -> None:
    groups = tuple(tuple(candidates(**group)) for group in ({"a": 1, "b": 1}, {"c": 1}, {"d": 1, "e": 1}))
    targets = ModelTargets("m", select, groups)  # type: ignore[arg-type]
    selector = Selector(Loaded(a=9, b=9), Affinity(), Random(7))
    for block in range(30):
        order = names(selector.order(targets, Prefix(block.to_bytes(8, "big"), [block])))
        assert (set(order[:2]), order[2], set(order[3:])) == ({"a", "b"}, "c", {"d", "e"})


def test_what_can_be_chosen() -> None:
    def targets(*sizes: int) -> ModelTargets:
        names = iter("abcdef")
        groups = [tuple(candidates(**{next(names): 1.0 for _ in range(size)})) for size in sizes]
        return ModelTargets("m", "prefix_affinity", tuple(groups))

    assert [targets(*sizes).varies for sizes in ((1,), (2,), (1, 1))] == [False, True, True]
    assert [targets(*sizes).affine for sizes in ((1,), (2,))] == [False, True]
