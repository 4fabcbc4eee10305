"""Each parameter of sampling, asked for over a real socket, does what it says."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.engine.live import EngineServer
from tests.engine.tiny import SHAPE, make_tokenizer

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
EOS = SHAPE["eos_token_id"]
TOKENIZER = make_tokenizer()


def ask(server: EngineServer, **fields: Any) -> dict[str, Any]:
    body = {"model": "long", "prompt": "the quick", "max_tokens": 40, "temperature": 0, **fields}
    answer = server.post(TEXT, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def tokens(server: EngineServer, **fields: Any) -> list[str]:
    """The tokens of an answer, one by one, as the vocabulary has them."""
    return ask(server, logprobs=0, **fields)["choices"][0]["logprobs"]["tokens"]


def word(name: str) -> int:
    """The id of a token that is ASCII, and so its own name."""
    number = TOKENIZER.token_to_id(name)
    assert number is not None
    return number


def test_presence_and_frequency_are_penalised(server: EngineServer) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        less, plain, more = (tokens(server, **{name: value}) for value in (2, 0, -2))
        assert plain == tokens(server)
        assert len(set(less)) > len(set(more))
        assert less != plain
    # What is ahead by some thirty stays so when two are taken once, but not when they are taken every time.
    ahead = {str(word("a")): 30}
    assert tokens(server, logit_bias=ahead, presence_penalty=2) == ["a"] * 40
    assert 1 <= tokens(server, logit_bias=ahead, frequency_penalty=2).count("a") < 25


def test_repetition_is_penalised_prompt_and_all(server: EngineServer) -> None:
    bias = {str(word("a")): 60, str(word("b")): 50}
    assert tokens(server, prompt="xyz", logit_bias=bias, repetition_penalty=2, max_tokens=3)[:2] == ["a", "b"]
    assert tokens(server, prompt="a", logit_bias=bias, repetition_penalty=2, max_tokens=1) == ["b"]
    assert tokens(server, prompt="a", logit_bias=bias, presence_penalty=2, max_tokens=1) == ["a"]


def test_a_bias_forces_and_bars(server: EngineServer) -> None:
    first = tokens(server, max_tokens=1, prompt="zz")[0]
    (top,) = ask(server, max_tokens=1, prompt="zz", logprobs=2)["choices"][0]["logprobs"]["top_logprobs"]
    assert first in top
    barred = {str(token): -100 for token in range(SHAPE["vocab_size"]) if TOKENIZER.decode([token]) != "k"}
    answer = ask(server, logit_bias=barred, temperature=2, max_tokens=5)
    assert answer["choices"][0]["text"] == "kkkkk"


def test_min_p_of_1_and_top_k_of_1_leave_the_likeliest(server: EngineServer) -> None:
    greedy = ask(server)["choices"][0]["text"]
    for narrow in ({"min_p": 1.0}, {"top_k": 1}, {"top_p": 0.0}):
        assert ask(server, temperature=1.5, seed=4, **narrow)["choices"][0]["text"] == greedy
    assert ask(server, temperature=1.5, seed=4)["choices"][0]["text"] != greedy
    assert (
        ask(server, temperature=1.5, seed=4, min_p=0.0, top_k=-1)["choices"]
        == (ask(server, temperature=1.5, seed=4)["choices"])
    )


def test_min_tokens_puts_stop_strings_off(server: EngineServer) -> None:
    always = {"logit_bias": {str(word("a")): 60}, "max_tokens": 9}
    for least, text in ((0, ""), (3, "aaa"), (9, "a" * 9)):
        choice = ask(server, **always, stop=["a"], min_tokens=least)["choices"][0]
        assert choice["text"] == text
        assert choice["finish_reason"] == ("length" if least == 9 else "stop")
    assert len(tokens(server, **always, stop=["aa"], min_tokens=3)) == 3


def test_min_tokens_puts_the_end_off_and_ignore_eos_does_without(server: EngineServer) -> None:
    ending = {str(EOS): 100}
    assert ask(server, logit_bias=ending)["usage"]["completion_tokens"] == 1
    late = ask(server, logit_bias=ending, min_tokens=7)
    assert late["usage"]["completion_tokens"] == 8
    assert late["choices"][0]["finish_reason"] == "stop"
    endless = ask(server, logit_bias=ending, ignore_eos=True)
    assert endless["usage"]["completion_tokens"] == 40
    assert endless["choices"][0]["finish_reason"] == "length"
    assert endless["choices"][0]["text"] == ""
    # Never put off beyond the end of the answer itself.
    assert ask(server, logit_bias=ending, min_tokens=40)["choices"][0]["finish_reason"] == "length"


def test_stop_token_ids_end_an_answer_before_their_text(server: EngineServer) -> None:
    received = tokens(server, prompt="zz")
    stop = next(
        token for i, token in enumerate(received) if i > 3 and token.isascii() and token not in received[:i]
    )
    place = received.index(stop)
    (stop_id,) = TOKENIZER.encode(stop).ids
    for more in ({}, {"ignore_eos": True}):
        answer = ask(server, prompt="zz", stop_token_ids=[stop_id], **more)
        assert answer["choices"][0]["text"] == "".join(received[:place])
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == place + 1


def test_a_stop_string_that_the_prompt_holds_stops_nothing(server: EngineServer) -> None:
    plain = ask(server, prompt="zz stop")["choices"][0]["text"]
    assert ask(server, prompt="zz stop", stop=["stop", "zz"])["choices"][0]["text"] == plain
    begun = [HELLO[0], {"role": "assistant", "content": "zz sto"}]
    fields = {"model": "long", "messages": begun, "continue_final_message": True, "temperature": 0}
    forced = {str(word("p")): 100}
    answer = server.post(CHAT, **fields, max_tokens=3, logit_bias=forced, stop="stop").json()
    assert answer["choices"][0]["message"]["content"] == "ppp"
    answer = server.post(CHAT, **fields, max_tokens=3, logit_bias=forced, stop="pp").json()
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_seeded_answer_is_the_same_beside_others(server: EngineServer) -> None:
    wishes: dict[str, Any] = {
        "temperature": 1.2,
        "seed": 9,
        "frequency_penalty": 0.6,
        "repetition_penalty": 1.2,
        "min_p": 0.02,
        "logit_bias": {"40": 2},
    }
    alone = ask(server, **wishes)["choices"][0]["text"]
    beside = ask(server, prompt=["the quick", "another", "the quick"], **wishes)["choices"]
    assert beside[0]["text"] == beside[2]["text"] == alone != beside[1]["text"]
    first, second = (choice["text"] for choice in ask(server, n=2, **wishes)["choices"])
    assert first == alone != second
    assert ask(server, n=2, best_of=2, **wishes)["choices"][1]["text"] == second


def test_chat_takes_the_same_parameters_through_the_official_sdk(server: EngineServer) -> None:
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)
    answer = sdk.chat.completions.create(
        model="long",
        messages=HELLO,
        max_tokens=4,
        presence_penalty=2,
        frequency_penalty=-2,
        logit_bias={str(word("k")): 100},
        extra_body={"min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "top_k": 5},
    )
    assert answer.choices[0].message.content == "kkkk"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"min_tokens": 30_000}, "min_tokens"),
        ({"logit_bias": {"320": 1}}, "logit_bias"),
        ({"logit_bias": {"9999999999": 1}}, "logit_bias"),
        ({"stop_token_ids": [5, 320]}, "stop_token_ids"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_p": 2}, "min_p"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_what_cannot_be_is_refused_by_name(
    server: EngineServer, path: str, fields: dict[str, Any], param: str
) -> None:
    asked = {"messages": HELLO} if path == CHAT else {"prompt": "hi"}
    answer = server.post(path, model="long", **asked, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_top_k_beyond_all_vocabularies_is_none_at_all(server: EngineServer) -> None:
    wide = ask(server, temperature=1.0, seed=4, top_k=2**64 - 1)
    assert wide["choices"] == ask(server, temperature=1.0, seed=4)["choices"]
