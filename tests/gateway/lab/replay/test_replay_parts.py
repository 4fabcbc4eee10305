"""Who is drawn, what a prompt cache holds, and which of two outcomes is the worse."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path

import pytest

from gateway.lab.replay import decisions as kinds
from gateway.lab.replay.callers import Shares, parse_shares
from gateway.lab.replay.decisions import Decision, Decisions
from gateway.lab.replay.difference import judged, spread
from gateway.lab.replay.faults import parse_faults
from gateway.lab.replay.replay_backend import PrefixCache

PLAIN = Decision(
    *(0.0, 0.0, 0.5, 2.0, 10, 10, 0, 0, kinds.ANSWERED, 200, 1),
    *("acme", "gold", "k", "chat", "chat", "one", "primary", "", "a:1"),
)


def test_draws_are_the_same_for_the_same_seed_and_keep_their_shares() -> None:
    weights = parse_shares("--tenants", "acme=3, hobby")
    assert weights == {"acme": 3.0, "hobby": 1.0}
    one, other = (Shares(weights, 7, "tenant") for _ in range(2))
    drawn = [one.draw() for _ in range(4000)]
    assert drawn == [other.draw() for _ in range(4000)]
    assert drawn.count("acme") == pytest.approx(3000, abs=150)


def test_a_prompt_cache_knows_whole_beginnings_and_forgets_what_was_used_least() -> None:
    cache = PrefixCache(tokens=256)
    assert cache.cached((1, 2, 3), 64) == 0
    assert cache.cached((1, 2, 4), 64) == 128  # up to the first that is new
    assert cache.cached((9, 2), 64) == 0  # which is no beginning that it knows; 3 goes, as the fifth came
    assert cache.cached((1, 2, 3), 64) == 128
    assert cache.cached((1, 2, 3), 64) == 192


@pytest.mark.parametrize(
    ("after", "verdict"),
    [
        (PLAIN, "same"),
        (PLAIN._replace(kind=kinds.CACHED, ttft=0.0), "better"),
        (PLAIN._replace(ttft=0.7), "same"),
        (PLAIN._replace(ttft=0.8), "worse"),
        (PLAIN._replace(kind=kinds.REROUTED), "worse"),
        (PLAIN._replace(kind=kinds.REFUSED, ttft=nan), "worse"),
    ],
)
def test_which_outcome_is_worse(after: Decision, verdict: str) -> None:
    assert judged(PLAIN, after) == verdict
    reverse = {"same": "same", "worse": "better", "better": "worse"}
    assert judged(after, PLAIN) == reverse[verdict]


def test_decisions_come_back_from_their_file(tmp_path: Path) -> None:
    found = Decisions(2)
    found.put(1, PLAIN._asdict())
    found.name(1, "req_1")
    found.facts = {"assumed": ["nothing"]}
    found.save(tmp_path / "decisions")
    again = Decisions.load(tmp_path / "decisions")
    assert again[1] == PLAIN
    assert (again.called(0), again.called(1), again.facts) == ("#1", "req_1", {"assumed": ["nothing"]})


def test_examples_are_from_all_of_the_time() -> None:
    assert spread([*range(10)], 3) == [0, 3, 6]
    assert spread([1, 2], 5) == [1, 2]
    assert spread([], 3) == []


def test_outages_count_from_the_first_request() -> None:
    [fault] = parse_faults(["one=10m+30s:503"], 1000.0)["one"]
    assert (fault.begin, fault.end, fault.status) == (1600.0, 1630.0, 503)
    assert replace(fault, status=None) == parse_faults(["one=10m+30s"], 1000.0)["one"][0]
