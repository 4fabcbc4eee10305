"""What a team does on its first day: the official OpenAI SDK with only ``base_url`` and the key changed."""

from __future__ import annotations

import httpx
import openai
import pytest

from tests.e2e.conftest import Stack

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0)


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tollgate-demo", messages=CAPITAL, temperature=0)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model == "tollgate-demo"


def test_streaming_chat_says_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tollgate-demo", messages=CAPITAL, temperature=0)
    stream = client.chat.completions.create(
        model="tollgate-demo",
        messages=CAPITAL,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    events = list(stream)
    text = "".join(e.choices[0].delta.content or "" for e in events if e.choices)
    assert text == whole.choices[0].message.content
    assert events[-1].choices == []
    assert events[-1].usage == whole.usage
    assert [e.choices[0].finish_reason for e in events if e.choices][-1] == "stop"
    assert len({e.id for e in events}) == 1


def test_n_choices(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tollgate-demo", messages=CAPITAL, n=3, temperature=1, seed=7
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    stream = client.chat.completions.create(
        model="tollgate-demo", messages=CAPITAL, n=3, temperature=1, seed=7, stream=True
    )
    texts = ["", "", ""]
    for event in stream:
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in answer.choices]


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tollgate-demo", prompt="Once upon a time", max_tokens=12, temperature=0
    )
    stream = client.completions.create(
        model="tollgate-demo", prompt="Once upon a time", max_tokens=12, temperature=0, stream=True
    )
    assert answer.choices[0].text.strip()
    assert "".join(event.choices[0].text for event in stream) == answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


def test_tools_are_passed_through(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    answer = client.chat.completions.create(
        model="tollgate-demo", messages=CAPITAL, tools=[tool], temperature=0
    )  # type: ignore[list-item]
    assert answer.choices[0].finish_reason in ("stop", "tool_calls")


def test_model_listing(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"tollgate-demo", "scripted"}
    assert client.models.retrieve("tollgate-demo").id == "tollgate-demo"


@pytest.mark.parametrize(
    ("change", "error", "param"),
    [
        ({"model": "no-such"}, openai.NotFoundError, "model"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"extra_body": {"audio": {}}}, openai.BadRequestError, "audio"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, openai.BadRequestError, "messages[0].role"),
    ],
)
def test_bad_requests_name_the_field(
    client: openai.OpenAI, change: dict[str, object], error: type[openai.APIStatusError], param: str
) -> None:
    request: dict[str, object] = {"model": "tollgate-demo", "messages": CAPITAL, **change}
    with pytest.raises(error) as caught:
        client.chat.completions.create(**request)  # type: ignore[call-overload]
    assert caught.value.body is not None
    assert caught.value.body["param"] == param  # type: ignore[index]


def test_a_wrong_key(stack: Stack) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{stack.url}/v1", api_key="tg-wrong", max_retries=0).models.list()


def test_the_receipt_tells_what_happened(stack: Stack, client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="tollgate-demo", messages=CAPITAL)
    request_id = raw.headers["x-request-id"]
    assert raw.headers["x-tollgate-model"] == "tollgate-demo"
    receipt = httpx.get(
        f"{stack.url}/v1/requests/{request_id}", headers={"authorization": f"Bearer {stack.key}"}
    ).json()
    assert receipt["stages"]["route"]["candidates"] == ["bundled/demo"]
    assert [attempt["outcome"] for attempt in receipt["stages"]["fallback"]["attempts"]] == ["ok"]
    assert receipt["stages"]["trace"]["status"] == 200
    assert receipt["stages"]["meter"]["completion_tokens"] > 0


def test_fields_that_change_no_answer_void_none(client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model="tollgate-demo", messages=CAPITAL, temperature=0)
    raw = client.chat.completions.with_raw_response.create(
        model="tollgate-demo",
        messages=CAPITAL,
        temperature=0,
        max_completion_tokens=32_000,
        service_tier="flex",
        reasoning_effort="high",
        verbosity="low",
        store=True,
        metadata={"a": "b"},
        modalities=["text"],
        safety_identifier="s",
        prompt_cache_key="k",
        extra_body={"frobnicate": 1},
    )
    assert raw.parse().choices[0].message.content == plain.choices[0].message.content
    assert "frobnicate" in raw.headers["x-tollgate-ignored"]
    assert 1_900 < int(raw.headers["x-tollgate-max-tokens"]) < 2_048


def test_what_ended_an_answer_is_passed_on(client: openai.OpenAI) -> None:
    for stream in (False, True):
        answer = client.chat.completions.create(
            model="tollgate-demo", messages=CAPITAL, temperature=0, stop=["Paris"], stream=stream
        )
        choices = [event.choices[0] for event in answer if event.choices] if stream else answer.choices
        assert choices[-1].finish_reason == "stop"
        assert (choices[-1].model_extra or {})["stop_reason"] == "Paris"


def test_prompts_are_scored_as_harnesses_ask(client: openai.OpenAI) -> None:
    """As lm-evaluation-harness does: token ids, several at once, and nothing or one token to generate."""
    prompts = [[20, 30, 40, 50], [60, 70, 80]]
    for most in (0, 1):
        answer = client.completions.create(
            model="tollgate-demo",
            prompt=prompts,
            echo=True,
            logprobs=1,
            max_tokens=most,
            temperature=0,
            seed=1,
        )
        for prompt, choice in zip(prompts, answer.choices, strict=True):
            found = choice.logprobs
            assert found is not None and found.token_logprobs and found.top_logprobs
            assert len(found.token_logprobs) >= len(prompt)
            assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
            assert all(logprob <= 0 for logprob in found.token_logprobs[1:])
