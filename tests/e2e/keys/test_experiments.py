"""What the keys of experiments do: one arm takes all keys by its weight, so that a few requests show it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.keys.harness import Row, Site, a_site, answerer, shows, status
from tests.serving import KEY, OTHER_KEY, key

pytestmark = pytest.mark.anyio

ALL = 1e6
"""The weight of an arm that has every key."""
MAIL = "Write to joe@example.com."


def compared(new: dict[str, Any], *, old: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    arms = {"old": {"weight": 1e-6, **(old or {})}, "new": {"weight": ALL, **new}}
    return {
        "prompts": {"brief": "Be brief."},
        "experiments": {"tone": {"arms": arms, "where": {"models": ["up"]}, **more}},
    }


async def system_prompt(site: Site) -> Any:
    """Of what a server is sent where its caller wrote one."""
    messages = [{"role": "system", "content": "You sell bicycles."}, {"role": "user", "content": "Hi"}]
    await site.ask(model="up", messages=messages)
    return site.up.requests[-1].json()["messages"][0]["content"]


def arms_of(count: int, **body: Any) -> Any:
    """How many arms so many conversations have."""

    async def look(site: Site) -> int:
        answers = await asyncio.gather(*(site.ask(f"{one}?", model="up", **body) for one in range(count)))
        receipts = await asyncio.gather(*map(site.receipt, answers))
        arms = {one["stages"].get("experiment", {}).get("arm") for one in receipts}
        return len(arms - {None})

    return look


PLAIN = {"experiments": {}}
PII = {"guards": {"pii": {"on": ["input"], "action": "block"}}}
HALF = {"old": {"weight": 1.0}}
ROWS = [
    Row("experiments", compared({"model": "other"}), answerer(model="up"), "other", "up", PLAIN),
    Row(
        "experiments.<name>.arms.<name>.model",
        compared({"model": "other"}),
        answerer(model="up"),
        "other",
        "up",
        compared({}),
    ),
    Row(
        "experiments.<name>.arms",
        compared({"model": "other"}),
        answerer(model="up"),
        "other",
        "m",
        compared({"model": "m"}),
    ),
    Row(
        "experiments.<name>.arms.<name>.weight",
        compared({"model": "other"}),
        answerer(model="up"),
        "other",
        "up",
        compared({"model": "other", "weight": 1e-6}, old={"weight": ALL}),
    ),
    Row(
        "experiments.<name>.arms.<name>.prompt",
        compared({"prompt": "brief"}),
        system_prompt,
        "Be brief.\n\nYou sell bicycles.",
        "You sell bicycles.",
        compared({}),
    ),
    Row(
        "prompts",
        compared({"prompt": "brief"}),
        system_prompt,
        "Be brief.\n\nYou sell bicycles.",
        "Be kind.\n\nYou sell bicycles.",
        {**compared({"prompt": "brief"}), "prompts": {"brief": "Be kind."}},
    ),
    Row(
        "experiments.<name>.arms.<name>.prompt_place",
        compared({"prompt": "brief", "prompt_place": "instead"}),
        system_prompt,
        "Be brief.",
        "Be brief.\n\nYou sell bicycles.",
        compared({"prompt": "brief"}),
    ),
    Row(
        "experiments.<name>.arms.<name>.guards",
        {**PII, **compared({"guards": ["pii"]})},
        status(MAIL, model="up"),
        400,
        200,
        {**PII, **compared({}, old={"guards": ["pii"]})},
    ),
    Row(
        "experiments.<name>.arms.<name>.without",
        {**PII, **compared({"without": ["pii"]})},
        status(MAIL, model="up"),
        200,
        400,
        {**PII, **compared({})},
    ),
    Row(
        "experiments.<name>.key",
        compared({"weight": 1.0}, old={"weight": 1.0}, key="conversation"),
        arms_of(40, user="one"),
        2,
        1,
        compared({"weight": 1.0}, old={"weight": 1.0}, key="user"),
    ),
    Row(
        "experiments.<name>.share",
        compared({"model": "other"}),
        answerer(model="up"),
        "other",
        "up",
        compared({"model": "other"}, share=1e-9),
    ),
    Row(
        "experiments.<name>.where",
        compared({"prompt": "brief"}),
        arms_of(1),
        1,
        0,
        compared({"prompt": "brief"}, where={"models": ["other"]}),
    ),
    Row(
        "experiments.<name>.where.models",
        compared({"model": "other"}),
        answerer(model="m"),
        "m",
        "other",
        compared({"model": "other"}, where={"models": ["m"]}),
    ),
    Row(
        "experiments.<name>.where.tenants",
        compared({"model": "other"}, where={"models": ["up"], "tenants": ["ac*"]}),
        answerer(model="up", token=OTHER_KEY),
        "up",
        "other",
        compared({"model": "other"}),
    ),
    Row(
        "experiments.<name>.where.routes",
        compared({"model": "other"}, where={"models": ["up"], "routes": ["/v1/messages"]}),
        answerer(model="up"),
        "up",
        "other",
        compared({"model": "other"}),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_a_key_does_what_its_reference_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@shows("experiments.<name>.metrics")
async def test_arms_are_compared_by_what_it_names(tmp_path: Path) -> None:
    policy = compared({}, metrics=["length", "cost"])
    policy |= {"admin": {"enabled": True}, "keys": [key(KEY, "boss", scopes=["admin", "inference"])]}
    async with a_site(tmp_path, policy) as site:
        found = await site.gateway.http.get(
            "/admin/api/experiments", headers={"authorization": f"Bearer {KEY}"}
        )
        [one] = json.loads(found.text)["experiments"]
        assert [figure["metric"] for figure in one["arms"][1]["figures"]] == ["length", "cost"]
