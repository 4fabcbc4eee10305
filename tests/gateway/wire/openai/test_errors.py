from __future__ import annotations

import orjson
import pytest

from gateway.errors import ContextTooLong, RateLimited
from gateway.wire.anthropic.errors import error_value as anthropic_value
from gateway.wire.openai.errors import error_body, error_value

START = "This model's maximum context length is "


def too_long(message: str, code: str | None = None) -> ContextTooLong:
    return ContextTooLong(message, status=400, type="invalid_request_error", param="messages", code=code)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "prompt is too long: 210000 tokens > 200000 maximum",
            START + "200000 tokens. However, your prompt has 210000 tokens. Shorten it.",
        ),
        ("input exceeds the context window", START + "exceeded: input exceeds the context window"),
        (START + "8192 tokens. However, you sent more.", START + "8192 tokens. However, you sent more."),
    ],
)
def test_a_prompt_too_long_is_told_in_openais_words(said: str, told: str) -> None:
    """Whatever dialect the server speaks; LiteLLM, for one, looks for just these words."""
    for code in (None, "400", "exceed_context_size_error"):
        error = error_value(too_long(said, code))["error"]
        assert (error["message"], error["code"]) == (told, "context_length_exceeded")


def test_other_errors_are_told_as_they_are() -> None:
    error = RateLimited("Rate limit reached for key 'k'.")
    assert orjson.loads(error_body(error, "req_1")) == error.body()


def test_each_dialect_has_its_own_words() -> None:
    error = too_long("prompt is too long: 11 tokens > 10 maximum")
    assert "prompt is too long: 11 tokens" in anthropic_value(error, "req_1")["error"]["message"]
