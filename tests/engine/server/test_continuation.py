"""The demo model goes on from its own words: the rest is what it would have said anyway."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.live import EngineServer
from tests.sampling import slow

CHAT = "/v1/chat/completions"
QUESTIONS = [
    "What is the capital of France?",
    "Hello, who are you?",
    "What is 17 plus 25?",
    "Tell me a story about a fox.",
    "What colours are there in a rainbow?",
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    log = tmp_path_factory.mktemp("logs") / "engine.log"
    with EngineServer("demo", "--kv-cache-blocks", "400", log=log) as server:
        yield server


def ask(server: EngineServer, question: str, answer: str | None = None, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    body: dict[str, Any] = {
        "model": "demo",
        "messages": messages,
        "max_tokens": 120,
        "temperature": 0,
        **more,
    }
    if answer is not None:
        messages.append({"role": "assistant", "content": answer})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    response = server.post(CHAT, **body)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return {**choice, "usage": response.json()["usage"], "text": choice["message"]["content"]}


def cuts(choice: dict[str, Any]) -> list[str]:
    """The answer up to each of its tokens, where that is whole characters."""
    found, received = [], b""
    for token in choice["logprobs"]["content"]:
        with contextlib.suppress(UnicodeDecodeError):
            found.append(received.decode())
        received += bytes(token["bytes"] or [])
    assert received.decode() == choice["text"]
    return found


@pytest.mark.parametrize("question", [QUESTIONS[0], *slow(*QUESTIONS[1:])])
def test_from_every_token_on_the_answer_goes_on_as_if_never_cut(demo: EngineServer, question: str) -> None:
    whole = ask(demo, question, logprobs=True)
    assert whole["text"]
    places = cuts(whole)
    assert len(places) > 2
    for partial in places:
        rest = ask(demo, question, partial)
        assert partial + rest["text"] == whole["text"], partial
        assert rest["finish_reason"] == whole["finish_reason"]
        assert rest["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] + places.index(partial)


def test_a_seeded_answer_goes_on_with_the_same_luck(demo: EngineServer) -> None:
    """The n-th token is drawn from the seed and n, wherever the prompt ends."""
    luck = {"temperature": 1.0, "seed": 11, "max_tokens": 24}
    whole = ask(demo, QUESTIONS[3], logprobs=True, **luck)
    compared = 0
    for count, partial in enumerate(cuts(whole)):
        rest = ask(demo, QUESTIONS[3], partial, **{**luck, "max_tokens": 24 - count})
        # What was drawn need not be how the tokenizer would write it; then another text is as good.
        if rest["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] + count:
            assert partial + rest["text"] == whole["text"]
            compared += 1
    assert compared > 5


def test_white_space_at_the_end_is_part_of_the_prompt(demo: EngineServer) -> None:
    bare = ask(demo, "hi", "one two", max_tokens=1)["usage"]["prompt_tokens"]
    for end in (" ", "\n", "  \n"):
        assert ask(demo, "hi", f"one two{end}", max_tokens=1)["usage"]["prompt_tokens"] > bare


def test_a_stream_holds_only_what_is_new(demo: EngineServer) -> None:
    whole = ask(demo, QUESTIONS[0])["text"]
    partial = whole[: whole.index(" ")]
    body = {
        "model": "demo",
        "messages": [
            {"role": "user", "content": QUESTIONS[0]},
            {"role": "assistant", "content": [{"type": "text", "text": partial}]},
        ],
        "max_tokens": 120,
        "temperature": 0,
        "stream": True,
        "continue_final_message": True,
    }
    text = demo.post(CHAT, **body).text
    chunks = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    received = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert partial + received == whole


def test_a_finished_thought_may_have_nothing_to_add(demo: EngineServer) -> None:
    whole = ask(demo, QUESTIONS[0])
    rest = ask(demo, QUESTIONS[0], whole["text"])
    assert (rest["text"], rest["finish_reason"], rest["usage"]["completion_tokens"]) == ("", "stop", 1)


def test_without_a_generation_prompt_the_model_may_speak_as_anyone(demo: EngineServer) -> None:
    with_prompt = ask(demo, "hi", max_tokens=1)["usage"]["prompt_tokens"]
    without = ask(demo, "hi", max_tokens=1, add_generation_prompt=False)["usage"]["prompt_tokens"]
    assert without == with_prompt - 1


def test_combinations_that_make_no_sense_are_refused_by_name(demo: EngineServer) -> None:
    user, partial = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "he"}
    for messages, more, param in (
        ([user, partial], {"add_generation_prompt": True}, "continue_final_message"),
        ([user], {"add_generation_prompt": False}, "messages[0].role"),
        ([partial, user], {}, "messages[1].role"),
    ):
        answer = demo.post(CHAT, model="demo", messages=messages, continue_final_message=True, **more)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
