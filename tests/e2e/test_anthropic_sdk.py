"""What a team with Anthropic's SDK does on its first day: only ``base_url`` and the key changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.e2e.conftest import Stack

CAPITAL: Any = {
    "model": "tollgate-demo",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=stack.url, api_key=stack.key, max_retries=0) as client:
        yield client


def text(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_message(client: anthropic.Anthropic) -> None:
    # Greedy: sampled at random, one answer in hundreds names another town.
    message = client.messages.create(**CAPITAL, extra_body={"temperature": 0})
    assert "Paris" in text(message)
    assert message.stop_reason == "end_turn"
    assert message.model == "tollgate-demo"
    # The engine may have cached the prompt, all but its last block, for another test.
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 5
    assert message.usage.output_tokens > 0


def test_a_stream_says_the_same(client: anthropic.Anthropic) -> None:
    # Greedy, so that both say the same; the SDK has no argument for it.
    greedy: Any = {"extra_body": {"temperature": 0}}
    whole = client.messages.create(**CAPITAL, **greedy)
    with client.messages.stream(**CAPITAL, **greedy) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1
    assert "".join(pieces) == text(final) == text(whole)
    assert (final.stop_reason, final.usage.output_tokens) == (
        whole.stop_reason,
        whole.usage.output_tokens,
    )


def test_max_tokens(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**{**CAPITAL, "max_tokens": 2})
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 2)


@pytest.mark.parametrize("stream", [False, True])
def test_the_cap_that_clients_send_by_default_is_clipped_to_a_small_context(
    client: anthropic.Anthropic, stack: Stack, stream: bool
) -> None:
    # With a timeout of the caller's own: else the SDK refuses to ask for so much without a stream.
    large: Any = {**CAPITAL, "max_tokens": 32_000, "extra_body": {"temperature": 0}, "timeout": 60}
    create = client.messages.with_raw_response.create
    response = create(**large, stream=True) if stream else create(**large)
    assert 1_900 < int(response.headers["x-tollgate-max-tokens"]) < 2_048
    if stream:
        assert list(response.parse())[-1].type == "message_stop"
    else:
        assert "Paris" in text(response.parse())
    receipt = httpx.get(
        f"{stack.url}/v1/requests/{response.headers['x-request-id']}",
        headers={"authorization": f"Bearer {stack.key}"},
    ).json()
    assert str(receipt["stages"]["backend"]["max_tokens"]) == response.headers["x-tollgate-max-tokens"]
    assert receipt["stages"]["backend"]["max_tokens_asked"] == 32_000


def test_a_prefilled_answer_is_continued(client: anthropic.Anthropic) -> None:
    begun = {"role": "assistant", "content": "The capital of France is"}
    message = client.messages.create(
        **{**CAPITAL, "messages": [*CAPITAL["messages"], begun]}, extra_body={"temperature": 0}
    )
    assert text(message).lstrip().startswith("Paris")


def test_counting(client: anthropic.Anthropic) -> None:
    count = client.messages.count_tokens(model="tollgate-demo", messages=CAPITAL["messages"])
    assert 3 < count.input_tokens < 100


def test_errors(client: anthropic.Anthropic, stack: Stack) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**CAPITAL, "model": "no-such-model"})
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**{**CAPITAL, "max_tokens": 0})
    with (
        anthropic.Anthropic(base_url=stack.url, api_key="tg-wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(**CAPITAL)
