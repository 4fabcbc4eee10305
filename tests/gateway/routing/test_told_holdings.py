"""gateway/routing/told_holdings.py: who is believed how far, and what is on its way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from gateway.routing.affinity import Prefix
from gateway.routing.held import Asked
from gateway.routing.told_holdings import Credit, OnTheirWay, ToldHoldings


class Claim(NamedTuple):
    tokens: int
    held: Mapping[str, int]


class Claims:
    def __init__(self, claim: Claim | None) -> None:
        self.claim = claim

    def of(self, call: Any, replicas: Sequence[str]) -> Claim | None:
        return self.claim


def asked(*blocks: int) -> Asked:
    return Asked(Prefix(b"", blocks), 100 * len(blocks), piece_tokens=100.0, call=cast("Any", object))


def test_who_tells_is_believed_and_of_the_others_what_was_sent_counts() -> None:
    claims = Claims(Claim(2000, {"a": 1600, "b": 0}))
    holdings, prompt = ToldHoldings(claims), asked(*range(10))
    holdings.sent(prompt, "c")
    found = holdings.of(prompt, ["a", "b", "c"])
    assert found.tokens == 2000 and dict(found.held) == {"a": 1600, "b": 0, "c": 2000}
    claims.claim = None
    assert dict(holdings.of(prompt, ["a", "b", "c"]).held) == {"c": 1000}


def test_what_is_on_its_way_is_held_until_it_is_told() -> None:
    holdings, prompt = ToldHoldings(Claims(Claim(1000, {"a": 0, "b": 0}))), asked(*range(10))
    holdings.sent(prompt, "a")
    assert holdings.of(asked(0, 1, 2, 3, 9, *range(5)), ["a", "b"]).held["a"] == 400
    holdings.ended(prompt, "a")
    assert holdings.of(prompt, ["a", "b"]).held["a"] == 0
    now = [0.0]
    way = OnTheirWay(clock=lambda: now[0])
    way.sent(prompt, "a")
    way.sent(asked(0, 1), "a")
    assert way.held(prompt, "a") == 1000 and way.held(asked(7), "a") == way.held(prompt, "b") == 0
    now[0] = 11.0
    assert way.held(prompt, "a") == 0
    for _ in range(100):
        way.sent(asked(1), "a")
    assert len(way._sent["a"]) == 32


def test_credit_goes_with_answers_and_comes_back_with_time() -> None:
    now = [0.0]
    credit = Credit(clock=lambda: now[0])
    credit.answered("v@b", 1000, 900)
    for _ in range(20):
        credit.answered("v@a", 1000, 0)
    assert credit.of("v@a") < 0.01 and credit.of("v@b") > 0.95 and credit.of("w@a") == 1.0
    now[0] = 60.0
    assert 0.49 < credit.of("v@a") < 0.51
    now[0] = 600.0
    assert credit.of("v@a") > 0.99
    credit.answered("v@a", 10, 0)
    assert credit.of("v@a") > 0.99, "so few tokens tell nothing"
    credit.keep({"v@b"})
    assert credit.of("v@a") == 1.0
