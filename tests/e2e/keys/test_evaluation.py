"""What the keys of ``evaluation`` do: which answers are judged, by whom and by what, for how much, and what is kept."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.evaluation import evaluator
from gateway.recording.sampling import fraction
from tests.e2e.keys.harness import Look, Row, Site, a_site, figures, on, shows
from tests.fakes import Action, completion, reply
from tests.serving import OTHER_KEY

pytestmark = pytest.mark.anyio

PRICED = {"prices": {"u": {"input": 1.0, "output": 1.0}, "o": {"input": 1.0, "output": 1.0}}}
SAID = (reply(completion('{"why": "so", "score": 4, "better": "first"}')),)
SHADOWED = {"models": {"m": on("script", shadow={"model": "other"})}}


@pytest.fixture(autouse=True)
def _in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came first has been dealt with once something later has."""
    monkeypatch.setattr(evaluator, "AT_ONCE", 1)


def evaluation(**more: Any) -> dict[str, Any]:
    """``up`` judges what ``m`` answers."""
    return {**PRICED, "evaluation": {"judge": "up", "share": 1.0, "models": ["m"], **more}}


def shadowed(**more: Any) -> dict[str, Any]:
    return {**evaluation(**more), **SHADOWED}


async def dealt_with(site: Site, count: int) -> None:
    async with asyncio.timeout(300):
        while await figures(site, "tollgate_evaluation_answers_total") < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def judges(site: Site) -> list[str]:
    """Who was asked about one answer."""
    await site.ask()
    await dealt_with(site, 1)
    return [name for name, server in (("up", site.up), ("other", site.other)) if server.requests]


def seen_by_the_judge(text: str, *asked: tuple[str, str]) -> Look:
    """Whether it is shown ``text``, of a request with that and of a later one."""

    async def look(site: Site) -> bool:
        await site.ask("the first", token=OTHER_KEY)
        await site.ask("the last")
        async with asyncio.timeout(300):
            while not any("the last" in request.body.decode() for request in site.up.requests):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return any(text in request.body.decode() for request in site.up.requests)

    return look


async def models(site: Site) -> list[str]:
    """Whose answers are judged, of ``m`` and then ``twin``."""
    for model in ("m", "twin"):
        await site.ask(model=model)
    await dealt_with(site, 1)
    page = await site.gateway.metrics()
    return [
        model
        for model in ("m", "twin")
        if any(f'{{model="{model}",outcome="scored"}}' in name for name in page)
    ]


async def outcome(site: Site) -> str:
    await site.ask()
    await dealt_with(site, 1)
    page = await site.gateway.metrics()
    (name,) = (name for name in page if name.startswith("tollgate_evaluation_answers_total"))
    return name.partition('outcome="')[2].rstrip('"}')


async def most(site: Site) -> int:
    await site.ask()
    await dealt_with(site, 1)
    return int(site.up.requests[0].json()["max_tokens"])


async def dropped(site: Site) -> float:
    """Of three, while the judge says nothing."""
    await site.ask()
    await site.up.arrived()
    for _ in range(2):
        await site.ask()
    return await figures(site, "tollgate_evaluation_answers_total")


async def pairs(site: Site) -> float:
    await site.ask()
    await dealt_with(site, 1)
    return await figures(site, "tollgate_evaluation_pairs_total")


async def kept(site: Site) -> str | None:
    await site.ask("I am ann@example.com")
    path = site.folder / "state" / "evaluations.sqlite"
    async with asyncio.timeout(300):
        while not (rows := questions(path)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return rows[0]


def questions(path: Path) -> list[str | None]:
    if not path.exists():
        return []
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path)) as database:
        return [row[0] for row in database.execute("SELECT question FROM pairs")]
    return []


TWO = {**evaluation(models=["*"]), "models": {"twin": on("script")}}
ROWS = [
    Row("evaluation.judge", evaluation(), judges, ["up"], ["other"], evaluation(judge="other"), SAID, SAID),
    Row(
        "evaluation.rubric",
        evaluation(rubric="Is it short?"),
        seen_by_the_judge("Is it short?"),
        *(True, False, evaluation(), SAID),
    ),
    Row(
        "evaluation.models",
        {**TWO, "evaluation": {**TWO["evaluation"], "models": ["t*"]}},
        models,
        *(["twin"], ["m"], {**TWO, "evaluation": {**TWO["evaluation"], "models": ["m"]}}, SAID),
    ),
    Row(
        "evaluation.excluded_tenants",
        evaluation(excluded_tenants=["riv*"]),
        seen_by_the_judge("the first"),
        *(False, True, evaluation(), SAID),
    ),
    Row(
        "evaluation.budget.usd_per_day",
        evaluation(budget={"usd_per_day": 0.0001}),
        outcome,
        *("over_budget", "scored", evaluation(), SAID),
    ),
    Row(
        "evaluation.budget.usd_per_month",
        evaluation(budget={"usd_per_month": 0.0001}),
        outcome,
        *("over_budget", "scored", evaluation(), SAID),
    ),
    Row("evaluation.max_tokens", evaluation(max_tokens=77), most, 77, 1024, evaluation(), SAID),
    Row(
        "evaluation.queue",
        evaluation(queue=1),
        dropped,
        *(1.0, 0.0, evaluation(), ((Action.HANG,),)),
    ),
    Row("evaluation.shadows", shadowed(shadows=0), pairs, 0.0, 1.0, shadowed(), SAID),
    Row(
        "evaluation.texts",
        shadowed(texts="masked"),
        kept,
        *("user: I am <EMAIL_ADDRESS_1>", None, shadowed(), SAID),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@shows("evaluation.budget")
async def test_nothing_is_judged_for_want_of_a_budget(tmp_path: Path) -> None:
    async with a_site(tmp_path, evaluation(budget={"usd_per_day": 0}), SAID) as site:
        assert await outcome(site) == "over_budget"
        assert not site.up.requests


@shows("evaluation", "evaluation.share")
async def test_a_share_is_told_by_the_ids(tmp_path: Path) -> None:
    async with a_site(tmp_path / "none", PRICED, SAID) as site:
        assert (await site.ask()).status_code == 200
    assert not (tmp_path / "none" / "state" / "evaluations.sqlite").exists()
    assert not site.up.requests
    async with a_site(tmp_path, evaluation(share=0.5), SAID) as site:
        ids = [(await site.ask()).headers["x-request-id"] for _ in range(20)]
        mine = sum(fraction(one) < 0.5 for one in ids)
        assert 0 < mine < 20
        await dealt_with(site, mine)
        assert len(site.up.requests) == mine
