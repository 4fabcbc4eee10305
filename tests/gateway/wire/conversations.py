"""Conversations in OpenAI's shape, made up by Hypothesis, for translations that must lose nothing of them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson
from hypothesis import strategies as st

Message = dict[str, Any]

TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20
).filter(str.strip)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)
DATA = st.binary(min_size=1, max_size=12).map(lambda data: b64encode(data).decode())


def text_part(text: str) -> Message:
    return {"type": "text", "text": text}


def image(kind: str, data: str) -> Message:
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}}


def audio(kind: str, data: str) -> Message:
    return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}


def pdf(data: str) -> Message:
    return {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}"}}


SIGNATURES = st.from_regex(r"[A-Za-z0-9+/]{4,12}", fullmatch=True)
THOUGHTS = st.lists(
    st.builds(
        lambda text, signature: {"type": "thinking", "thinking": text, "signature": signature},
        TEXTS,
        SIGNATURES,
    )
    | st.builds(lambda data: {"type": "redacted_thinking", "data": data}, DATA),
    min_size=1,
    max_size=2,
)
"""Of an assistant's message, as ``thinking_blocks``."""


@st.composite
def conversations(draw: st.DrawFn, media: bool = True, sound: bool = True) -> list[Message]:
    """Instructions, questions in texts and media, answers, and tool calls with their results, by turns."""
    messages: list[Message] = []
    if words := draw(st.none() | TEXTS):
        messages.append({"role": "system", "content": words})
    parts = [st.builds(text_part, TEXTS)]
    if media:
        parts += [
            st.builds(image, st.sampled_from(["png", "jpeg", "gif", "webp"]), DATA),
            st.builds(pdf, DATA),
        ]
    if media and sound:
        parts.append(st.builds(audio, st.sampled_from(["wav", "flac"]), DATA))
    calls = 0
    for _ in range(draw(st.integers(1, 3))):
        asked = draw(st.lists(st.one_of(parts), min_size=1, max_size=3))
        messages.append({"role": "user", "content": asked})
        made = []
        for _ in range(draw(st.integers(0, 2))):
            calls += 1
            function = {"name": draw(NAMES), "arguments": orjson.dumps(draw(ARGUMENTS)).decode()}
            made.append({"id": f"call_{calls}", "type": "function", "function": function})
        said = draw(TEXTS if not made else st.none() | TEXTS)
        answer: Message = {"role": "assistant", "content": said}
        messages.append({**answer, "tool_calls": made} if made else answer)
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(TEXTS)} for call in made]
    if messages[-1]["role"] == "assistant":
        messages.append({"role": "user", "content": [text_part(draw(TEXTS))]})
    return messages


def plain(messages: list[Message]) -> list[Message]:
    """The same in one form: contents as lists of parts, arguments as values."""
    found = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            content = [text_part(content)]
        calls = [
            {
                **call,
                "function": {**call["function"], "arguments": orjson.loads(call["function"]["arguments"])},
            }
            for call in message.get("tool_calls") or ()
        ]
        found.append({**message, "content": content or [], **({"tool_calls": calls} if calls else {})})
    return found
