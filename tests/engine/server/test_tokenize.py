"""``/tokenize`` and ``/detokenize``, as vLLM has them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.live import EngineServer

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def tokenized(server: EngineServer, **body: Any) -> dict[str, Any]:
    return dict(server.post("/tokenize", model="long", **body).json())


@pytest.mark.parametrize("more", [{}, {"tools": [TOOL]}, {"add_generation_prompt": False}])
def test_a_conversation_has_the_tokens_that_its_answer_is_charged_for(
    server: EngineServer, more: dict[str, Any]
) -> None:
    counted = tokenized(server, messages=HELLO, **more)
    answer = server.post("/v1/chat/completions", model="long", messages=HELLO, max_tokens=1, **more).json()
    assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
    assert counted["max_model_len"] > counted["count"]


def test_a_text_goes_round(server: EngineServer) -> None:
    found = tokenized(server, prompt="hello world", add_special_tokens=False, return_token_strs=True)
    assert len(found["token_strs"]) == found["count"] == len(found["tokens"])
    back = server.post("/detokenize", model="long", tokens=found["tokens"]).json()
    assert back == {"prompt": "hello world"}


def test_a_text_beyond_the_context_is_counted_too(server: EngineServer) -> None:
    found = tokenized(server, prompt="hello " * 7_000, count_only=True)
    assert found["tokens"] == []
    assert found["count"] > found["max_model_len"]


def test_no_text_has_no_tokens_but_special_ones(server: EngineServer) -> None:
    assert tokenized(server, prompt="", add_special_tokens=False)["count"] == 0


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"model": "long"}, "prompt"),
        ("/tokenize", {"model": "long", "prompt": "a", "messages": HELLO}, "prompt"),
        ("/tokenize", {"model": "long", "messages": [{"role": "wizard", "content": ""}]}, "messages[0].role"),
        ("/tokenize", {"model": "no", "prompt": "a"}, "model"),
        ("/detokenize", {"model": "long", "tokens": [10**9]}, "tokens"),
        ("/detokenize", {"model": "long", "tokens": [-1]}, "tokens"),
        ("/detokenize", {"model": "long"}, "tokens"),
    ],
)
def test_what_is_wrong_is_named(server: EngineServer, path: str, body: dict[str, Any], param: str) -> None:
    answer = server.post(path, **body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param
