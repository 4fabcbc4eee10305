"""Content that is to stay in a region goes nowhere else: not to targets, fallbacks, larger models, tiers' substitutes,
steps of cascades, shadows, judges, guards' servers, stores and traces.

``up`` is in ``eu``, ``other`` in ``us``, and of ``script`` nothing is stated.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError
from tests.e2e.keys.harness import OTHER, UP, Row, Site, a_site, code, shows
from tests.fakes import completion, reply
from tests.otlp_receiver import http_receiver
from tests.serving import OTHER_KEY

pytestmark = pytest.mark.anyio

BACKENDS = {"up": {"region": "eu"}, "other": {"region": "us"}}
TO_UP, TO_OTHER = {"backend": "up", "model": "u"}, {"backend": "other", "model": "o"}
IN_EU = {"backends": BACKENDS, "tenants": {"acme": {"residency": ["eu"]}}}
DOWN = (reply({"error": {"message": "down"}}, status=503),)
LONG = (reply({"error": {"message": "too long", "code": "context_length_exceeded"}}, status=400),)

ROWS = [
    Row("residency", {"residency": ["eu"], "backends": BACKENDS}, code(model="other"), "residency", 200),
    Row(
        "models.<name>.residency",
        {"models": {"other": {"residency": ["eu"]}}, "backends": BACKENDS},
        code(model="other"),
        "residency",
        200,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


def both(**model: Any) -> dict[str, Any]:
    return {"targets": [TO_OTHER, TO_UP], "regions": ["us"], "retry": {"attempts": 1}, **model}


WAYS_OUT: dict[str, tuple[dict[str, Any], str, Any]] = {
    "targets": ({"models": {"x": both()}}, "x", DOWN),
    "fallbacks": ({"models": {"up": {"fallbacks": ["other"]}}}, "up", DOWN),
    "larger_context": ({"models": {"up": {"larger_context": "other"}}}, "up", LONG),
    "known to be too long": (
        {"models": {"up": {"larger_context": "other", "context": 1, "over_context": "refuse"}}},
        "up",
        DOWN,
    ),
    "spill_over": (
        {
            "models": {"up": {"fallbacks": ["other"], "spill_over": True}},
            "backends": {"up": {"max_concurrency": 1}},
        },
        "up",
        DOWN,
    ),
    "cascade": ({"models": {"c": {"cascade": [{"model": "up"}, {"model": "other"}]}}}, "c", DOWN),
    "downgrade": (
        {"tiers": {"default": {"on_saturation": {"action": "downgrade", "at": 0.0, "to": "other"}}}},
        "up",
        DOWN,
    ),
    "shadow": ({"models": {"up": {"shadow": {"model": "other"}}}}, "up", DOWN),
    "shadow with a fallback": (
        {"models": {"up": {"shadow": {"model": "s"}}, "s": {"targets": [TO_UP], "fallbacks": ["other"]}}},
        "up",
        DOWN,
    ),
    "judge": (
        {
            "guards": {
                "toxicity": {
                    "action": "block",
                    "checks": ["fast"],
                    "judge": {"model": "other", "unsure": [0.0, 1.0]},
                }
            }
        },
        "up",
        DOWN,
    ),
    "webhook": ({"guards": {"it": {"kind": "webhook", "url": OTHER, "region": "us"}}}, "up", DOWN),
    "webhook that only flags": (
        {"guards": {"it": {"kind": "webhook", "url": OTHER, "action": "flag"}}},
        "up",
        DOWN,
    ),
}


def joined_with(residency: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    backends = {name: {**BACKENDS[name], **more.get("backends", {}).get(name, {})} for name in BACKENDS}
    return {**residency, **more, "backends": backends}


@pytest.mark.parametrize("way", WAYS_OUT)
@pytest.mark.parametrize("answers", [True, False], ids=["answers", "fails"])
async def test_no_way_leads_out(way: str, answers: bool, tmp_path: Path) -> None:
    more, model, up = WAYS_OUT[way]
    policy = joined_with({"tenants": {"acme": {"residency": ["eu"]}}}, more)
    async with a_site(tmp_path, policy, (reply(completion("from eu")),) if answers else up) as site:
        response = await site.ask("Nobody wants them around here.", model=model)
        await settled(site)
        assert not site.other.requests, "what is to stay in eu went to us"
        if response.status_code == 200:
            assert (await site.receipt(response))["stages"]["route"]["residency"] == ["eu"]
        # Who has no residency goes there, so that the way is one.
        if way not in ("known to be too long", "spill_over") and not (answers and way in _ON_FAILURE):
            await site.ask("Nobody wants them around here.", model=model, token=OTHER_KEY)
            await site.until(lambda: site.other.requests)


_ON_FAILURE = ("fallbacks", "larger_context", "cascade", "shadow with a fallback")


async def settled(site: Site) -> None:
    """Nothing runs beside the answer any more."""
    for _ in range(20):
        await site.gateway.http.get("/healthz")
        await asyncio.sleep(0.005)


async def test_what_is_refused_says_what_to_do(tmp_path: Path) -> None:
    async with a_site(tmp_path, IN_EU) as site:
        response = await site.ask(model="other")
        assert response.status_code == 403
        error = response.json()["error"]
        assert error["code"] == "residency" and "'eu'" in error["message"] and "operator" in error["message"]
        assert (await site.receipt(response))["stages"]["route"]["residency"] == ["eu"]
        assert not site.other.requests
        assert (await site.ask(model="other", token=OTHER_KEY)).status_code == 200


async def test_a_region_that_is_out_of_use_for_a_while_is_waited_for(tmp_path: Path) -> None:
    policy = {**IN_EU, "models": {"up": {"fallbacks": ["other"]}}, "drained": ["up"]}
    async with a_site(tmp_path, policy) as site:
        response = await site.ask(model="up")
        assert response.status_code == 503 and float(response.headers["retry-after"]) > 0
        assert not site.other.requests
        assert (await site.ask(model="up", token=OTHER_KEY)).status_code == 200


async def test_regions_in_common(tmp_path: Path) -> None:
    """Of a tenant, and of a model: what is in both; where nothing is, it goes nowhere."""
    policy = {
        **IN_EU,
        "models": {
            "up": {"residency": ["us", "eu"]},
            "x": {"targets": [TO_UP, TO_OTHER], "residency": ["us"]},
        },
    }
    async with a_site(tmp_path, policy) as site:
        assert (await site.ask(model="up")).status_code == 200
        response = await site.ask(model="x")
        assert response.status_code == 403 and "in common" in response.json()["error"]["message"]
        assert len(site.up.requests) == 1 and not site.other.requests


@shows("regions")
async def test_traces_hold_no_contents_elsewhere(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        for where, expected in (("eu", True), ("us", False), (None, False)):
            receiver.spans = []
            regions = {} if where is None else {"regions": {"telemetry": where}}
            telemetry = {"endpoint": receiver.url, "content": True}
            async with a_site(tmp_path / str(where), {**IN_EU, "telemetry": telemetry, **regions}) as site:
                assert (await site.ask("Ann lives here.", model="up")).status_code == 200
            assert receiver.spans
            assert ("Ann lives" in str(receiver.spans)) == expected


@pytest.mark.parametrize(
    ("place", "more"),
    [
        ("store", "store: redis://h"),
        ("cache_store", "cache_store: redis://h"),
        ("ledger", "ledger: {store: postgresql://h/d}\nfiles: {path: /srv}"),
        ("files", "files: {store: s3://bucket}"),
    ],
)
def test_stores_are_decided_when_the_policy_is_read(place: str, more: str, tmp_path: Path) -> None:
    base = f"""version: 1
backends: {{up: {{kind: openai, base_url: {UP}, region: eu}}}}
models: {{up: {{targets: [{{backend: up, model: u}}]}}}}
tenants: {{acme: {{residency: [eu]}}}}
{more}
"""
    for region, good in (("eu", True), ("us", False), (None, False)):
        regions = "" if region is None else f"regions: {{{place}: {region}}}\n"
        (tmp_path / "gateway.yaml").write_text(base + regions)
        if good:
            assert load_policy(tmp_path, {}).policy.has_residency
            continue
        with pytest.raises(PolicyError, match="are to stay in 'eu'"):
            load_policy(tmp_path, {})


def test_keys_of_a_table_are_checked_as_others_are(tmp_path: Path) -> None:
    base = f"version: 1\nbackends: {{up: {{kind: openai, base_url: {UP}, region: eu}}}}\nstore: redis://h\n"
    (tmp_path / "gateway.yaml").write_text(base + "models: {up: {targets: [{backend: up, model: u}]}}\n")
    table = tmp_path / "keys.jsonl"
    table.write_text('{"id": "k", "sha256": "%s", "residency": ["eu"]}\n' % ("a" * 64))
    with pytest.raises(PolicyError, match=r"keys\.jsonl:1: residency: is in a region that is not stated"):
        load_policy(tmp_path, {})
    (tmp_path / "regions.yaml").write_text("regions: {store: eu}\n")
    assert load_policy(tmp_path, {}).policy.has_residency


@pytest.mark.parametrize("how", ["previous_response_id", "item_reference", "count", "compact", "background"])
async def test_what_is_kept_stays_whoever_continues_it(how: str, tmp_path: Path) -> None:
    """By another model, which may be asked anything else."""
    policy = {"backends": BACKENDS, "models": {"up": {"residency": ["eu"]}}}
    async with a_site(tmp_path, policy) as site:

        async def respond(path: str = "", **body: Any) -> Any:
            headers = {"authorization": f"Bearer {OTHER_KEY}"}
            return await site.gateway.http.post(f"/v1/responses{path}", json=body, headers=headers)

        first = (await respond(model="up", input="Ann is ill.")).json()
        follow_up: dict[str, Any] = {"model": "other", "input": "Go on", "previous_response_id": first["id"]}
        if how == "item_reference":
            (said,) = first["output"]
            follow_up = {"model": "other", "input": [{"type": "item_reference", "id": said["id"]}]}
        if how == "background":
            follow_up["background"] = True
        response = await respond({"count": "/input_tokens", "compact": "/compact"}.get(how, ""), **follow_up)
        if how == "background":
            await site.until(lambda: True)
            await settled(site)
        elif how != "count":
            assert response.status_code == 403 and response.json()["error"]["code"] == "residency"
        assert not site.other.requests, "what is to stay in eu went to us"
        # What continues it in its region is bound likewise; what continues nothing is not.
        second = (await respond(model="up", input="Go on", previous_response_id=first["id"])).json()
        third = await respond(model="other", input="And?", previous_response_id=second["id"])
        assert third.status_code == 403 and not site.other.requests
        assert (await respond(model="other", input="Hi")).status_code == 200 and site.other.requests
