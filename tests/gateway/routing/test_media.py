"""Pictures, sound and files go where they are taken; what no target takes is refused before anyone is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import BadRequest
from gateway.policy.inputs import BY_PRESET
from gateway.policy.schema.backends import PRESET_URLS
from gateway.types import Call, Principal
from tests import faults
from tests.fakes import a_call, policy
from tests.faults import ModelServer
from tests.gateway.routing.test_router import a_policy, a_router, told
from tests.serving import a_policy as served_policy
from tests.serving import serving

SOUND = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}
FILM = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}

OPENAI = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}
ENGINE = {"kind": "engine"}
CLAUDE = {"kind": "anthropic", "api_key": "k"}
GEMINI = {"kind": "gemini", "api_key": "k"}


def a_model(*backends: str, **more: Any) -> dict[str, Any]:
    return {"targets": [{"backend": name, "model": "x"} for name in backends], **more}


def asking(rules: Any, *parts: dict[str, Any], model: str = "m", principal: Principal | None = None) -> Call:
    text = {"type": "text", "text": "What is this?"}
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": [text, *parts]})
    return a_call(policy_=rules, model=model, messages=messages, params={}, principal=principal)


@pytest.mark.parametrize(
    ("backend", "taken"),
    [
        (ENGINE, []),
        (CLAUDE, [PICTURE, FILE]),
        (GEMINI, [PICTURE, SOUND, FILM, FILE]),
        (OPENAI, [PICTURE, SOUND, FILM, FILE]),
        ({"kind": "openai", "preset": "groq", "api_key": "k"}, [PICTURE]),
        ({"kind": "openai", "preset": "mistral", "api_key": "k"}, [PICTURE, SOUND, FILE]),
        ({"kind": "openai", "preset": "openrouter", "api_key": "k"}, [PICTURE, SOUND, FILM, FILE]),
    ],
)
def test_what_each_kind_of_backend_takes(backend: dict[str, Any], taken: list[dict[str, Any]]) -> None:
    rules = policy(backends={"b": backend}, models={"m": a_model("b")})
    router = a_router(rules)
    for part in (PICTURE, SOUND, FILM, FILE):
        if part in taken:
            assert told(router.plan(asking(rules, part))) == ["m:b:primary"]
            continue
        with pytest.raises(BadRequest) as refused:
            router.plan(asking(rules, part))
        assert refused.value.param == "messages[1].content[1]"
        assert (
            "messages[1].content[1]" in refused.value.message and "'m' does not take" in refused.value.message
        )
        assert refused.value.code == "unsupported_parameter"
    assert told(router.plan(asking(rules))) == ["m:b:primary"]


def test_presets_are_known_by_their_names() -> None:
    assert BY_PRESET.keys() <= PRESET_URLS.keys()


def test_a_model_that_its_policy_describes() -> None:
    rules = a_policy({"m": a_model("a", input=["text", "image"]), "n": a_model("a", input=["audio", "text"])})
    router = a_router(rules)
    assert told(router.plan(asking(rules, PICTURE))) == ["m:a:primary"]
    assert told(router.plan(asking(rules, SOUND, model="n"))) == ["n:a:primary"]
    with pytest.raises(BadRequest, match=r"is audio, .* model that does, such as 'n'\.$"):
        router.plan(asking(rules, SOUND))
    with pytest.raises(BadRequest, match=r"model that does\.$"):
        router.plan(asking(rules, SOUND, principal=Principal("k", "acme", ("m",))))
    with pytest.raises(BadRequest, match=r"is a file, .* model that does\.$"):
        router.plan(asking(rules, SOUND, FILE, model="n"))
    with pytest.raises(ValueError, match="should have 'text'"):
        a_policy({"m": a_model("a", input=["image"])})


def test_targets_and_fallbacks_that_do_not_take_it_are_passed_over() -> None:
    rules = policy(
        backends={"engine": ENGINE, "claude": CLAUDE, "gemini": GEMINI},
        models={
            "m": a_model("engine", "claude", fallbacks=["g", "e"]),
            "g": a_model("gemini"),
            "e": a_model("engine"),
        },
    )
    router = a_router(rules)
    assert len(router.plan(asking(rules))) == 4 - 1, "the engine is a target twice"
    assert told(router.plan(asking(rules, PICTURE))) == ["m:claude:primary", "g:gemini:fallback"]
    assert told(router.plan(asking(rules, SOUND))) == ["g:gemini:fallback"]


def told_error(body: dict[str, Any]) -> str:
    return str(body["error"]["message"])


@pytest.mark.anyio
async def test_nobody_is_asked_whatever_the_callers_dialect(tmp_path: Path) -> None:
    models = {
        "m": {**a_model("up"), "input": ["text"]},
        "ears": {**a_model("up"), "input": ["text", "audio"]},
        "auto": {"cascade": [{"model": "m"}, {"model": "ears"}]},
    }
    say = {"type": "text", "text": "Hi"}
    chats = {"messages": [{"role": "user", "content": [say, SOUND]}]}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    claude = {"max_tokens": 9, "messages": [{"role": "user", "content": [say, image]}]}
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {**SOUND}]}]
    async with (
        ModelServer(x=faults.sound) as up,
        serving(tmp_path / "p", served_policy(up.base_url, models=models)) as gateway,
    ):
        for path, body in (
            ("/v1/chat/completions", chats),
            ("/v1/messages", claude),
            ("/v1/responses", {"input": items}),
        ):
            for stream in (False, True):
                answer = await gateway.http.post(path, json={"model": "m", "stream": stream, **body})
                assert answer.status_code == 400, answer.text
                assert "content[1]' is a" in told_error(answer.json())
                assert "the model 'm' does not take" in told_error(answer.json())
        assert up.asked == []
        heard = await gateway.http.post("/v1/chat/completions", json={"model": "ears", **chats})
        assert heard.status_code == 200, heard.text
        passed = await gateway.http.post("/v1/chat/completions", json={"model": "auto", **chats})
        assert passed.status_code == 200, passed.text
        assert len(up.asked) == 2, "the first step of the cascade was not asked"


@pytest.mark.anyio
@pytest.mark.parametrize("action", ["flag", "block"])
async def test_the_receipt_says_what_guards_do_not_see(tmp_path: Path, action: str) -> None:
    guards = {"secrets": {"on": ["input"], "action": action}}
    say = {"type": "text", "text": "What is this?"}
    async with serving(tmp_path / "p", served_policy("http://127.0.0.1:1/v1", guards=guards)) as gateway:
        body = {"model": "fake", "messages": [{"role": "user", "content": [say, SOUND, FILE, PICTURE, FILE]}]}
        answer = await gateway.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        path = f"/v1/requests/{answer.headers['x-request-id']}"
        unread = None
        async with asyncio.timeout(60):
            while unread is None:
                await asyncio.sleep(0.01)
                found = await gateway.http.get(path)
                if found.status_code == 200:
                    unread = found.json()["stages"].get("guard_input", {}).get("unread")
        assert unread == ["input_audio", "file", "image_url"]
