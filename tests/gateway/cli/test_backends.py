"""``tollgate backends list`` before a gateway on a socket, and before what is none."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.cli.backends import rows, table
from tests.lora_server import BASE, LoraServer, lora_servers
from tests.serving import KEY, a_policy, key, serving

pytestmark = pytest.mark.anyio
BOSS = "tg-boss"


async def test_replicas_stand_behind_their_backend_with_breakers_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOLLGATE_API_KEY", BOSS)
    servers = [LoraServer(), LoraServer()]
    async with lora_servers(*servers):
        policy = a_policy("http://127.0.0.1:1/v1", admin={"enabled": True})
        policy["keys"].append(key(BOSS, "boss", scopes=["admin"]))
        urls = [f"{server.url}/v1" for server in servers]
        policy["backends"]["vllm"] = {
            "kind": "openai",
            "replicas": urls,
            "telemetry": "vllm",
            "max_concurrency": 7,
        }
        policy["models"]["chat"] = {"targets": [{"backend": "vllm", "model": BASE}]}
        names = [f"vllm@{server.url.removeprefix('http://')}" for server in servers]
        policy["drained"] = names[1:]
        async with serving(tmp_path / "policies", policy) as gateway:

            async def listed(*more: str) -> tuple[int, str, str]:
                command = ["backends", "list", "--url", gateway.url, *more]
                code = await asyncio.to_thread(main, command)
                return code, *capsys.readouterr()

            code, out, _ = await listed()
            assert code == 0
            lines = {line.split()[0]: line for line in out.splitlines()}
            assert [*lines].index("vllm") + 1 == [*lines].index(names[0])
            assert "1 replicas" not in lines["vllm"] and "2 replicas" in lines["vllm"]
            assert "in use" in lines[names[0]] and "0/7" in lines[names[0]]
            assert "drained" in lines[names[1]] and lines[names[0]].startswith("  vllm@")
            code, out, _ = await listed("vllm", "--json")
            assert [one["name"] for one in json.loads(out)["backends"]] == ["vllm", *names]
            code, out, error = await listed("none")
            assert (code, out) == (1, "") and "no backend is named 'none'" in error
            monkeypatch.setenv("TOLLGATE_API_KEY", KEY)
            code, out, error = await listed()
            assert (code, out) == (1, "") and "HTTP status 403" in error and "admin" in error
        code, out, error = await listed()
        assert (code, out) == (1, "") and "cannot be asked" in error
        code = await asyncio.to_thread(main, ["backends", "list", "--url", servers[0].url])
        assert code == 1 and "is no gateway" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["--url", "host:8000"], "write it as http://"),
        (["--key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is empty"),
    ],
)
async def test_options_that_are_wrong(
    command: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOLLGATE_API_KEY", BOSS)
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    assert main(["backends", "list", *command]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", ["tg-né-secret", "tg-a\nb-secret"])
def test_a_key_that_is_none_is_not_shown(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOLLGATE_API_KEY", text)
    assert main(["backends", "list", "--url", "http://127.0.0.1:1"]) == 2
    shown = capsys.readouterr()
    assert "has no API key" in shown.err and "secret" not in shown.err + shown.out


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (200, b'{"backends": [1], "breakers": []}', "of this version"),
        (200, b'{"backends": {"a": 1}, "breakers": 3}', "of this version"),
        (200, b'{"backends": [{"name": "x"}], "breakers": []}', "of this version"),
        (200, b"[" * 100_000, "is no gateway"),
        (403, b'{"error": {"message": "\\u001b[31mno"}}', "HTTP status 403:  [31mno"),
    ],
)
async def test_an_answer_that_is_odd(
    status: int, answer: bytes, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def give(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(answer), answer)
        )
        await writer.drain()
        writer.close()

    monkeypatch.setenv("TOLLGATE_API_KEY", BOSS)
    async with await asyncio.start_server(give, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await asyncio.to_thread(main, ["backends", "list", "--url", url]) == 1
    assert said in capsys.readouterr().err


def a_backend(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "drained": False, "enabled": True, **more}


def test_each_state_has_its_word() -> None:
    told = [
        a_backend("off", enabled=False, disabled="its key is not set\x1b[31m"),
        a_backend("one"),
        a_backend("one@a:1", replica_of="one", share=0.0),
        a_backend("one@b:1", replica_of="one", share=0.25),
    ]
    breaker = {"backend": "one@a:1", "model": "x", "tenant": None, "key": None, "seconds": 12.0}
    engine = {"running": 3, "waiting": 2, "kv_usage": 0.5}
    figures: dict[str, Any] = {"in_flight": 4, "slots": None, "waiting": 1, "engine": engine, "queue": []}
    snapshot = {
        "backends": {"one@b:1": figures},
        "breakers": [breaker, {**breaker, "tenant": "acme", "seconds": 30.0}],
    }
    _, off, _, first, second = table([*rows(told, snapshot)]).splitlines()
    assert (
        off.split("  ")[0] == "off"
        and "out of use" in off
        and "its key is not set" in off
        and "\x1b" not in off
    )
    assert "ejected" in first and "open 30 s: x for acme, 1 more" in first
    assert [one.strip() for one in second.split("  ") if one] == [
        "one@b:1",
        "25% share",
        "closed",
        "4",
        "1",
        "3+2",
        "50%",
    ]
