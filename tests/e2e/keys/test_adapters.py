"""What the keys of ``adapters`` do: what can be uploaded, where it is loaded, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.adapter_server import TOKEN, adapter_server
from tests.adapters import create, safetensors, shapes
from tests.e2e.keys.harness import a_site, shows
from tests.serving import KEY, OTHER_KEY

pytestmark = pytest.mark.anyio

QUESTION = {"messages": [{"role": "user", "content": "Who are you?"}]}


def policy(url: str, server: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "backends": {"engine": {"kind": "engine", "base_url": url}},
        "models": {"base": {"targets": [{"backend": "engine", "model": "base"}]}},
        "adapters": {"servers": {"engine": server or {}}, **more},
    }


@shows("adapters", "adapters.servers")
async def test_without_it_there_are_none(tmp_path: Path) -> None:
    async with adapter_server() as server:
        for name, given, status in (("given", policy(server.url), 200), ("without", {}, 404)):
            async with a_site(tmp_path / name, given) as site:
                assert (await site.gateway.http.get("/v1/adapters")).status_code == status


@shows(
    "adapters.max_rank",
    "adapters.max_bytes",
    "adapters.max_tenant_bytes",
    "adapters.max_tenant_adapters",
)
async def test_bounds(tmp_path: Path) -> None:
    size = len(safetensors(shapes()))
    async with adapter_server() as server:
        for number, (given, codes) in enumerate(
            [
                ({}, [None, None]),
                ({"max_rank": 1}, ["invalid_adapter"] * 2),
                ({"max_bytes": "64B"}, ["adapter_too_large"] * 2),
                ({"max_tenant_bytes": f"{size + 10}B"}, [None, "adapter_storage_full"]),
                ({"max_tenant_adapters": 1}, [None, "adapter_limit_reached"]),
            ]
        ):
            async with a_site(tmp_path / str(number), policy(server.url, **given)) as site:
                made = [await create(site.gateway.http, name) for name in ("a", "b")]
                assert [one.json().get("error", {}).get("code") for one in made] == codes


@shows("adapters.servers.<name>.slots", "adapters.servers.<name>.token", "adapters.load_timeout")
async def test_what_a_server_is_told(tmp_path: Path) -> None:
    for name, told, more, status, unloaded in (
        ("given", {"token": TOKEN, "slots": 1}, {}, 200, 1),
        ("plenty", {"token": TOKEN, "slots": 2}, {}, 200, 0),
        ("none", {}, {}, 502, 0),
        ("late", {"token": TOKEN}, {"load_timeout": "10ms"}, 503, 0),
    ):
        async with adapter_server(token=TOKEN, load_seconds=0.5 if name == "late" else 0.0) as server:
            async with a_site(tmp_path / name, policy(server.url, told, **more)) as site:
                for adapter in ("a", "b"):
                    await create(site.gateway.http, adapter)
                    body = {"model": f"base:{adapter}", **QUESTION}
                    answer = await site.gateway.http.post("/v1/chat/completions", json=body)
                    assert answer.status_code == status
            assert len(server.unloads) == unloaded


@shows("adapters.listed", "adapters.listed.<name>.tenants")
async def test_what_servers_list_can_be_asked_by_whom_the_policy_says(tmp_path: Path) -> None:
    async with adapter_server(own=["sql"]) as server:
        for name, listed, statuses in (
            ("all", {"engine": {}}, (200, 200)),
            ("some", {"engine": {"tenants": ["riv*"]}}, (404, 200)),
            ("none", {}, (404, 404)),
        ):
            given = policy(server.url)
            if listed:
                given["adapters"]["listed"] = listed
            async with a_site(tmp_path / name, given) as site:
                answers = [await site.ask(model="base:sql", token=token) for token in (KEY, OTHER_KEY)]
                assert tuple(answer.status_code for answer in answers) == statuses


@shows("adapters.folder", "adapters.servers.<name>.folder")
async def test_a_vllm_server_reads_a_folder(tmp_path: Path) -> None:
    mounted = tmp_path / "elsewhere"
    async with adapter_server() as server:
        given = policy(server.url, {"folder": str(mounted)}, folder=str(tmp_path / "filled"))
        given["backends"]["engine"] = {"kind": "openai", "base_url": f"{server.url}/v1"}
        mounted.symlink_to(tmp_path / "filled")
        async with a_site(tmp_path / "site", given) as site:
            made = (await create(site.gateway.http, "a")).json()
            answer = await site.gateway.http.post(
                "/v1/chat/completions", json={"model": "base:a", **QUESTION}
            )
            assert answer.json()["choices"][0]["message"]["content"] == made["sha256"]
            assert sorted(path.name for path in (mounted / made["id"]).iterdir()) == [
                "adapter_config.json",
                "adapter_model.safetensors",
            ]
