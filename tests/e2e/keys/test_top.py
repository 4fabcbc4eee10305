"""What the keys of ``limits`` and ``cors`` do, and those at the top that stand alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.keys.harness import UP, Look, Row, Site, base, on, shows, status, streamed, text
from tests.fakes import answer_events, completion, reply, stream
from tests.serving import KEY, OTHER_KEY, chat, key

pytestmark = pytest.mark.anyio

PAGE = "https://chat.example.com"
SYSTEM = "You are the assistant of the shop."
ENGINE = {
    "backends": {"up": {"kind": "engine", "base_url": UP.removesuffix("/v1")}},
    "models": {"up": on("up", prefix_sharing="system")},
}


def body(**more: Any) -> Look:
    """The status of a chat with these fields."""

    async def look(site: Site) -> int:
        return (await site.post("/v1/chat/completions", {**chat("m"), **more})).status_code

    return look


async def labelled(site: Site) -> set[str]:
    """Tenants that the metrics tell apart, of two that have asked."""
    for token in (KEY, OTHER_KEY):
        await site.ask(token=token)
    names = {
        tenant
        for tenant in ("acme", "other-tenant", "other")
        for line in await site.gateway.metrics()
        if line.startswith("tollgate_tenant_requests_total{") and f'tenant="{tenant}"' in line
    }
    return names


def told_apart(**metrics: Any) -> dict[str, Any]:
    keys = [key(KEY, "one", tenant="acme"), key(OTHER_KEY, "two", tenant="other-tenant")]
    return {"keys": keys, **({"metrics": metrics} if metrics else {})}


async def prompts(site: Site) -> int:
    return (await site.post("/v1/completions", {"model": "m", "prompt": ["a", "b", "c"]})).status_code


async def shared(site: Site) -> str | None:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hi"}]
    await site.post("/v1/chat/completions", {"model": "up", "messages": messages})
    return site.up.requests[-1].headers.get("x-tollgate-prefix-sharing")


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": inner}}
    return inner


def tool(name: str, **schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema or {"type": "object"}}}


THREE = [{"role": "user", "content": "Hi"}] * 3
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hi"}] * 3}]


MANY_VALUES = reply(completion(extra=[{"a": "b"}] * 400))
CALLS = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in range(2)]
TWO_CALLS = reply(
    completion(
        choices=[
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, "tool_calls": CALLS},
                "finish_reason": "tool_calls",
            }
        ]
    )
)
PINGS = stream(*[b": ping\n\n"] * 10, *answer_events("late"))


async def stream_error(site: Site) -> str | None:
    return (await streamed(site, model="up"))[1]


def limited(name: str, most: int, look: Look) -> Row:
    return Row(f"limits.{name}", {"limits": {name: most}}, look, 400, 200)


def told(name: str, *, preflight: bool = False, **headers: str) -> Look:
    """What a browser on ``PAGE`` is told by a header."""

    async def look(site: Site) -> str | None:
        named = {"origin": PAGE, **{key.replace("_", "-"): value for key, value in headers.items()}}
        if preflight:
            asked = {**named, "access-control-request-method": "POST"}
            response = await site.gateway.http.options("/v1/chat/completions", headers=asked)
        else:
            response = await site.gateway.http.get("/v1/models", headers=named)
        return response.headers.get(f"access-control-{name}")

    return look


def cors(**more: Any) -> dict[str, Any]:
    return {"cors": {"allow_origins": [PAGE], **more}}


async def may_send(site: Site) -> bool:
    ask = told("allow-headers", preflight=True, access_control_request_headers="x-mine")
    return "x-mine" in (await ask(site) or "")


ROWS = [
    Row("metrics", told_apart(tenants=False), labelled, set(), {"acme", "other-tenant"}, told_apart()),
    Row(
        "metrics.tenants", told_apart(tenants=False), labelled, set(), {"acme", "other-tenant"}, told_apart()
    ),
    Row(
        "metrics.max_tenants",
        told_apart(max_tenants=1),
        labelled,
        {"acme", "other"},
        {"acme", "other-tenant"},
        told_apart(),
    ),
    Row(
        "backends",
        {"backends": {"new": {"kind": "fake", "script": [{"reply": "new"}]}}, "models": {"m": on("new")}},
        text(),
        "new",
        "one two three",
    ),
    Row("limits", {"limits": {"messages": 2}}, body(messages=THREE), 400, 200),
    limited("messages", 2, body(messages=THREE)),
    limited("parts", 2, body(messages=PARTS)),
    limited("tools", 1, body(tools=[tool("a"), tool("b")])),
    limited("stop", 1, body(stop=["a", "b"])),
    limited("prompts", 2, prompts),
    limited("values", 5, body()),
    limited("entries", 2, body()),
    limited("answers", 2, body(n=3)),
    Row(
        "limits.answer_values",
        {"limits": {"answer_values": 20}},
        status(model="up"),
        502,
        200,
        up=(MANY_VALUES,),
    ),
    Row(
        "limits.answer_parts", {"limits": {"answer_parts": 1}}, status(model="up"), 502, 200, up=(TWO_CALLS,)
    ),
    Row(
        "limits.empty_events",
        {"limits": {"empty_events": 5}},
        stream_error,
        "upstream_malformed",
        None,
        up=(PINGS,),
    ),
    limited("depth", 8, body(tools=[tool("a", **nested(6))])),
    Row("cors", cors(), told("allow-origin"), PAGE, None),
    Row(
        "cors.allow_origins",
        cors(),
        told("allow-origin"),
        PAGE,
        None,
        cors(allow_origins=["https://else.example"]),
    ),
    Row("cors.allow_headers", cors(allow_headers=["authorization"]), may_send, False, True, cors()),
    Row(
        "cors.allow_credentials",
        cors(allow_credentials=True),
        told("allow-credentials"),
        "true",
        None,
        cors(),
    ),
    Row(
        "cors.allow_private_network",
        cors(allow_private_network=True),
        told("allow-private-network", preflight=True, access_control_request_private_network="true"),
        "true",
        None,
        cors(),
    ),
    Row("cors.max_age", cors(max_age="30s"), told("max-age", preflight=True), "30", "600", cors()),
    Row("drained", {"drained": ["script"]}, body(), 503, 200),
    Row("shared_prompts", ENGINE | {"shared_prompts": {"shop": SYSTEM}}, shared, "system", None, ENGINE),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@shows("version")
def test_a_format_to_come_is_refused(tmp_path: Path) -> None:
    for version, code in ((1, 0), (2, 1)):
        (tmp_path / "gateway.yaml").write_text(yaml.safe_dump({**base(), "version": version}))
        ran = subprocess.run(
            [sys.executable, "-m", "gateway", "check", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == code
        assert ("version" in ran.stdout) is bool(code)
