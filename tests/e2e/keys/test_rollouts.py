"""What the keys of roll-outs do, and what keeps its target."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.keys.harness import Row, Site, a_site, joined, shows, text
from tests.fakes import Script, completion, reply

pytestmark = pytest.mark.anyio

FINE: Script = reply(completion("from up"))
BETTER: Script = reply(completion("from the other"))
FAILS: Script = reply({"error": {"message": "no"}}, status=500)
TO = {"backend": "other", "model": "o"}


def rolled(to: dict[str, Any] = TO, *, retry: int = 1, **more: Any) -> dict[str, Any]:
    rollout = {"to": to, "steps": [100], **more}
    model = {"targets": [{"backend": "up", "model": "u"}], "retry": {"attempts": retry}, "rollout": rollout}
    return {"models": {"x": model}}


def plain() -> dict[str, Any]:
    return {"models": {"x": {"targets": [{"backend": "up", "model": "u"}]}}}


async def asked_for(site: Site) -> str:
    """The name by which a server is asked."""
    await site.ask(model="x")
    return str((site.up.requests + site.other.requests)[0].json()["model"])


async def many(site: Site, count: int = 60, **body: Any) -> set[str]:
    """Who answers so many conversations."""
    answers: list[httpx.Response] = []
    for start in range(0, count, 20):
        contents = (f"{start + number}?" for number in range(20))
        answers += await asyncio.gather(*(site.ask(one, model="x", **body) for one in contents))
    return {answer.json()["choices"][0]["message"]["content"] for answer in answers}


HALF = {"steps": [50, 100]}
A_PAIR = {
    "targets": [{"backend": "up", "model": "u"}, {"backend": "other", "model": "o"}],
    "retry": {"attempts": 1},
}
BOTH, ONE = 2, 1


async def how_many_answer_a_conversation(site: Site) -> int:
    return len({await text("Hi", model="x")(site) for _ in range(30)})


async def how_many_answer(site: Site) -> int:
    return len(await many(site))


ROWS = [
    Row("models.<name>.rollout", rolled(), text(model="x"), "from the other", "from up", plain(), (FINE,)),
    Row(
        "models.<name>.rollout.to",
        rolled(),
        text(model="x"),
        "from the other",
        "one two three",
        rolled({"backend": "script", "model": "x"}),
    ),
    Row(
        "models.<name>.rollout.to.backend",
        rolled(),
        text(model="x"),
        "from the other",
        "one two three",
        rolled({"backend": "script", "model": "o"}),
    ),
    Row(
        "models.<name>.rollout.to.model",
        rolled({"backend": "other", "model": "newer"}),
        asked_for,
        "newer",
        "o",
        rolled(),
    ),
    Row(
        "models.<name>.rollout.steps",
        rolled(steps=[100]),
        text(model="x"),
        "from the other",
        "from up",
        rolled(steps=[0.0001, 100]),
        (FINE,),
    ),
    Row(
        "models.<name>.rollout.key",
        rolled(**HALF, key="conversation"),
        how_many_answer,
        BOTH,
        ONE,
        rolled(**HALF, key="tenant"),
        (FINE,),
    ),
    Row(
        "models.<name>.split_by",
        {"models": {"x": {**A_PAIR, "split_by": "request"}}},
        how_many_answer_a_conversation,
        BOTH,
        ONE,
        {"models": {"x": A_PAIR}},
        (FINE,),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_a_key_does_what_its_reference_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states are looked at more often than once a second."""
    monkeypatch.setattr("gateway.runtime.rollouts.EVERY", 0.05)


async def ends_at(site: Site, *answers: str) -> None:
    """Ask until only these answer."""
    async with asyncio.timeout(300):
        while await many(site, 40) != set(answers):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@shows("models.<name>.rollout.hold")
async def test_a_step_lasts_as_long_as_it_says(tmp_path: Path, soon: None) -> None:
    async with a_site(tmp_path / "a", rolled(**HALF, hold="1ms"), (FINE,)) as site:
        await ends_at(site, "from the other")
    async with a_site(tmp_path / "b", rolled(**HALF, hold="1h"), (FINE,)) as site:
        for _ in range(5):
            assert await many(site) == {"from up", "from the other"}


@shows("models.<name>.rollout.guard", "models.<name>.rollout.guard.errors")
async def test_a_target_that_fails_is_left_and_callers_never_see_it(tmp_path: Path, soon: None) -> None:
    async with a_site(tmp_path / "a", rolled(**HALF), (FINE,), (FAILS,)) as site:
        await ends_at(site, "from up")
        async with asyncio.timeout(300):
            while True:
                before = len(site.other.requests)
                await many(site)
                if len(site.other.requests) == before:
                    break


async def asks(site: Site, count: int) -> int:
    """How many of so many requests the new target gets."""
    before = len(site.other.requests)
    await asyncio.gather(*(site.ask(f"{number}?", model="x") for number in range(count)))
    return len(site.other.requests) - before


async def test_what_is_tolerated_is_not_left_and_what_is_not_is(tmp_path: Path, soon: None) -> None:
    """The new target fails twice as often."""
    often, twice_as_often = (FAILS, FINE, FINE) * 1000, (FAILS, FAILS, BETTER) * 1000
    breaker = {"breaker": {"failures": 1000}}
    for tolerated, left in ((100.0, False), (1.0, True)):
        policy = {
            **rolled(**HALF, guard={"errors": tolerated}),
            "backends": {"up": breaker, "other": breaker},
        }
        async with a_site(tmp_path / str(left), policy, often, twice_as_often) as site:
            if left:
                async with asyncio.timeout(300):
                    while await asks(site, 20):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            else:
                for _ in range(6):
                    assert await asks(site, 20)
                    await asyncio.sleep(0.05)


SLOW: Script = (0.05, *BETTER)


@shows("models.<name>.rollout.guard.ttft_p95")
async def test_a_target_that_is_slow_is_left(tmp_path: Path, soon: None) -> None:
    guard = {"errors": None, "ttft_p95": 1.0}
    async with a_site(tmp_path, rolled(**HALF, guard=guard), (FINE,), (SLOW,)) as site:
        await ends_at(site, "from up")


DECLINES = completion("I may not say.")
DECLINES["choices"][0]["finish_reason"] = "content_filter"


@shows("models.<name>.rollout.guard.refusals")
async def test_a_target_that_declines_is_left(tmp_path: Path, soon: None) -> None:
    guard = {"errors": None, "refusals": 1.0}
    async with a_site(tmp_path, rolled(**HALF, guard=guard), (FINE,), (reply(DECLINES),)) as site:
        await ends_at(site, "from up")


@shows("models.<name>.rollout.guard.cost")
async def test_a_target_that_is_dear_is_left(tmp_path: Path, soon: None) -> None:
    policy = rolled(**HALF, guard={"errors": None, "cost": 1.5})
    policy["prices"] = {"u": {"input": 1.0, "output": 1.0}, "o": {"input": 2.0, "output": 2.0}}
    async with a_site(tmp_path, policy, (FINE,)) as site:
        await ends_at(site, "from up")


def judged() -> dict[str, Any]:
    """A judge that does not like what the other says."""
    script = [{"match": "from the other", "reply": '{"score": 1}'}, {"reply": '{"score": 5}'}]
    return {
        "backends": {"judge": {"kind": "fake", "script": script}},
        "models": {"judge": {"targets": [{"backend": "judge", "model": "j"}]}},
        "evaluation": {"judge": "judge", "share": 1.0, "models": ["x"]},
    }


@shows("models.<name>.rollout.guard.score")
async def test_a_target_whose_answers_are_worse_is_left(tmp_path: Path, soon: None) -> None:
    guarded = joined(judged(), rolled(**HALF, hold="1h", guard={"errors": None, "score": 1.0}))
    async with a_site(tmp_path, guarded, (FINE,)) as site:
        await ends_at(site, "from up")
