"""No prompt comes to more tokens than its bound, with tokenizers and templates that are at hand."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.image_tokens import MOST as IMAGE
from gateway.metering.media_tokens import FILE, MediaBounds
from gateway.quota.prompt_bound import TOOLS, most_tokens
from gateway.types import ChatRequest, Native


def bound(content: Any = "Hi", image: int = IMAGE, **params: Any) -> int:
    request = ChatRequest("m", ({"role": "user", "content": content},), params=params)
    return most_tokens(request, MediaBounds(image))


@given(st.text(), st.text())
def test_a_text_has_no_more_tokens_than_bytes(one: str, other: str) -> None:
    messages = ({"role": "system", "content": one}, {"role": "user", "content": other})
    rendered = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    # Each of the template's marks is one token; whatever the merges, a token has a byte.
    rendered = rendered.replace("<|im_start|>", "\0").replace("<|im_end|>", "\0") + "\0assistant\n"
    assert most_tokens(ChatRequest("m", messages)) >= len(rendered.encode("utf-8", "surrogatepass"))


@given(
    st.recursive(
        st.text() | st.integers() | st.none() | st.booleans(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_tools_are_written_out_in_any_of_the_usual_ways(schema: Any) -> None:
    import json

    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    try:
        orjson.dumps(tools)
    except orjson.JSONEncodeError:
        return  # no request of ours holds that
    compact = json.dumps(tools, separators=(",", ":"))
    # Where it is indented, a break with the spaces after it is a token; compact, each token has a character.
    breaks = json.dumps(tools, indent=1).count("\n") * 2
    assert bound(tools=tools) - bound() >= len(compact.encode()) + min(breaks, len(compact))


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [([1, 2, 3], 3), ([[1, 2], [3, 4, 5]], 5), ("añb", 4), (["a", "bc"], 3), ([], 0)],
)
def test_raw_prompts(prompt: Any, tokens: int) -> None:
    assert tokens <= most_tokens(ChatRequest("m", prompt=prompt)) <= tokens + 6


def test_media_have_bounds_of_their_own() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "x" * 10**6}}
    assert IMAGE <= bound([picture]) < IMAGE + 200
    assert 5_000 <= bound([picture], 5_000) < 5_200
    sound = {"type": "input_audio", "input_audio": {"data": "x" * 32_000, "format": "mp3"}}
    # Of no known length: as if it were the thinnest sound that there is, of 8 bytes a second.
    assert 32_000 * 3 // 4 // 8 * 40 <= bound([sound]) < 32_000 * 3 // 4 // 8 * 40 + 200
    assert bound([{"type": "file", "file": {"file_id": "f"}}]) >= FILE
    assert bound([{"type": "file", "file": {"file_data": "x" * 400_000}}]) >= 300_000
    nested = {"type": "tool_result", "content": [{"type": "image", "source": {"data": "x" * 10**6}}]}
    assert IMAGE <= bound([nested]) < IMAGE + 300
    assert bound([{"type": {"odd": 1}, "text": "x" * 1000}]) >= 1000


def test_what_a_caller_says_in_another_dialect_counts_by_his_own_words() -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "system": "x" * 5000,
        "tools": [{"name": "y" * 900}],
    }
    native = Native("anthropic", body, lambda _: ChatRequest("m"))
    request = ChatRequest("m", ({"role": "user", "content": "Hi"},), native=native)
    assert most_tokens(request) >= 5000 + 900 + TOOLS


def test_other_parameters_may_be_written_into_the_prompt() -> None:
    assert bound(documents=[{"text": "x" * 5000}]) >= 5000
    assert bound(chat_template_kwargs={"more": "x" * 5000}) >= 5000
    prompts = ["a", "b"]
    assert most_tokens(ChatRequest("m", prompt=prompts, params={"suffix": "x" * 5000})) >= 2 * 5000
    assert bound(stop=["x" * 50], user="x" * 50, temperature=1, metadata={"a": "b" * 50}) == bound()


def test_what_stands_beside_a_medium_counts() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "x"}
    assert bound([{"type": "document", "source": source, "context": "y" * 300_000}]) >= 300_000
    other = {"type": "document", "a": {"data": ""}, "source": {**source, "data": "y" * 300_000}}
    assert bound([other]) >= 300_000
    assert bound([{"type": "image", "source": {"data": "x"}, "text": "y" * 300_000}]) >= 300_000


@pytest.mark.parametrize("where", ["part", "content"])
def test_so_does_what_stands_beside_one_of_googles(where: str) -> None:
    medium = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    hidden = {"text": "y" * 300_000, "thought": True}
    content = (
        {"role": "model", "parts": [{**hidden, **medium}]}
        if where == "part"
        else {"role": "model", "parts": [hidden], **medium}
    )
    native = Native("gemini", {"contents": [content]}, lambda _: ChatRequest("m"))
    assert most_tokens(ChatRequest("m", ({"role": "user", "content": "Hi"},), native=native)) >= 300_000


def test_a_packed_file_may_have_many_pages() -> None:
    pages = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x"}
    assert bound([{"type": "document", "source": pages}], 5_000) >= FILE
    assert bound([{"type": "document", "source": {**pages, "type": "text"}}], 5_000) < 10_000
