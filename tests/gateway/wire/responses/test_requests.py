"""Requests of the Responses API as requests of ours."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.policy.schema.limits import RequestLimits
from gateway.types import ChatRequest
from gateway.wire.responses import ids, sealed
from gateway.wire.responses.body_to_request import read_request
from gateway.wire.responses.items import read_items, with_ids

SEAL = sealed.SummarySeal("secret")
RESPONSE = "resp_" + "0" * 24
FUNCTION: Any = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def read(**body: Any) -> ChatRequest:
    return read_request(orjson.dumps({"model": "m", "input": "Hi", **body})).chat(SEAL, "acme")


def messages(*items: Any, **body: Any) -> Any:
    return list(read(input=list(items), **body).messages or ())


def said(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"role": role, "content": [{"type": kind, "text": text} for text in texts]}


def a_call(id: str, name: str = "f") -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": name, "arguments": "{}"}


def a_result(id: str, output: Any = "1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": output}


def a_thought(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], **more}


def written(id: str, name: str = "f") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (
            [said("developer", "Be brief."), {"role": "user", "content": "Hi"}],
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        ),
        (
            [said("user", "a", "b")],
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        ),
        (
            [said("user", "?"), said("assistant", "I look."), a_call("1"), a_call("2"), a_result("1"), a_result("2")],
            [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": "I look.", "tool_calls": [written("1"), written("2")]},
                {"role": "tool", "tool_call_id": "1", "content": "1"},
                {"role": "tool", "tool_call_id": "2", "content": "1"},
            ],
        ),
        (
            [said("user", "?"), a_call("1"), said("assistant", "Wait.")],
            [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": "Wait.", "tool_calls": [written("1")]},
            ],
        ),
        (
            [said("user", "?"), said("assistant", "a"), said("assistant", "b")],
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": "a\n\nb"}],
        ),
        (
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}],
            [{"role": "assistant", "content": "", "refusal": "No."}],
        ),
        (
            [a_call("1"), a_result("1", [{"type": "input_image", "image_url": "http://x"}])],
            [
                {"role": "assistant", "content": None, "tool_calls": [written("1")]},
                {"role": "tool", "tool_call_id": "1", "content": "The result follows."},
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://x", "detail": "auto"}}],
                },
            ],
        ),
        (
            [{"role": "user", "content": [{"type": "input_file", "file_data": "data:x", "filename": "a.pdf"}]}],
            [
                {
                    "role": "user",
                    "content": [{"type": "file", "file": {"filename": "a.pdf", "file_data": "data:x"}}],
                }
            ],
        ),
    ],
)  # fmt: skip
def test_items_become_messages(items: list[Any], expected: list[Any]) -> None:
    assert messages(*items) == expected


def test_thoughts_are_sent_along_until_their_turn_is_over() -> None:
    turn = [said("user", "?"), a_thought("One."), a_thought("Two."), a_call("1"), a_result("1")]
    assert messages(*turn)[1]["reasoning_content"] == "One.\n\nTwo."
    later = messages(*turn, said("assistant", "Done."), said("user", "And?"))
    assert all("reasoning_content" not in message for message in later)


def test_signed_thoughts_are_opened_and_those_of_others_are_not() -> None:
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]
    thoughts = [
        a_thought("Hm.", encrypted_content=sealed.seal_thoughts(blocks)),
        a_thought("", encrypted_content="gAAAAABp"),
    ]
    assert messages(said("user", "?"), *thoughts, a_call("1"))[1]["thinking_blocks"] == blocks


@pytest.mark.parametrize("text", ["", "tgt1.", "tgt1.%%%", "tgt1.e30=", "tgs1.W10=", "tgs1.WzFd", 5, None])
def test_what_is_not_ours_is_not_opened(text: Any) -> None:
    assert sealed.thoughts(text) == []


@given(st.lists(st.text()), st.text())
def test_a_summary_is_sealed_and_opened(system: list[str], text: str) -> None:
    assert SEAL.open("acme", SEAL.close("acme", system, text)) == (system, text)


def test_a_summary_that_was_plain_is_still_read() -> None:
    plain = "tgs1." + urlsafe_b64encode(orjson.dumps(["Be polite.", "Ann likes tea."])).decode()
    assert SEAL.open("acme", plain) == (["Be polite."], "Ann likes tea.")


SEALED = SEAL.close("acme", ["Be polite."], "Ann likes tea.")


def test_a_sealed_summary_shows_nothing_and_is_new_each_time() -> None:
    raw = urlsafe_b64decode(SEALED.removeprefix("tgs2.") + "==")
    assert not any(word in raw for word in (b"polite", b"Ann", b"tea"))
    assert SEAL.close("acme", ["Be polite."], "Ann likes tea.") != SEALED


def refusal(text: str, tenant: str = "acme", seal: sealed.SummarySeal = SEAL) -> str:
    with pytest.raises(BadRequest) as refused:
        seal.open(tenant, text)
    assert refused.value.code == "invalid_encrypted_content"
    return str(refused.value)


def test_a_summary_opens_for_its_tenant_under_its_secret_alone() -> None:
    assert "another tenant" in refusal(SEALED, "other")
    assert "session secret" in refusal(SEALED, seal=sealed.SummarySeal("another"))


@pytest.mark.parametrize("at", [5, 25, -3])
def test_a_summary_that_was_changed_is_refused(at: int) -> None:
    changed = "A" if SEALED[at] != "A" else "B"
    assert "was changed" in refusal(SEALED[:at] + changed + SEALED[at:][1:])


@pytest.mark.parametrize("end", [0, 5, 12, 30, -2])
@pytest.mark.parametrize("more", ["", "A", "=", "ä"])
def test_a_summary_that_is_not_whole_is_refused(end: int, more: str) -> None:
    assert "compaction item" in refusal(SEALED[:end] + more)


@pytest.mark.parametrize("text", ["", "gAAAA", "tgs1.", "tgs1.%%%", "tgs1.e30=", "tgs1.W10=", "tgs1.WzFd"])
def test_a_summary_of_others_is_refused(text: str) -> None:
    assert "another server" in refusal(text)


def test_parameters_have_the_names_of_a_chat() -> None:
    request = read(
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=1,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "high", "format": {"type": "json_object"}},
        user="u",
        prompt_cache_key="k",
        service_tier="flex",
        top_logprobs=2,
        store=True,
        metadata={"a": "b"},
        include=["reasoning.encrypted_content"],
        stream_options={"include_obfuscation": False},
        truncation="auto",
        frobnicate=1,
        seed=None,
    )
    assert request.params == {
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 1,
        "reasoning_effort": "low",
        "verbosity": "high",
        "response_format": {"type": "json_object"},
        "user": "u",
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "logprobs": True,
        "top_logprobs": 2,
        "frobnicate": 1,
    }
    assert request.truncates


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (None, None),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}, "auto"),
    ],
)
def test_choices_among_tools(choice: Any, sent: Any) -> None:
    assert read(tools=[FUNCTION], tool_choice=choice).params.get("tool_choice") == sent


def test_without_tools_nothing_is_said_of_them() -> None:
    assert read(tools=[], tool_choice="auto", parallel_tool_calls=True).params == {}


def test_as_many_items_as_a_chat_has_messages() -> None:
    items = [{"role": "user", "content": "Hi"}] * 4
    body = orjson.dumps({"model": "m", "input": items})
    assert read_request(body, RequestLimits(messages=4, prompts=1)).items
    with pytest.raises(BadRequest, match="maximum length 3"):
        read_request(body, RequestLimits(messages=3))
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 4}]
    with pytest.raises(BadRequest, match="maximum length 3"):
        read_request(orjson.dumps({"model": "m", "input": parts}), RequestLimits(parts=3))


def test_items_have_ids_that_name_their_response() -> None:
    items = with_ids(
        read_items([said("user", "?"), {**a_call("1"), "id": "fc_mine"}, a_result("1")]), RESPONSE
    )
    assert items[1]["id"] == "fc_mine"
    assert [ids.response_of(str(item["id"])) for item in items] == [RESPONSE, None, RESPONSE]
    assert ids.response_of(ids.item_id("reasoning", RESPONSE, 3)) == RESPONSE


@pytest.mark.parametrize(
    "text", ["resp_", "resp_x", RESPONSE + "0", RESPONSE + "\n", RESPONSE.upper(), "req_1"]
)
def test_what_is_no_id_of_ours(text: str) -> None:
    assert not ids.is_response_id(text)
    assert ids.is_response_id(RESPONSE)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        *("type", "role", "content", "text", "id", "call_id", "name", "arguments", "output", "summary"),
        *("image_url", "refusal", "encrypted_content", "detail", "file_data", "filename", "input_audio"),
        "status",
    ]
)
TYPES = st.sampled_from(
    [
        *("message", "function_call", "function_call_output", "reasoning", "compaction", "item_reference"),
        *("input_text", "output_text", "input_image", "input_file", "input_audio", "refusal"),
        *("user", "assistant"),
    ]
)
VALUES = st.recursive(
    JSON | TYPES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, VALUES, max_size=6), TYPES)
def test_any_item_is_taken_or_named(fields: dict[str, Any], kind: str) -> None:
    try:
        asked = read_request(orjson.dumps({"model": "m", "input": [{**fields, "type": kind}]}))
        if kind != "item_reference":  # which is looked up first
            orjson.dumps(asked.chat(SEAL, "acme").messages)
    except BadRequest as error:
        assert error.param


@given(
    st.dictionaries(
        st.sampled_from(["tools", "tool_choice", "text", "reasoning", "include", "metadata"]), JSON
    )
)
def test_any_body_is_taken_or_named(body: dict[str, Any]) -> None:
    try:
        read(**body)
    except BadRequest as error:
        assert error.param


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
        ),
        (
            {
                "type": "input_file",
                "file_url": "https://example.com/a.pdf",
                "file_data": None,
                "file_id": None,
            },
            {"type": "file", "file": {"file_data": "https://example.com/a.pdf"}},
        ),
        ({"type": "input_file", "file_id": "file-1"}, {"type": "file", "file": {"file_id": "file-1"}}),
        (
            {"type": "input_image", "file_id": "file-1", "image_url": None},
            {"type": "image_url", "image_url": {"file_id": "file-1", "detail": "auto"}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        ),
    ],
)
def test_media_have_the_form_of_a_chat(part: dict[str, Any], expected: dict[str, Any]) -> None:
    text = {"type": "input_text", "text": "What is it?"}
    [message] = messages({"role": "user", "content": [text, part]})
    assert message["content"] == [{"type": "text", "text": "What is it?"}, expected]
