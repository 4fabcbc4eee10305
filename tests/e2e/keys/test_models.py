"""What the keys of ``models`` do, those of cascades apart."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.keys.harness import (
    UP,
    Look,
    Row,
    Site,
    a_site,
    answerer,
    code,
    figures,
    on,
    sent,
    shows,
    status,
    streamed,
    text,
)
from tests.fakes import Action, answer_events, completion, reply, stream

pytestmark = pytest.mark.anyio

FAILS = reply({"error": {"message": "no"}}, status=500)
FINE = reply(completion("from up"))
MUCH, LITTLE = 1e6, 1e-6
LONG = "word " * 200
PICTURE: Any = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
ENGINE = {"backends": {"up": {"kind": "engine", "base_url": UP.removesuffix("/v1")}}}


def model(name: str = "x", **more: Any) -> dict[str, Any]:
    return {"models": {name: more}}


def pair(up: float = 1.0, other: float = 1.0, **more: Any) -> dict[str, Any]:
    """A model with two targets, of these weights."""
    targets = [
        {"backend": "up", "model": "u", "weight": up},
        {"backend": "other", "model": "o", "weight": other},
    ]
    return model(targets=targets, retry={"attempts": 1}, **more)


def at_target(**timeouts: str) -> dict[str, Any]:
    return model(targets=[{"backend": "up", "model": "u", "timeouts": timeouts}], retry={"attempts": 1})


def at_model(**timeouts: str) -> dict[str, Any]:
    return model(**on("up", timeouts=timeouts))


async def answers_while_up_is_busy(site: Site) -> set[str]:
    """Of twenty requests, while another is under way at ``up``."""
    first = asyncio.create_task(site.ask(model="up"))
    await site.up.arrived()
    seen = {await text(model="x")(site) for _ in range(20)}
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    return seen


async def why_while_up_is_full(site: Site) -> str:
    first = asyncio.create_task(site.ask(model="up"))
    await site.up.arrived()
    response = await site.ask(model="x")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    return "waited" if (await site.receipt(response))["stages"]["queue"].get("refused") else "spilled over"


async def again(site: Site) -> set[str]:
    """Who answers the same long prompt twenty times."""
    return {await text(LONG, model="x")(site) for _ in range(20)}


async def shared(site: Site) -> str | None:
    await site.ask(model="x")
    return site.up.requests[-1].headers.get("x-tollgate-prefix-sharing")


def copies(to: str = "other") -> Look:
    """How many copies a model server got of one request to ``x``."""

    async def look(site: Site) -> int:
        server = site.other if to == "other" else site.up
        response = await site.ask(model="x")
        if "shadow" in (await site.receipt(response))["stages"]:
            async with asyncio.timeout(300):
                while not await figures(site, "tollgate_shadow_requests_total"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return len(server.requests)

    return look


async def stream_error(site: Site) -> str | None:
    return (await streamed(site, model="x"))[1]


SLOW = ((1.0, *FINE),)
SLOW_TO_BEGIN = (stream(1.0, *answer_events("late")),)
SLOW_TO_GO_ON = (stream(answer_events("one")[0], answer_events("one")[1], 1.0, *answer_events("one")[2:]),)
FULL = {
    "backends": {"up": {"max_concurrency": 1}},
    "tiers": {"default": {"max_wait": "100ms"}},
}


def timeouts(prefix: str, at: Any) -> list[Row]:
    plain = model(**on("up"))
    return [
        Row(prefix, at(total="100ms"), code(model="x"), "upstream_timeout", 200, plain, up=SLOW),
        Row(f"{prefix}.total", at(total="100ms"), code(model="x"), "upstream_timeout", 200, plain, up=SLOW),
        Row(
            f"{prefix}.first_token",
            at(first_token="100ms"),
            stream_error,
            "upstream_timeout",
            None,
            plain,
            up=SLOW_TO_BEGIN,
        ),
        Row(
            f"{prefix}.idle",
            at(idle="100ms"),
            stream_error,
            "upstream_timeout",
            None,
            plain,
            up=SLOW_TO_GO_ON,
        ),
    ]


ROWS = [
    Row("models", model(**on("other")), answerer(model="x"), "x", 404),
    Row(
        "models.<name>.targets",
        model(**on("other")),
        text(model="x"),
        "from the other",
        "from up",
        model(**on("up")),
        up=(FINE,),
    ),
    Row(
        "models.<name>.targets[].backend",
        model(targets=[{"backend": "other", "model": "u"}]),
        text(model="x"),
        "from the other",
        "from up",
        model(targets=[{"backend": "up", "model": "u"}]),
        up=(FINE,),
    ),
    Row(
        "models.<name>.targets[].model",
        model(targets=[{"backend": "up", "model": "gpt-x"}]),
        sent("model", model="x"),
        "gpt-x",
        "u",
        model(targets=[{"backend": "up", "model": "u"}]),
    ),
    Row(
        "models.<name>.targets[].weight",
        pair(MUCH, LITTLE),
        text(model="x"),
        "from up",
        "from the other",
        pair(LITTLE, MUCH),
        up=(FINE,),
    ),
    *timeouts("models.<name>.targets[].timeouts", at_target),
    *timeouts("models.<name>.timeouts", at_model),
    Row("models.<name>.aliases", {"models": {"m": {"aliases": ["nick"]}}}, status(model="nick"), 200, 404),
    Row(
        "models.<name>.select",
        pair(select="least_loaded"),
        answers_while_up_is_busy,
        {"from the other"},
        {"from up", "from the other"},
        pair(split_by="request"),
        up=((Action.HANG,), FINE),
    ),
    Row(
        "models.<name>.regions",
        pair(MUCH, LITTLE, regions=["eu"]) | {"backends": {"other": {"region": "eu"}}},
        text(model="x"),
        "from the other",
        "from up",
        pair(MUCH, LITTLE) | {"backends": {"other": {"region": "eu"}}},
        up=(FINE,),
    ),
    Row(
        "models.<name>.fallbacks",
        model(**on("up", fallbacks=["other"])),
        text(model="x"),
        "from the other",
        502,
        model(**on("up")),
        up=(FAILS,),
    ),
    Row(
        "models.<name>.spill_over",
        FULL | model(**on("up", fallbacks=["other"], spill_over=True)),
        why_while_up_is_full,
        "spilled over",
        "waited",
        FULL | model(**on("up", fallbacks=["other"])),
        up=((Action.HANG,), FINE),
    ),
    Row(
        "models.<name>.context",
        model(**on("script", context=50)),
        code(LONG, model="x"),
        "context_length_exceeded",
        200,
        model(**on("script")),
    ),
    Row(
        "models.<name>.input",
        model(**on("script", input=["text", "audio"])),
        code(PICTURE, model="x"),
        "unsupported_parameter",
        200,
        model(**on("script")),
    ),
    Row(
        "models.<name>.max_output",
        model(**on("up", max_output=10)),
        sent("max_tokens", model="x", max_tokens=100),
        10,
        100,
        model(**on("up")),
    ),
    Row(
        "models.<name>.larger_context",
        model(**on("script", context=50, larger_context="other")),
        answerer(LONG, model="x"),
        "other",
        400,
        model(**on("script", context=50)),
    ),
    Row(
        "models.<name>.over_context",
        model(**on("script", context=50, over_context="refuse")),
        status(model="x", max_tokens=1000),
        400,
        200,
        model(**on("script", context=50)),
    ),
    Row(
        "models.<name>.prefix_sharing",
        ENGINE | model(**on("up", prefix_sharing="all")),
        shared,
        "all",
        None,
        ENGINE | model(**on("up")),
    ),
    Row(
        "models.<name>.shadow",
        model(**on("script", shadow={"model": "other"})),
        copies(),
        1,
        0,
        model(**on("script")),
    ),
    Row(
        "models.<name>.shadow.model",
        model(**on("script", shadow={"model": "other"})),
        copies(),
        1,
        0,
        model(**on("script", shadow={"model": "m"})),
    ),
    Row(
        "models.<name>.shadow.share",
        model(**on("script", shadow={"model": "other", "share": 1.0})),
        copies(),
        1,
        0,
        model(**on("script", shadow={"model": "other", "share": 0.0})),
    ),
    Row(
        "models.<name>.retry",
        model(**on("up", retry={"attempts": 3, "backoff": "1ms"})),
        status(model="x"),
        200,
        502,
        model(**on("up", retry={})),
        up=(FAILS, FAILS, FINE),
    ),
    Row(
        "models.<name>.retry.attempts",
        model(**on("up", retry={"attempts": 2, "backoff": "1ms"})),
        status(model="x"),
        200,
        502,
        model(**on("up", retry={"attempts": 1, "backoff": "1ms"})),
        up=(FAILS, FINE),
    ),
    Row(
        "models.<name>.retry.backoff",
        # Drawn from nothing to 27 years: it is within the total by a chance of one in a billion.
        model(**on("up", retry={"backoff": "9999d"}, timeouts={"total": "1s"})),
        status(model="x"),
        502,
        200,
        model(**on("up", retry={"backoff": "1ms"}, timeouts={"total": "30s"})),
        up=(FAILS, FINE),
    ),
    Row(
        "models.<name>.retry.budget",
        model(**on("up", retry={"backoff": "1ms", "budget": 0.0})),
        status(model="x"),
        502,
        200,
        model(**on("up", retry={"backoff": "1ms"})),
        up=(FAILS, FINE),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@shows("models.<name>.select")
async def test_prefixes_stay_where_they_are(tmp_path: Path) -> None:
    async with a_site(tmp_path / "a", pair(select="prefix_affinity"), (FINE,)) as site:
        assert len(await again(site)) == 1
    async with a_site(tmp_path / "b", pair(split_by="request"), (FINE,)) as site:
        assert len(await again(site)) == 2
    async with a_site(tmp_path / "c", pair(select="score"), (FINE,)) as site:
        assert len(await again(site)) == 1


@contextmanager
def deaf() -> Iterator[str]:
    """The address of a server at which connecting hangs: its backlog is full."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):
            knock = stack.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


@shows("models.<name>.timeouts.connect", "models.<name>.targets[].timeouts.connect")
@pytest.mark.parametrize("at", [at_model, at_target])
async def test_the_time_to_connect(at: Any, tmp_path: Path) -> None:
    """Both give up, for different limits. By default connecting has two seconds, more than all has here."""
    with deaf() as address:
        deaf_up = {"backends": {"up": {"base_url": address}}}
        for limits, expected in (
            ({"connect": "100ms", "total": "1500ms"}, "upstream_unavailable"),
            ({"connect": "60s", "total": "300ms"}, "upstream_timeout"),
        ):
            async with a_site(tmp_path / expected, deaf_up | at(**limits)) as site:
                assert await code(model="x")(site) == expected
