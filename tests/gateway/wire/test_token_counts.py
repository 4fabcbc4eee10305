"""What servers write where a number of tokens belongs."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.types import Usage
from gateway.wire.anthropic.events_to_chunks import AnthropicChunkReader
from gateway.wire.bedrock.events_to_chunks import BedrockChunkReader
from gateway.wire.gemini.answers_to_chunks import GeminiChunkReader
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


ODD = ["7", 5, -1, 1.5, True, [1], [[]], ["a"], {"a": 1}, [{"modality": "AUDIO", "tokenCount": 1e300}]]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_good_answer_is_not_lost_over_odd_figures(odd: Any) -> None:
    """Nor is what they hold more than a number that JSON can have."""
    block = {"type": "text", "text": "Hi"}
    message = {"type": "message", "content": [block], "stop_reason": "end_turn"}
    candidate = {"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}
    google = {"promptTokenCount": 5, "candidatesTokenCount": 7}
    amazon = {"output": {"message": {"content": [{"text": "Hi"}]}}, "stopReason": "end_turn"}
    for native in (False, True):
        for answer in (
            AnthropicChunkReader(native=native).read_answer({**message, "usage": odd}),
            GeminiChunkReader("g", native=native).read_answer(
                {"candidates": [candidate], "usageMetadata": {**google, "promptTokensDetails": odd}}
            ),
            BedrockChunkReader().read_answer(
                {**amazon, "usage": {"inputTokens": 5, "outputTokens": 7, "cacheDetails": odd}}
            ),
        ):
            chunks = list(answer)
            assert "".join((chunk.delta or {}).get("content") or "" for chunk in chunks) == "Hi"
            orjson.dumps([chunk.usage and chunk.usage.more for chunk in chunks])
