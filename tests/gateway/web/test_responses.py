"""``/v1/responses``: OpenAI's client over a real socket, before scripted servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import orjson
import pydantic
import pytest

from gateway.runtime import background_requests
from gateway.stores.response_store import KeptResponse, ResponseStore
from gateway.wire.responses.ids import request_id
from tests.fakes import (
    DONE,
    Action,
    FakeUpstream,
    answer_events,
    completion,
    delta,
    reply,
    sse,
    stream,
    usage_event,
)
from tests.redis_server import RedisServer
from tests.serving import KEY, NARROW_KEY, OTHER_KEY, Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CLOCK: Any = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}


def call(index: int, name: str | None = None, arguments: str = "", id: str | None = None) -> dict[str, Any]:
    """A piece of a tool call, as a stream has it."""
    function = {**({"name": name} if name else {}), "arguments": arguments}
    return {"index": index, **({"id": id, "type": "function"} if id else {}), "function": function}


CALLS = stream(
    sse(delta(role="assistant", content=None)),
    sse(delta(tool_calls=[call(0, "get_weather", id="call_a")])),
    sse(delta(tool_calls=[call(0, arguments='{"city":')])),
    sse(delta(tool_calls=[call(0, arguments='"Oslo"}')])),
    sse(delta(tool_calls=[call(1, "get_time", "{}", id="call_b")])),
    sse(delta(finish="tool_calls")),
    sse(usage_event()),
    DONE,
)


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with a_client(gateway) as client:
        yield client


def a_client(gateway: Gateway, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


async def events_of(client: openai.AsyncOpenAI, **asked: Any) -> list[Any]:
    return [event async for event in await client.responses.create(stream=True, **asked)]


async def until(true: Callable[[], Any]) -> None:
    """Wait for what happens beside an answer."""
    async with asyncio.timeout(300):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


# Text


async def test_a_whole_answer(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [reply(completion("Hello"))]
    response = await client.responses.create(
        model="up",
        instructions="Be brief.",
        input="Hi",
        max_output_tokens=50,
        temperature=0.5,
        metadata={"run": "7"},
    )
    assert response.output_text == "Hello"
    assert (response.status, response.model, response.object) == ("completed", "up", "response")
    assert (response.instructions, response.metadata) == ("Be brief.", {"run": "7"})
    assert (response.temperature, response.max_output_tokens) == (0.5, 50)
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 3)
    sent = upstream.requests[0].json()
    assert upstream.requests[0].path == "/v1/chat/completions"
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert {sent.get("max_tokens"), sent.get("max_completion_tokens")} == {50, None}
    assert sent["temperature"] == 0.5
    assert not {"store", "metadata", "input", "instructions"} & sent.keys(), "they are the gateway's own"


async def test_a_stream(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [stream(*answer_events("Hel", "lo"))]
    async with client.responses.stream(model="up", input="Hi") as answer:
        events = [event async for event in answer]
        final = await answer.get_final_response()
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == "Hello"
    assert final.usage is not None
    assert final.usage.total_tokens == 10


async def test_a_stream_as_it_goes_over_the_wire(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/responses", json={"model": "fake", "input": "Hi", "stream": True})
    blocks = answer.text.removesuffix("\n\n").split("\n\n")
    assert blocks.pop() == "data: [DONE]"
    for block in blocks:
        named, data = block.split("\n")
        assert named.removeprefix("event: ") == orjson.loads(data.removeprefix("data: "))["type"]


async def test_log_probabilities(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    event = delta("Hi")
    token = {"token": "Hi", "logprob": -0.1, "bytes": None, "top_logprobs": []}
    event["choices"][0]["logprobs"] = {"content": [token]}
    upstream.scripts = [stream(sse(event), sse(delta(finish="stop")), DONE)]
    asked: Any = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    events = await events_of(client, model="up", input="Hi", **asked)
    assert [e.logprobs[0].token for e in events if e.type == "response.output_text.delta"] == ["Hi"]
    assert events[-1].response.output[0].content[0].logprobs[0].bytes == []
    sent = upstream.requests[0].json()
    assert (sent["logprobs"], sent["top_logprobs"]) == (True, 2)


@pytest.mark.parametrize(
    ("reason", "why"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_an_answer_that_is_not_complete(
    upstream: FakeUpstream, client: openai.AsyncOpenAI, reason: str, why: str
) -> None:
    events = stream(sse(delta("Hel")), sse(delta(finish=reason)), DONE)
    upstream.scripts = [events, events]
    last = (await events_of(client, model="up", input="Hi"))[-1]
    whole = await client.responses.create(model="up", input="Hi")
    for response in (last.response, whole):
        assert (response.status, response.incomplete_details.reason) == ("incomplete", why)
        assert response.output[0].status == "incomplete"
    assert last.type == "response.incomplete"


async def test_a_refusal(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [stream(sse(delta(refusal="I will not.")), sse(delta(finish="stop")), DONE)]
    events = await events_of(client, model="up", input="Hi")
    assert [e.type for e in events if "refusal" in e.type] == [
        "response.refusal.delta",
        "response.refusal.done",
    ]
    assert events[-1].response.output[0].content[0].refusal == "I will not."


# Forms and reasoning


async def test_a_parsed_answer(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    class City(pydantic.BaseModel):
        name: str

    upstream.scripts = [reply(completion('{"name": "Oslo"}'))]
    response = await client.responses.parse(model="up", input="A city?", text_format=City)
    assert response.output_parsed == City(name="Oslo")
    asked = upstream.requests[0].json()["response_format"]
    assert (asked["type"], asked["json_schema"]["name"], asked["json_schema"]["strict"]) == (
        "json_schema",
        "City",
        True,
    )
    assert "schema" in asked["json_schema"]


async def test_a_json_object(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [reply(completion("{}"))]
    form: Any = {"format": {"type": "json_object"}, "verbosity": "low"}
    response = await client.responses.create(model="up", input="JSON, please", text=form)
    assert response.text is not None
    assert response.text.to_dict() == form
    sent = upstream.requests[0].json()
    assert (sent["response_format"], sent["verbosity"]) == ({"type": "json_object"}, "low")


async def test_reasoning_goes_round(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    first = stream(
        sse(delta(reasoning_content="Think")),
        sse(delta(reasoning_content=" hard.")),
        sse(delta(tool_calls=[call(0, "get_time", "{}", id="call_a")])),
        sse(delta(finish="tool_calls")),
        DONE,
    )
    upstream.scripts = [first, reply(completion("Noon."))]
    events = await events_of(
        client, model="up", input="What time is it?", tools=[CLOCK], reasoning={"effort": "low"}
    )
    said = [e.delta for e in events if e.type == "response.reasoning_summary_text.delta"]
    assert said == ["Think", " hard."]
    response = events[-1].response
    assert [item.type for item in response.output] == ["reasoning", "function_call"]
    result = {"type": "function_call_output", "call_id": "call_a", "output": "12:00"}
    history = [{"role": "user", "content": "What time is it?"}, *(item.to_dict() for item in response.output)]
    await client.responses.create(model="up", input=[*history, result], tools=[CLOCK])
    assert upstream.requests[0].json()["reasoning_effort"] == "low"
    assistant = upstream.requests[1].json()["messages"][1]
    assert assistant["reasoning_content"] == "Think hard."
    assert assistant["tool_calls"][0]["id"] == "call_a"


# Tools


async def test_calls_in_a_stream(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [CALLS]
    asked: Any = {"tool_choice": {"type": "function", "name": "get_weather"}, "parallel_tool_calls": True}
    events = await events_of(client, model="up", input="Weather?", tools=[WEATHER, CLOCK], **asked)
    assert [event.type for event in events if "function_call" in event.type] == [
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.function_call_arguments.done",
    ]
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [(item.name, item.call_id, item.arguments, item.status) for item in done] == [
        ("get_weather", "call_a", '{"city":"Oslo"}', "completed"),
        ("get_time", "call_b", "{}", "completed"),
    ]
    final = events[-1].response
    assert [item.to_dict() for item in final.output] == [item.to_dict() for item in done]
    assert [tool.strict for tool in final.tools] == [False, False]
    sent = upstream.requests[0].json()
    assert sent["tools"][0] == {
        "type": "function",
        "function": {name: WEATHER[name] for name in ("name", "description", "parameters")},
    }
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    assert sent["parallel_tool_calls"] is True


async def test_results_go_back(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [CALLS, reply(completion("Cold, at noon."))]
    asked: Any = {"model": "up", "tools": [WEATHER, CLOCK]}
    first = await client.responses.create(input="Weather?", **asked)
    results: Any = [
        {"type": "function_call_output", "call_id": "call_a", "output": "-3 °C"},
        {
            "type": "function_call_output",
            "call_id": "call_b",
            "output": [{"type": "input_text", "text": "12:00"}],
        },
    ]
    second = await client.responses.create(input=results, previous_response_id=first.id, **asked)
    assert second.output_text == "Cold, at noon."
    _, turn, *tools = upstream.requests[1].json()["messages"]
    assert [one["function"]["name"] for one in turn["tool_calls"]] == ["get_weather", "get_time"]
    assert [(one["role"], one["tool_call_id"], one["content"]) for one in tools] == [
        ("tool", "call_a", "-3 °C"),
        ("tool", "call_b", "12:00"),
    ]


async def test_only_allowed_tools_are_called(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [CALLS]
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_time"}],
    }
    events = await events_of(client, model="up", input="?", tools=[WEATHER, CLOCK], tool_choice=allowed)
    assert [item.name for item in events[-1].response.output] == ["get_time"]
    assert events[-1].response.tool_choice.to_dict() == allowed
    assert len(events[-1].response.tools) == 2
    sent = upstream.requests[0].json()
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["get_time"]
    assert sent["tool_choice"] == "required"


async def test_no_more_calls_than_the_caller_wants(
    upstream: FakeUpstream, client: openai.AsyncOpenAI
) -> None:
    upstream.scripts = [CALLS]
    response = await client.responses.create(model="up", input="?", tools=[WEATHER, CLOCK], max_tool_calls=1)
    assert [item.to_dict()["name"] for item in response.output] == ["get_weather"]
    assert response.max_tool_calls == 1


# What is kept


async def test_a_conversation_goes_on(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [reply(completion(word)) for word in ("one", "two", "three")]
    first = await client.responses.create(model="up", input="1", instructions="Count.")
    second = await client.responses.create(model="up", input="2", previous_response_id=first.id)
    third = await client.responses.create(model="up", input="3", previous_response_id=second.id)
    sent = upstream.requests[2].json()["messages"]
    assert [message["content"] for message in sent] == ["1", "one", "2", "two", "3"], "without instructions"
    assert third.previous_response_id == second.id
    items = [item async for item in client.responses.input_items.list(third.id, order="asc", limit=2)]
    assert [item.content[0].text for item in items] == ["1", "one", "2", "two", "3"]  # type: ignore[union-attr]
    assert len({item.id for item in items}) == 5
    newest = await client.responses.input_items.list(third.id, limit=1)
    assert (newest.data[0].id, newest.has_more) == (items[-1].id, True)


async def test_a_response_is_fetched_and_deleted(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model="fake", input="Hi")
    assert (await client.responses.retrieve(made.id)).to_dict() == made.to_dict()
    await client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError, match=r"Previous response with id .* not found") as caught:
        await client.responses.create(model="fake", input="Hi", previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"


async def test_a_stream_can_be_gone_on_from_at_once(client: openai.AsyncOpenAI) -> None:
    last = (await events_of(client, model="fake", input="Hi"))[-1]
    assert (await client.responses.retrieve(last.response.id)).output_text == "one two three"


async def test_what_is_not_to_be_stored_is_not(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model="fake", input="Hi", store=False)
    assert made.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


async def test_a_conversation_whose_middle_was_deleted_cannot_go_on(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model="fake", input="1")
    second = await client.responses.create(model="fake", input="2", previous_response_id=first.id)
    await client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match=first.id):
        await client.responses.create(model="fake", input="3", previous_response_id=second.id)


async def test_a_conversation_has_the_bound_of_a_body(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    """The gateway of these tests takes 100,000 bytes."""
    text = "x" * 40_000
    first = await client.responses.create(model="fake", input=text)
    second = await client.responses.create(model="fake", input=text, previous_response_id=first.id)
    third = await client.responses.create(model="fake", input=text, previous_response_id=second.id)
    with pytest.raises(openai.BadRequestError, match="100000") as caught:
        await client.responses.create(model="fake", input="Hi", previous_response_id=third.id)
    assert caught.value.code == "conversation_too_large"


async def test_other_tenants_find_nothing(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model="fake", input="Hi")
    async with a_client(gateway, OTHER_KEY) as other:
        for attempt in (
            other.responses.retrieve(made.id),
            other.responses.delete(made.id),
            other.responses.cancel(made.id),
            other.responses.input_items.list(made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await attempt
        with pytest.raises(openai.BadRequestError, match="not found"):
            await other.responses.create(model="fake", input="Hi", previous_response_id=made.id)
        reference: Any = [{"type": "item_reference", "id": made.output[0].id}]
        with pytest.raises(openai.BadRequestError, match="not found"):
            await other.responses.create(model="fake", input=reference)
    assert (await client.responses.retrieve(made.id)).id == made.id


async def test_items_by_their_ids(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [reply(completion("one")), reply(completion("two"))]
    first = await client.responses.create(model="up", input="1")
    history: Any = [
        {"role": "user", "content": "1"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "2"},
    ]
    await client.responses.create(model="up", input=history)
    assert [m["content"] for m in upstream.requests[1].json()["messages"]] == ["1", "one", "2"]


async def test_gateways_share_what_is_in_redis(
    tmp_path: Path, upstream: FakeUpstream, redis_server: RedisServer
) -> None:
    policy = a_policy(upstream.base_url, store=redis_server.url.replace("/0", "/9"))
    async with (
        serving(tmp_path / "one" / "policies", policy) as one,
        serving(tmp_path / "two" / "policies", policy) as two,
        a_client(one) as here,
        a_client(two) as there,
    ):
        made = await here.responses.create(model="fake", input="Hi")
        assert (await there.responses.retrieve(made.id)).to_dict() == made.to_dict()
        assert (await there.responses.create(model="fake", input="2", previous_response_id=made.id)).id
        upstream.scripts = [stream(sse(delta("Hel")), Action.HANG)]
        hanging = await here.responses.create(model="up", input="Hi", background=True)
        await until(lambda: upstream.requests)
        assert (await there.responses.cancel(hanging.id)).status == "cancelled"
        await until(lambda: not upstream.open)
        assert (await here.responses.retrieve(hanging.id)).status == "cancelled"


async def test_one_that_was_deleted_elsewhere_does_not_come_back(
    tmp_path: Path, upstream: FakeUpstream, redis_server: RedisServer
) -> None:
    """The gateway that makes it is not reached, and notices a while later."""
    policy = a_policy(upstream.base_url, store=redis_server.url.replace("/0", "/9"))
    async with (
        serving(tmp_path / "one" / "policies", policy) as one,
        serving(tmp_path / "two" / "policies", policy) as two,
        a_client(one) as here,
        a_client(two) as there,
    ):
        upstream.scripts = [stream(sse(delta("Hel")), Action.HANG)]
        hanging = await here.responses.create(model="up", input="Hi", background=True)
        await finished(here, hanging.id, ("queued",))
        await there.responses.delete(hanging.id)
        await until(lambda: not upstream.open)
        for _ in range(50):
            for client in (here, there):
                with pytest.raises(openai.NotFoundError):
                    await client.responses.retrieve(hanging.id)
            await asyncio.sleep(0.02)


async def test_a_store_that_is_away_costs_no_answer(
    tmp_path: Path, upstream: FakeUpstream, own_redis: RedisServer
) -> None:
    own_redis.kill()
    policy = a_policy(upstream.base_url, store=own_redis.url)
    async with serving(tmp_path / "policies", policy) as gateway, a_client(gateway) as client:
        made = await client.responses.create(model="fake", input="Hi")
        assert made.output_text == "one two three"
        assert made.to_dict()["store"] is False, "nobody is told that it was kept"
        for attempt in (
            client.responses.retrieve(made.id),
            client.responses.create(model="fake", input="Hi", previous_response_id=made.id),
            client.responses.create(model="fake", input="Hi", background=True),
        ):
            with pytest.raises(openai.APIStatusError) as caught:
                await attempt
            assert caught.value.status_code == 503


# In the background


async def finished(
    client: openai.AsyncOpenAI, name: str, unfinished: tuple[str, ...] = ("queued", "in_progress")
) -> openai.types.responses.Response:
    async with asyncio.timeout(300):
        while (response := await client.responses.retrieve(name)).status in unfinished:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return response


async def test_a_response_is_made_in_the_background(
    upstream: FakeUpstream, client: openai.AsyncOpenAI
) -> None:
    go_on = asyncio.Event()
    upstream.scripts = [stream(sse(delta("Hel")), go_on, *answer_events("lo"))]
    made = await client.responses.create(model="up", input="Hi", background=True)
    assert (made.status, made.background, made.output) == ("queued", True, [])
    await finished(client, made.id, ("queued",))
    with pytest.raises(openai.BadRequestError, match="still being made"):
        await client.responses.create(model="up", input="Hi", previous_response_id=made.id)
    go_on.set()
    response = await finished(client, made.id)
    assert (response.status, response.output_text) == ("completed", "Hello")
    assert (await client.responses.cancel(made.id)).status == "completed", "it has ended"


async def test_one_in_the_background_is_cancelled(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [stream(sse(delta("Hel")), Action.HANG)]
    made = await client.responses.create(model="up", input="Hi", background=True)
    await finished(client, made.id, ("queued",))
    cancelled = await client.responses.cancel(made.id)
    assert (cancelled.status, cancelled.output_text) == ("cancelled", "Hel")
    assert (await client.responses.retrieve(made.id)).status == "cancelled"
    await until(lambda: not upstream.open)


async def test_one_that_fails_says_so(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model="down", input="Hi", background=True)
    response = await finished(client, made.id)
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "server_error"
    assert "down" in response.error.message


@pytest.fixture
async def drained(
    upstream: FakeUpstream, tmp_path: Path, quick_reload: None
) -> AsyncIterator[tuple[Gateway, openai.AsyncOpenAI]]:
    """The model ``up`` is out of service."""
    policy = a_policy(upstream.base_url, drained=["up"])
    async with serving(tmp_path / "policies", policy) as gateway, a_client(gateway) as client:
        yield gateway, client


async def test_one_waits_while_its_model_is_out_of_service(
    upstream: FakeUpstream, drained: tuple[Gateway, openai.AsyncOpenAI]
) -> None:
    gateway, client = drained
    upstream.scripts = [stream(*answer_events("Hello"))]
    made = await client.responses.create(model="up", input="Hi", background=True)
    await asyncio.sleep(1.5)
    assert (await client.responses.retrieve(made.id)).status == "queued"
    gateway.write(a_policy(upstream.base_url))
    response = await finished(client, made.id)
    assert (response.status, response.output_text, response.created_at) == (
        "completed",
        "Hello",
        made.created_at,
    )
    receipt = (await gateway.http.get(f"/v1/requests/{request_id(made.id)}")).json()
    assert receipt["stages"]["background"]["out_of_service_ms"] >= 1000, receipt


async def test_one_that_waits_is_cancelled(drained: tuple[Gateway, openai.AsyncOpenAI]) -> None:
    _, client = drained
    made = await client.responses.create(model="up", input="Hi", background=True)
    assert (await client.responses.cancel(made.id)).status == "cancelled"


async def test_one_does_not_wait_for_ever(
    drained: tuple[Gateway, openai.AsyncOpenAI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_requests, "LONGEST_WAIT", 0.1)
    _, client = drained
    made = await client.responses.create(model="up", input="Hi", background=True)
    response = await finished(client, made.id)
    assert response.status == "failed"
    assert response.error is not None and "out of service" in response.error.message


@pytest.mark.parametrize(("models", "said"), [((), "was revoked"), (("fake",), "does not exist")])
async def test_one_that_waited_needs_a_key_that_holds(
    models: tuple[str, ...],
    said: str,
    upstream: FakeUpstream,
    drained: tuple[Gateway, openai.AsyncOpenAI],
) -> None:
    gateway, client = drained
    made = await client.responses.create(model="up", input="Hi", background=True)
    policy = a_policy(upstream.base_url)
    own = policy["keys"].pop(0)
    policy["keys"] += [{**own, "models": [*models]}] if models else []
    gateway.write(policy)
    async with asyncio.timeout(300), a_client(gateway, NARROW_KEY) as colleague:
        response = await finished(colleague, made.id)
    assert response.status == "failed"
    assert response.error is not None and said in response.error.message
    assert upstream.requests == []


async def test_only_those_in_the_background_are_cancelled(client: openai.AsyncOpenAI) -> None:
    made = await client.responses.create(model="fake", input="Hi")
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.cancel(made.id)


@pytest.mark.parametrize("more", [{"store": False}, {"stream": True}])
async def test_what_cannot_be_in_the_background(client: openai.AsyncOpenAI, more: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="background"):
        await client.responses.create(model="fake", input="Hi", background=True, **more)


# Errors


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [fields]}


def part(**fields: Any) -> dict[str, Any]:
    return item(role="user", content=[fields])


NESTED = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"model": None}, "model", "valid string"),
        ({"input": None}, "input", "Missing"),
        ({"input": []}, "input", "Missing"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, "messages", "'input'"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "instructions"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"metadata": {"a": "x" * 513}}, "metadata", "512"),
        ({"truncation": "maybe"}, "truncation", "'auto' or 'disabled'"),
        (item(role="tool", content="Hi"), "input[0].role", "user"),
        (part(type="x"), "input[0].content[0].type", "input_text"),
        (item(type="function_call", name="f"), "input[0].call_id", "missing"),
        (item(type="computer_call"), "input[0].type", "does not know"),
        (part(type="input_image", file_id="f"), "messages[0].content[0].image_url.file_id", "data URL"),
        (part(type="input_image"), "input[0].content[0].image_url", "missing"),
        (part(type="input_file", filename="a.pdf"), "input[0].content[0].file_data", "missing"),
        (part(type="input_file", file_url=["x"]), "input[0].content[0].file_url", "string"),
        (item(type="compaction", encrypted_content="gAAAA"), "input", "another server"),
        ({"tool_choice": "required"}, "tool_choice", "no 'tools'"),
        ({"tools": [NESTED]}, "tools[0].name", "beside 'type'"),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "name": "x"}},
            "tool_choice.name",
            "one of 'tools'",
        ),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
    ],
)
async def test_what_is_wrong_is_named(gateway: Gateway, more: dict[str, Any], param: str, words: str) -> None:
    answer = await gateway.http.post("/v1/responses", json={"model": "fake", "input": "Hi", **more})
    told = answer.json()["error"]
    assert (answer.status_code, told["param"]) == (400, param)
    assert words in told["message"]


async def test_a_stream_that_breaks_ends_as_failed(upstream: FakeUpstream, gateway: Gateway) -> None:
    upstream.scripts = [(*stream(sse(delta("Hel")), whole=False), Action.CLOSE)]
    answer = await gateway.http.post("/v1/responses", json={"model": "up", "input": "Hi", "stream": True})
    blocks = [block.split("data: ")[1] for block in answer.text.split("\n\n") if "data: " in block]
    *events, error, failed = [orjson.loads(data) for data in blocks if data != "[DONE]"]
    assert events[-1]["delta"] == "Hel"
    assert error["type"] == "error"
    assert error["message"] == error["error"]["message"]
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["output"][0]["status"] == "incomplete"
    kept = (await gateway.http.get(f"/v1/responses/{failed['response']['id']}")).json()
    assert (kept["status"], kept["output"][0]["content"][0]["text"]) == ("failed", "Hel")


async def test_what_fails_before_it_begins_is_an_http_error(client: openai.AsyncOpenAI) -> None:
    for streamed in (True, False):
        with pytest.raises(openai.APIStatusError) as caught:
            await client.responses.create(model="down", input="Hi", stream=streamed)
        assert caught.value.status_code == 503


READINGS: dict[str, Callable[[openai.AsyncOpenAI, str, str], Awaitable[Any]]] = {
    "response": lambda client, made, item: client.responses.retrieve(made),
    "input items": lambda client, made, item: client.responses.input_items.list(made),
    "reference": lambda client, made, item: client.responses.create(
        model="up", input=[{"type": "item_reference", "id": item}]
    ),
}


@pytest.mark.parametrize("reading", READINGS)
async def test_one_that_is_put_anew_while_it_is_read_is_found(
    tmp_path: Path,
    upstream: FakeUpstream,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    reading: str,
) -> None:
    """Its head and its content are read one after the other."""
    policy = a_policy(upstream.base_url, store=redis_server.url.replace("/0", "/9"))
    async with serving(tmp_path / "policies", policy) as gateway, a_client(gateway) as client:
        begin = asyncio.Event()
        upstream.scripts = [stream(begin, *answer_events("lo")), reply(completion("Yes"))]
        made = await client.responses.create(model="up", input="Hi there", background=True)
        (item,) = (await client.responses.input_items.list(made.id)).data
        read, changed = ResponseStore.content, False

        async def later(store: ResponseStore, tenant: str, kept: KeptResponse) -> bytes | None:
            nonlocal changed
            if not changed:
                changed = True
                begin.set()
                while (now := await store.find(tenant, kept.id)) is None or now.status != "completed":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return await read(store, tenant, kept)

        monkeypatch.setattr(ResponseStore, "content", later)
        found = await READINGS[reading](client, made.id, item.id)
    assert changed
    match reading:
        case "response":
            assert found.status == "completed"
        case "input items":
            assert [one.content[0].text for one in found.data] == ["Hi there"]
        case _:
            assert upstream.requests[-1].json()["messages"] == [{"role": "user", "content": "Hi there"}]
