"""What requests may cost a worker in Python bytecodes and calls: the table that a feature has to pay into, in the open.

Half of the work of a request comes of many small steps in many files, none of which shows in a profile; so the whole is
counted, and may not grow unnoticed. A change that raises a row says why in its commit; one that lowers a row lowers the
figure here. What a policy does not use costs nothing: a new capability leaves the first row as it is.
"""

from __future__ import annotations

import itertools
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from tests.counting import Counted, counted
from tests.fakes import answer_events, completion, reply, stream
from tests.serving import KEY, OTHER_KEY, key

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11) or platform.python_implementation() != "CPython",
    reason="bytecodes are counted on CPython 3.11: other versions compile the same source to others",
)


@dataclass(frozen=True)
class Cost:
    bytecodes: int
    calls: int

    @classmethod
    def of(cls, counts: dict[str, Any]) -> Self:
        return cls(counts["bytecodes"], counts["calls"])


SLACK = 1.1
"""What two runs may differ by: what happens to fall due beside a request."""
AGAIN = 4
"""Times that a count is repeated."""
CHEAPER = 1.4
"""From this on a gain is to be entered, or the next change could spend it unnoticed."""

COSTS = {
    "where the policy asks for nothing": Cost(7_500, 260),
    "in no sample of an evaluation": Cost(7_580, 265),
    "part of no experiment": Cost(7_500, 260),
    "four limits": Cost(9_810, 310),
    "all that needs no model": Cost(26_800, 914),
    "the better of two by its score": Cost(11_200, 400),
    "an exact hit": Cost(2_910, 92),
    "refused for its rate": Cost(5_360, 160),
    "refused for its key": Cost(1_890, 64),
    "a chunk that comes alone": Cost(470, 13),
    "a chunk that comes alone, with a PII guard": Cost(1_020, 30),
}
"""The most of several runs."""
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer "
BODY = {"model": "m", "messages": [{"role": "user", "content": "What is the capital of France?"}]}
MANY = 10**9
FOUR = {
    "requests_per_minute": MANY,
    "tokens_per_minute": MANY,
    "tokens_per_day": MANY,
    "concurrent_requests": 1000,
}
PII = {
    "pii": {
        "on": ["output"],
        "action": "redact",
        "entities": ["EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD"],
    }
}


def a_policy(url: str, **more: Any) -> dict[str, Any]:
    up = {"kind": "openai", "base_url": url, "api_key": "sk-1"}
    return {
        "version": 1,
        "backends": {"up": up},
        "models": {"m": {"targets": [{"backend": "up", "model": "x"}]}},
        "keys": [key(KEY, "acme-1", tenant="acme"), key(OTHER_KEY, "other-1", tenant="other")],
        **more,
    }


def everything(url: str) -> dict[str, Any]:
    limits = {"quotas": FOUR, "budget": {"usd_per_month": 1e6, "usd_per_day": 1e6}}
    whole = a_policy(
        url,
        tiers={"pro": {"priority": 1, "weight": 3, "max_wait": "10s", **limits}},
        tenants={"acme": {"tier": "pro", **limits}},
        prices={"x": {"input": 1.0, "cached_input": 0.5, "output": 2.0}},
        guards={
            **PII,
            "secrets": {"on": ["input", "output"], "action": "redact"},
            "long": {"kind": "length", "on": ["input"], "max_characters": 10**6},
        },
        caches={"exact": {"ttl": "1h"}},
    )
    whole["keys"][0] |= limits
    whole["backends"]["other"] = {"kind": "openai", "base_url": url, "max_concurrency": 100}
    whole["models"]["spare"] = {"targets": [{"backend": "other", "model": "x"}]}
    whole["models"]["m"] |= {
        "fallbacks": ["spare"],
        "timeouts": {"connect": "2s", "first_token": "10s", "idle": "5s", "total": "120s"},
        "retry": {"attempts": 2, "backoff": "250ms"},
    }
    return whole


def scored(url: str) -> dict[str, Any]:
    whole = a_policy(url)
    whole["backends"]["other"] = {**whole["backends"]["up"]}
    targets = [{"backend": name, "model": "x"} for name in ("up", "other")]
    whole["models"]["m"] = {"targets": targets, "select": "score"}
    return whole


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    with counted(tmp_path_factory.mktemp("plain"), a_policy) as worker:
        yield worker


def of_a_request(
    worker: Counted, *, who: str = KEY, status: int = 200, warm: int = 40, same: bool = False
) -> Cost:
    """One with a whole answer, after as many that make what is made once, and teach what each of the first answers
    does; ``same``: each asks for the same.
    """
    worker.upstream.answer = list(reply(completion()))
    numbers = itertools.repeat(0) if same else worker.numbers

    def ask() -> None:
        messages = [{"role": "user", "content": f"What is the capital of region {next(numbers):06}?"}]
        answer = worker.ask(HEAD + who, {"model": "m", "messages": messages})
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer

    for _ in range(warm):
        ask()
    return Cost.of(worker.least(ask))


def of_a_chunk(worker: Counted) -> Cost:
    """One more in a stream whose chunks come in packets of their own."""
    few, many = _of_a_stream(worker, 10), _of_a_stream(worker, 30)
    return Cost((many.bytecodes - few.bytecodes) // 20, (many.calls - few.calls) // 20)


def _of_a_stream(worker: Counted, words: int) -> Cost:
    *events, last = stream(*answer_events(*(f"word{number:02} " for number in range(words))))
    worker.upstream.answer = [step for event in events for step in (event, worker.settle)] + [last]

    def ask() -> None:
        answer = worker.ask(HEAD + KEY, {**BODY, "stream": True})
        assert b"[DONE]" in answer and b"word09 " in answer, answer

    ask()
    return Cost.of(worker.least(ask, 10))


def check(row: str, measure: Callable[[], Cost]) -> None:
    """Counted again where it does not fit: on a busy machine something else can fall due beside each request of one
    count, or two chunks come as one, but a request that costs more, or less, does so every time."""
    limit = COSTS[row]
    found = measure()
    for _ in range(AGAIN):
        if all(
            allowed / CHEAPER <= cost <= allowed * SLACK
            for cost, allowed in ((found.bytecodes, limit.bytecodes), (found.calls, limit.calls))
        ):
            break
        found = measure()
    for name in ("bytecodes", "calls"):
        cost, allowed = getattr(found, name), getattr(limit, name)
        assert cost <= allowed * SLACK, f"{row}: {cost} {name}, where the table allows {allowed}"
        assert cost >= allowed / CHEAPER, f"{row}: {cost} {name}; enter it in the table in place of {allowed}"


def test_what_nobody_asks_for(plain: Counted) -> None:
    check("where the policy asks for nothing", lambda: of_a_request(plain))


def test_in_no_sample(tmp_path: Path) -> None:
    evaluation = {"judge": "m", "share": 1e-9}
    with counted(tmp_path, lambda url: a_policy(url, evaluation=evaluation)) as worker:
        check("in no sample of an evaluation", lambda: of_a_request(worker))


def test_an_experiment_about_others(tmp_path: Path) -> None:
    """Who is part of none pays for a look at their list."""
    about = {"arms": {"a": {}, "b": {"prompt": "brief"}}, "where": {"tenants": ["rival"]}}
    more = {"experiments": {"e": about}, "prompts": {"brief": "Be brief."}}
    with counted(tmp_path, lambda url: a_policy(url, **more)) as worker:
        check("part of no experiment", lambda: of_a_request(worker))


def test_four_limits(tmp_path: Path) -> None:
    with counted(tmp_path, lambda url: a_policy(url, tenants={"acme": {"quotas": FOUR}})) as worker:
        check("four limits", lambda: of_a_request(worker))


def test_all_that_needs_no_model(tmp_path: Path) -> None:
    with counted(tmp_path, everything) as worker:
        check("all that needs no model", lambda: of_a_request(worker))


def test_scored(tmp_path: Path) -> None:
    with counted(tmp_path, scored) as worker:
        check("the better of two by its score", lambda: of_a_request(worker))


def test_an_exact_hit(tmp_path: Path) -> None:
    with counted(tmp_path, lambda url: a_policy(url, caches={"exact": {"ttl": "1h"}})) as worker:
        check("an exact hit", lambda: of_a_request(worker, same=True))


def test_refusals(plain: Counted, tmp_path: Path) -> None:
    check("refused for its key", lambda: of_a_request(plain, who="tg-nobody", status=401, warm=3))
    limits = {"quotas": {"requests_per_minute": 1}}
    with counted(tmp_path, lambda url: a_policy(url, tenants={"acme": limits})) as worker:
        worker.upstream.answer = list(reply(completion()))
        worker.ask(HEAD + KEY, BODY)
        check("refused for its rate", lambda: of_a_request(worker, status=429, warm=3))


def test_chunks(plain: Counted, tmp_path: Path) -> None:
    check("a chunk that comes alone", lambda: of_a_chunk(plain))
    with counted(tmp_path, lambda url: a_policy(url, guards=PII)) as worker:
        check("a chunk that comes alone, with a PII guard", lambda: of_a_chunk(worker))
