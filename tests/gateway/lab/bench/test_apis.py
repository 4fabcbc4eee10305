"""What each API's answers say: recorded forms, whole and in pieces."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.lab.bench.answer import Answer
from gateway.lab.bench.apis import APIS
from gateway.lab.bench.sample import Failure
from tests.fakes import DONE, answer_events, completion, delta, sse

CHAT, COMPLETIONS, MESSAGES = (APIS[name] for name in ("chat", "completions", "messages"))


def read(api: str, *parts: bytes) -> Answer:
    answer = Answer(APIS[api], keep_text=True)
    for part in parts:
        assert answer.take(part) == b""
    answer.end()
    return answer


def messages_event(kind: str, **more: Any) -> bytes:
    return b"event: " + kind.encode() + b"\n" + sse({"type": kind, **more})


MESSAGES_STREAM = (
    messages_event("message_start", message={"usage": {"input_tokens": 5, "cache_read_input_tokens": 20}}),
    messages_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    messages_event("ping"),
    messages_event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"}),
    messages_event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"}),
    messages_event("content_block_delta", index=0, delta={"type": "signature_delta", "signature": "x"}),
    messages_event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "{}"}),
    messages_event("content_block_stop", index=0),
    messages_event("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 7}),
    messages_event("message_stop"),
)


def test_chat_in_pieces() -> None:
    answer = read("chat", *answer_events("one", " two"))
    assert answer.failure is None and answer.told.finish == "stop"
    assert (answer.chunks, "".join(answer.text)) == (2, "one two")
    assert (answer.told.prompt_tokens, answer.told.output_tokens) == (7, 3)
    assert answer.first is not None and answer.last is not None and len(answer.gaps) == 1
    assert answer.last - answer.first == pytest.approx(answer.gaps[0])


def test_a_role_alone_is_no_first_token() -> None:
    answer = Answer(CHAT)
    answer.take(sse(delta("", role="assistant")))
    assert answer.first is None
    answer.take(sse(delta("x")))
    assert answer.first is not None


@pytest.mark.parametrize(
    "said",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"content": None, "tool_calls": [{"index": 0, "function": {"name": "look", "arguments": ""}}]},
    ],
)
def test_thoughts_refusals_and_tool_calls_are_tokens_too(said: dict[str, Any]) -> None:
    answer = read("chat", sse(delta(**said)), sse(delta(finish="stop")))
    assert answer.chunks == 1 and answer.failure is None


def test_completions_in_pieces_and_whole() -> None:
    one = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}
    last = {"choices": [{"index": 0, "text": "b", "finish_reason": "length"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}
    answer = read("completions", sse(one), sse(last), sse(usage), DONE)
    assert (answer.chunks, answer.told.finish, answer.told.output_tokens) == (2, "length", 2)
    whole = Answer(COMPLETIONS)
    whole.take_whole(orjson.dumps({**last, "usage": usage["usage"]}))
    assert (whole.text, whole.told.prompt_tokens, whole.told.finish) == (["b"], 4, "length")


def test_messages_in_pieces_and_whole() -> None:
    answer = read("messages", *MESSAGES_STREAM)
    assert answer.failure is None and answer.chunks == 3 and "".join(answer.text) == "hmHi{}"
    told = answer.told
    assert (told.prompt_tokens, told.output_tokens, told.finish) == (25, 7, "max_tokens")
    whole = Answer(MESSAGES)
    whole.take_whole(
        orjson.dumps(
            {
                "type": "message",
                "content": [{"type": "text", "text": "Hi"}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 3, "output_tokens": 1},
            }
        )
    )
    assert (whole.failure, whole.text, whole.told.output_tokens) == (None, ["Hi"], 1)


def test_chat_whole() -> None:
    whole = Answer(CHAT)
    whole.take_whole(orjson.dumps(completion("Hello")))
    assert (whole.failure, whole.text, whole.told.output_tokens, whole.first) == (None, ["Hello"], 3, None)


@pytest.mark.parametrize(
    ("api", "parts", "kind", "code"),
    [
        ("chat", answer_events("one", finish="stop")[:2], "broken stream", ""),
        ("messages", MESSAGES_STREAM[:6], "broken stream", ""),
        (
            "chat",
            [sse({"error": {"message": "no", "code": "overloaded", "type": "server_error"}})],
            "error event",
            "overloaded",
        ),
        (
            "messages",
            [messages_event("error", error={"type": "api_error", "message": "no"})],
            "error event",
            "api_error",
        ),
        ("chat", [b"data: {\n\n"], "malformed", ""),
        ("chat", [sse({"choices": [{}]})], "malformed", ""),
        ("chat", [sse([])], "malformed", ""),
    ],
)
def test_streams_that_go_wrong(api: str, parts: list[bytes], kind: str, code: str) -> None:
    failure = read(api, *parts).failure
    assert failure is not None and (failure.kind, failure.code) == (kind, code)


@pytest.mark.parametrize("ending", [[sse(delta(finish="stop"))], [DONE]])
def test_either_mark_ends_a_stream_in_good_order(ending: list[bytes]) -> None:
    assert read("chat", sse(delta("x")), *ending).failure is None


@pytest.mark.parametrize(
    ("status", "body", "failure"),
    [
        (429, {"error": {"code": "rate_limit_exceeded"}}, Failure("refused", 429, "rate_limit_exceeded")),
        (
            529,
            {"type": "error", "error": {"type": "overloaded_error"}},
            Failure("overloaded", 529, "overloaded_error"),
        ),
        (503, {"detail": "busy"}, Failure("overloaded", 503, "", "busy")),
        (404, {"error": "no such model"}, Failure("status", 404, "", "no such model")),
        (500, None, Failure("status", 500)),
    ],
)
def test_refusals_by_their_kind(status: int, body: Any, failure: Failure) -> None:
    answer = Answer(CHAT)
    answer.take_refusal(status, orjson.dumps(body))
    assert answer.failure == failure
    page = Answer(CHAT)
    page.take_refusal(502, b"<html>Bad gateway")
    assert page.failure == Failure("status", 502, "", "<html>Bad gateway")


def test_bodies() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    chat = CHAT.body("m", messages, 5, stream=True)
    assert chat["max_tokens"] == 5 and chat["stream_options"] == {"include_usage": True}
    assert "max_tokens" not in CHAT.body("m", messages, None, stream=False)
    assert COMPLETIONS.body("m", messages, None, stream=False) == {"model": "m", "prompt": "s\n\nu"}
    assert MESSAGES.body("m", messages, 5, stream=True) == {
        "model": "m",
        "max_tokens": 5,
        "messages": messages[1:],
        "system": "s",
        "stream": True,
    }
    assert MESSAGES.headers("k")["x-api-key"] == "k" and CHAT.headers("k") == {"authorization": "Bearer k"}
    assert CHAT.headers("") == {}
