from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.affinity import Prefix
from gateway.routing.held import UNTOLD, Asked, RoutedHoldings

TOKENS = 100
"""Of a piece."""


def asked(*blocks: int, more: int = 0) -> Asked:
    return Asked(Prefix(b"", blocks), TOKENS * len(blocks) + more, piece_tokens=TOKENS)


def held(holdings: RoutedHoldings, prompt: Asked, *names: str) -> dict[str, int]:
    return dict(holdings.of(prompt, names or ("a", "b")).held)


def test_a_replica_holds_what_it_was_sent_and_each_beginning_of_it() -> None:
    holdings = RoutedHoldings()
    holdings.sent(asked(1, 2, 3), "a")
    holdings.sent(asked(1, 2), "b")
    assert held(holdings, asked(1, 2, 3, 4)) == {"a": 300, "b": 200}
    assert held(holdings, asked(1, 9, 10)) == {"a": 100, "b": 100}
    assert held(holdings, asked(11, 12)) == {}
    assert holdings.of(asked(7, more=55), ["a"]).tokens == 155


def test_one_that_was_started_again_or_is_gone_holds_nothing() -> None:
    holdings = RoutedHoldings()
    for name in "ab":
        holdings.sent(asked(1, 2), name)
    holdings.emptied("a")
    assert held(holdings, asked(1, 2)) == {"b": 200}
    holdings.keep(["a"])
    assert held(holdings, asked(1, 2)) == {}


def test_what_a_cache_of_its_size_has_evicted_is_forgotten_the_longest_unused_first() -> None:
    holdings = RoutedHoldings()
    holdings.resize("a", 5 * TOKENS)
    holdings.sent(asked(1, 2, 3), "a")
    holdings.sent(asked(5, 6), "a")
    assert held(holdings, asked(1, 2, 3)) == {"a": 300}
    holdings.sent(asked(5, 6), "a")
    holdings.sent(asked(7), "a")
    assert held(holdings, asked(1, 2, 3)) == {"a": 200}  # its end goes first
    assert held(holdings, asked(5, 6)) == {"a": 200}


def test_a_cache_that_others_fill_too_is_taken_to_be_smaller() -> None:
    holdings = RoutedHoldings()
    holdings.resize("a", 40 * TOKENS)
    prompts = [asked(*range(10 * i, 10 * i + 10)) for i in range(4)]
    for _ in range(30):
        for prompt in prompts:
            holdings.sent(prompt, "a")
            expected = held(holdings, prompt)["a"]
            holdings.answered(prompt, "a", expected, 0)
    assert "a" not in held(holdings, prompts[0])
    for _ in range(300):
        holdings.sent(prompts[0], "a")
        holdings.answered(prompts[0], "a", 1000, 1000)
    for prompt in prompts:
        holdings.sent(prompt, "a")
    assert held(holdings, prompts[0]) == {"a": 1000}


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=6)
steps = st.lists(
    st.tuples(st.sampled_from("abc"), prompts, st.sampled_from(["sent", "sent", "resize", "empty", "told"])),
    max_size=60,
)


@given(steps=steps, most=st.integers(1, 12))
def test_memory_is_bounded_and_no_piece_is_held_without_all_before_it(
    steps: list[tuple[str, list[int], str]], most: int
) -> None:
    holdings = RoutedHoldings(most=most)
    paths: set[tuple[Any, ...]] = set()
    for name, path, what in steps:
        # A block stands for all before it, too.
        blocks = [hash(tuple(path[: end + 1])) for end in range(len(path))]
        prompt = Asked(Prefix(b"", blocks), TOKENS * len(blocks), piece_tokens=TOKENS)
        match what:
            case "sent":
                holdings.sent(prompt, name)
                paths.add(tuple(blocks))
            case "resize":
                holdings.resize(name, TOKENS * len(path))
            case "empty":
                holdings.emptied(name)
            case "told":
                holdings.answered(prompt, name, 1000, 0)
        assert sum(map(len, holdings._pieces.values())) <= most
        for one in paths:
            for pieces in holdings._pieces.values():
                there = [block in pieces for block in one]
                assert there == sorted(there, reverse=True)


def test_nothing_that_is_told_makes_a_replicas_part_larger_than_the_whole() -> None:
    holdings = RoutedHoldings(most=100)
    holdings.resize("a", 2**60)
    for number in range(50):
        holdings.sent(asked(*range(number * 10, number * 10 + 10)), "a")
    assert sum(map(len, holdings._pieces.values())) <= 100 < UNTOLD
