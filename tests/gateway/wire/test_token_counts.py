"""What servers write where a number of tokens belongs."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.types import Usage
from gateway.wire.anthropic.events_to_chunks import AnthropicChunkReader
from gateway.wire.openai.events_to_chunks import read_usage


def test_a_whole_float_is_a_number() -> None:
    assert read_usage({"prompt_tokens": 5.0, "completion_tokens": 7.0}) == Usage(5, 7)


@pytest.mark.parametrize("wrong", ["100", -5, 1.5, True, [1], 1e400])
def test_what_is_none_is_not_taken_for_nothing(wrong: Any) -> None:
    assert read_usage({"prompt_tokens": 5, "completion_tokens": wrong}) is None
    message = {"type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}
    usage = {"input_tokens": 5, "output_tokens": wrong}
    assert all(
        chunk.usage is None for chunk in AnthropicChunkReader().read_answer({**message, "usage": usage})
    )


def test_embeddings_have_no_answer() -> None:
    assert read_usage({"prompt_tokens": 5, "total_tokens": 5}) == Usage(5, 0)
