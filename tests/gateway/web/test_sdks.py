"""The official clients, set up in ways that are not quite right, or for Azure."""

from __future__ import annotations

import logging

import anthropic
import openai
import pytest

from tests.serving import KEY, Gateway

pytestmark = pytest.mark.anyio

HI: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "//v1", "/v1/v1", "/openai/v1/"])
async def test_openais_with_any_base_url(gateway: Gateway, path: str) -> None:
    async with openai.AsyncOpenAI(api_key=KEY, base_url=gateway.url + path, max_retries=0) as client:
        answer = await client.chat.completions.create(model="fake", messages=HI)
        assert answer.choices[0].message.content == "one two three"
        assert (await client.models.retrieve("fake")).id == "fake"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
async def test_anthropics_with_any_base_url(gateway: Gateway, path: str) -> None:
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=gateway.url + path, max_retries=0) as client:
        answer = await client.messages.create(
            model="fake", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
        )
        assert answer.content[0].type == "text"
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.messages.create(
                model="no", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
            )
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "not_found_error", "in its own dialect"


@pytest.mark.parametrize("deployment", [None, "fake"])
async def test_openais_for_azure(gateway: Gateway, deployment: str | None) -> None:
    async with openai.AsyncAzureOpenAI(
        azure_endpoint=gateway.url,
        api_key=KEY,
        api_version="2024-10-21",
        azure_deployment=deployment,
        max_retries=0,
    ) as client:
        model = "fake" if deployment is None else "what-the-client-calls-it"
        answer = await client.chat.completions.create(model=model, messages=HI)
        assert answer.choices[0].message.content == "one two three"
        stream = await client.chat.completions.create(model=model, messages=HI, stream=True)
        said = [event.choices[0].delta.content or "" async for event in stream]
        assert "".join(said) == "one two three"
        assert (await client.completions.create(model=model, prompt="Hi")).choices[0].text == "one two three"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="no").chat.completions.create(model=model, messages=HI)
    async with openai.AsyncAzureOpenAI(
        azure_endpoint=gateway.url, api_key=KEY, api_version="2024-10-21", max_retries=0
    ) as client:
        with pytest.raises(openai.NotFoundError, match="The model `org/no` does not exist"):
            await client.chat.completions.create(model="org/no", messages=HI)
        assert "fake" in [model.id async for model in client.models.list()]


async def test_azures_paths_need_no_model_in_the_body(gateway: Gateway) -> None:
    response = await gateway.http.post(
        "/openai/deployments/fake/chat/completions?api-version=2024-10-21", json={"messages": HI}
    )
    assert response.status_code == 200
    assert response.headers["x-tollgate-model"] == "fake"


async def test_a_path_that_is_not_served_names_what_is(gateway: Gateway) -> None:
    async with openai.AsyncOpenAI(api_key=KEY, base_url=f"{gateway.url}/v1", max_retries=0) as client:
        with pytest.raises(
            openai.NotFoundError, match=r"Conversations API is not served.*previous_response_id"
        ):
            await client.conversations.create()
        with pytest.raises(openai.NotFoundError, match="API for fine-tuning is not served"):
            await client.fine_tuning.jobs.list()


async def test_no_log_shows_the_end_of_a_wrong_key(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    response = await gateway.http.post(
        "/v1/chat/completions", json={}, headers={"authorization": "Bearer tg-0123456789abcdefXYZ"}
    )
    assert "tg-***XYZ" in response.json()["error"]["message"]
    assert "XYZ" not in caplog.text


async def test_a_wrong_key_in_openais_words(gateway: Gateway) -> None:
    async with openai.AsyncOpenAI(
        api_key="sk-proj-0123456789abcdefghij", base_url=f"{gateway.url}/v1", max_retries=0
    ) as client:
        with pytest.raises(
            openai.AuthenticationError, match=r"Incorrect API key provided: sk-\*\*\*hij\. "
        ) as caught:
            await client.models.list()
        assert (caught.value.code, caught.value.type) == ("invalid_api_key", "invalid_request_error")
