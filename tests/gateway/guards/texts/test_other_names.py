"""Texts in fields that should hold none, and fields that hold what must not be changed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.guards.texts.paths import replaced
from gateway.guards.texts.request_texts import RequestTexts
from gateway.types import ChatRequest
from gateway.wire.anthropic import body_to_request as anthropic
from gateway.wire.gemini import body_to_request as gemini
from gateway.wire.openai.chat import read_request as read_chat

ADDRESS = "mallory@evil.example.com"
SIGNATURE = "EtoBCkYIBxgCKkBx/9Zq+w==" * 8
HI = {"text": "hi"}
USER = {"role": "user", "content": "hi"}


def google(*parts: dict[str, Any], **more: Any) -> ChatRequest:
    body = {"contents": [{"role": "user", "parts": [HI, *parts]}], **more}
    return gemini.read_request(orjson.dumps(body), model="m")


def claude(*blocks: dict[str, Any], **more: Any) -> ChatRequest:
    turn = {"role": "user", "content": [{"type": "text", "text": "hi"}, *blocks]}
    body = {"model": "m", "max_tokens": 9, "messages": [turn], **more}
    return anthropic.read_request(orjson.dumps(body))


def chat(*messages: dict[str, Any], **more: Any) -> ChatRequest:
    return read_chat(orjson.dumps({"model": "m", "messages": [USER, *messages], **more}))


def call(**more: Any) -> dict[str, Any]:
    one = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}, **more}
    return {"role": "assistant", "content": None, "tool_calls": [one]}


RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}
PICTURE = {"mimeType": "image/png", "data": "aGk="}
FILE = {"mimeType": "image/png", "fileUri": "https://example.com/"}
F = {"functionDeclarations": [{"name": "f"}]}
TELLING: dict[str, ChatRequest] = {
    "google id": google({"text": "a", "id": ADDRESS}),
    "google metadata": google({"text": "a", "partMetadata": {"id": ADDRESS}}),
    "google role": google({"text": "a", "partMetadata": {"role": ADDRESS}}),
    "google thought": google({"text": "a", "partMetadata": {"thought": ADDRESS}}),
    "google signature": google({"text": "a", "thoughtSignature": ADDRESS}),
    "google system": google(systemInstruction={"role": ADDRESS, "parts": [HI]}),
    "google mime type": google({"inlineData": {**PICTURE, "mimeType": ADDRESS}}),
    "google inline": google({"inlineData": {**PICTURE, "note": ADDRESS}}),
    "google file": google({"fileData": {**FILE, "note": ADDRESS}}),
    "google field": google({"text": "a", ADDRESS: 1}),
    "google field within": google({"executableCode": {"code": "x", ADDRESS: 1}}),
    "google metadata field": google({"text": "a", "partMetadata": {"a": [{ADDRESS: 1}]}}),
    "google system field": google(systemInstruction={ADDRESS: 1, "parts": [HI]}),
    "google setting": google(generationConfig={ADDRESS: 1}),
    "google parameter": google(**{ADDRESS: 1}),
    "google allowed": google(
        tools=[F], toolConfig={"functionCallingConfig": {"allowedFunctionNames": ["f", ADDRESS]}}
    ),
    "claude field": claude({"type": "text", "text": "a", ADDRESS: 1}),
    "claude id": claude({"type": "text", "text": "a", "id": ADDRESS}),
    "claude type": claude({"type": ADDRESS, "text": "a"}),
    "claude signature": claude({"type": "thinking", "thinking": "a", "signature": ADDRESS}),
    "claude cache control": claude({"type": "text", "text": "a", "cache_control": {"ttl": ADDRESS}}),
    "claude encrypted": claude({"type": "text", "text": "a", "encrypted_note": ADDRESS}),
    "claude media type": claude(
        {"type": "image", "source": {"type": "base64", "media_type": ADDRESS, "data": "aGk="}}
    ),
    "claude system": claude(system=[{"type": "text", "text": "a", "id": ADDRESS}]),
    "chat call": chat(call(note=ADDRESS), RESULT),
    "chat function": chat(call(function={"name": "f", "arguments": "{}", "note": ADDRESS}), RESULT),
    "chat signature": chat(call(extra_content={"google": {"thought_signature": ADDRESS}}), RESULT),
    "chat choice": chat(tool_choice={"type": "function", "function": {"name": ADDRESS}}),
}


@pytest.mark.parametrize("name", TELLING)
def test_a_text_is_read_whatever_its_field_is_called(name: str) -> None:
    assert any(ADDRESS in one.text for one in RequestTexts.of(TELLING[name]).texts)


SIGNED = {"google": {"thought_signature": SIGNATURE}}
OPAQUE = [
    google({"text": "a", "thoughtSignature": SIGNATURE}),
    google({"inlineData": {**PICTURE, "mimeType": "audio/L16;codec=pcm;rate=24000"}}),
    claude({"type": "thinking", "thinking": "a", "signature": SIGNATURE}),
    claude({"type": "redacted_thinking", "data": SIGNATURE}),
    claude({"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}),
    claude(
        {"type": "web_search_result", "url": "https://example.com/@50,7?q=%20", "page_age": "May 1, 2025"}
    ),
    chat(call(extra_content=SIGNED), RESULT),
]


@pytest.mark.parametrize("request_", OPAQUE)
def test_what_must_not_change_is_not_read(request_: ChatRequest) -> None:
    texts = {one.text for one in RequestTexts.of(request_).texts}
    assert texts <= {"hi", "a", "x", "c1", "f", ""}


@pytest.mark.parametrize(
    "request_",
    [google(generationConfig={"stopSequences": [ADDRESS]}), claude(stop_sequences=[ADDRESS])],
    ids=["google", "claude"],
)
def test_what_stops_an_answer_is_replaced_for_other_models_too(request_: ChatRequest) -> None:
    path = next(one.path for one in RequestTexts.of(request_).texts if one.text == ADDRESS)
    fresh = replaced(request_, {path: "<EMAIL_ADDRESS_1>"})
    assert fresh.params["stop"] == ["<EMAIL_ADDRESS_1>"]
    assert fresh.native is not None
    assert ADDRESS not in str(fresh.native.body)
