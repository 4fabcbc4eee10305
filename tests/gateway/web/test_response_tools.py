"""Tools of the Responses API that chat completions have no form of: namespaces, custom tools, and those of a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.fakes import DONE, FakeUpstream, completion, delta, reply, sse, stream, usage_event
from tests.response_events import read_events, replay
from tests.serving import KEY, Gateway

pytestmark = pytest.mark.anyio

SPAWN: Any = {
    "type": "function",
    "name": "spawn",
    "description": "Starts one.",
    "parameters": {"type": "object", "properties": {"task": {"type": "string"}}},
}
PATCH: Any = {
    "type": "custom",
    "name": "patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*"'},
}
AGENTS: Any = {"type": "namespace", "name": "agents", "description": "Agents.", "tools": [SPAWN, PATCH]}
SEARCH: Any = {"type": "web_search", "external_web_access": True}
HOSTED = [
    *("web_search", "web_search_preview_2025_03_11", "file_search", "computer_use_preview", "mcp"),
    *("code_interpreter", "image_generation", "local_shell", "shell", "apply_patch", "tool_search"),
]


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def calling(name: str, *arguments: str) -> tuple[Any, ...]:
    """A streamed call, its arguments in pieces."""
    opened = {"index": 0, "id": "call_a", "type": "function", "function": {"name": name, "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": piece}} for piece in arguments]
    return stream(
        *(sse(delta(tool_calls=[piece])) for piece in (opened, *pieces)),
        *(sse(delta(finish="tool_calls")), sse(usage_event()), DONE),
    )


async def events_of(gateway: Gateway, **asked: Any) -> list[dict[str, Any]]:
    body = {"model": "up", "input": "?", "stream": True, **asked}
    return read_events((await gateway.http.post("/v1/responses", json=body)).text)


def names(upstream: FakeUpstream, request: int = 0) -> list[str]:
    return [tool["function"]["name"] for tool in upstream.requests[request].json().get("tools", ())]


async def test_a_namespace_is_functions_to_the_model(upstream: FakeUpstream, gateway: Gateway) -> None:
    upstream.scripts = [calling("agents__spawn", '{"task":', '"count"}')]
    events = await events_of(gateway, tools=[SPAWN, AGENTS])
    assert names(upstream) == ["spawn", "agents__spawn", "agents__patch"]
    _, spawn, _ = (tool["function"] for tool in upstream.requests[0].json()["tools"])
    assert spawn["description"] == "Agents.\n\nStarts one.", "the group is described once"
    assert spawn["parameters"] == SPAWN["parameters"]
    [item] = replay(events)
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "agents", "spawn")
    assert item["arguments"] == '{"task":"count"}'
    assert events[-1]["response"]["tools"][1] == AGENTS


async def test_the_plain_function_of_the_same_name_is_another(
    upstream: FakeUpstream, gateway: Gateway
) -> None:
    upstream.scripts = [calling("spawn", "{}")]
    [item] = replay(await events_of(gateway, tools=[SPAWN, AGENTS]))
    assert (item["name"], "namespace" in item) == ("spawn", False)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_a_custom_tool_is_a_function_of_one_text(
    upstream: FakeUpstream, gateway: Gateway, size: int
) -> None:
    text = '*** Begin "Patch"\n+\té 😀\\'
    arguments = '{"input": "*** Begin \\"Patch\\"\\n+\\t\\u00e9 \\ud83d\\ude00\\\\"}'
    upstream.scripts = [calling("patch", *(arguments[i : i + size] for i in range(0, len(arguments), size)))]
    events = await events_of(gateway, tools=[PATCH])
    function = upstream.requests[0].json()["tools"][0]["function"]
    assert (function["name"], function["description"]) == ("patch", "Changes files.")
    assert function["parameters"]["required"] == ["input"]
    assert 'lark grammar.\nstart: "*"' in function["parameters"]["properties"]["input"]["description"]
    said = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(said) == text
    assert len(said) > 1 or size > 7, "it comes as it is written"
    [done] = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert done["input"] == text
    [item] = replay(events)
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", text)
    assert item["id"].startswith("ctc_")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("ls -l", "ls -l"),
        ('"ls -l"', "ls -l"),
        ('{"command": "ls"}', '{"command": "ls"}'),
        ('{"input": ["ls"]}', '{"input": ["ls"]}'),
        ('{"input": "ls', "ls"),
        ('{"input": "\\ud83d"}', "�"),
        ("", ""),
    ],
)
async def test_a_custom_tool_gets_what_the_model_wrote(
    upstream: FakeUpstream, gateway: Gateway, arguments: str, text: str
) -> None:
    """A model that writes no JSON, or not what was asked for, or is cut."""
    upstream.scripts = [calling("patch", arguments)]
    events = await events_of(gateway, tools=[PATCH])
    [item] = replay(events)
    assert item["input"] == text


async def test_calls_and_results_go_back(upstream: FakeUpstream, client: openai.AsyncOpenAI) -> None:
    upstream.scripts = [
        calling("agents__patch", '{"input": "+ \\"a\\""}'),
        reply(completion("Done.")),
        reply(completion("Done again.")),
    ]
    asked: Any = {"model": "up", "tools": [AGENTS]}
    events = [event async for event in await client.responses.create(input="?", stream=True, **asked)]
    response = events[-1].response
    [item] = (one.to_dict() for one in response.output)
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "agents", "patch")
    result: Any = {"type": "custom_tool_call_output", "call_id": "call_a", "output": "Success."}
    # Sent by the caller, as agents do, and by reference.
    await client.responses.create(input=[{"role": "user", "content": "?"}, item, result], **asked)
    last = await client.responses.create(input=[result], previous_response_id=response.id, **asked)
    for request in upstream.requests[1:]:
        _, turn, answer = request.json()["messages"]
        [call] = turn["tool_calls"]
        assert (call["id"], call["function"]["name"]) == ("call_a", "agents__patch")
        assert call["function"]["arguments"] == '{"input":"+ \\"a\\""}'
        assert answer == {"role": "tool", "tool_call_id": "call_a", "content": "Success."}
    listed = [one.type async for one in client.responses.input_items.list(last.id, order="asc")]
    assert listed == ["message", "custom_tool_call", "custom_tool_call_output"]


async def test_a_name_is_never_too_long_and_always_the_same(upstream: FakeUpstream, gateway: Gateway) -> None:
    long = {
        "type": "namespace",
        "name": "n" * 60,
        "description": "",
        "tools": [SPAWN, {**SPAWN, "name": "other"}],
    }
    upstream.scripts = [reply(completion())]
    call = {
        "type": "function_call",
        "namespace": "n" * 60,
        "name": "spawn",
        "call_id": "c",
        "arguments": "{}",
    }
    result = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    await gateway.http.post("/v1/responses", json={"model": "up", "input": [call, result], "tools": [long]})
    offered = names(upstream)
    assert len(set(offered)) == 2 and all(len(name) == 64 for name in offered)
    [turn] = [one for one in upstream.requests[0].json()["messages"] if one["role"] == "assistant"]
    assert turn["tool_calls"][0]["function"]["name"] == offered[0]


async def test_two_tools_that_a_model_cannot_tell_apart(gateway: Gateway) -> None:
    plain = {**SPAWN, "name": "agents__spawn"}
    answer = await gateway.http.post(
        "/v1/responses", json={"model": "up", "input": "?", "tools": [plain, AGENTS]}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools[1].tools[0].name"


async def test_a_namespaces_tools_count(tmp_path: Any, gateway: Gateway) -> None:
    crowd = {**AGENTS, "tools": [{"type": "function", "name": f"f{i}"} for i in range(1024)]}
    answer = await gateway.http.post("/v1/responses", json={"model": "up", "input": "?", "tools": [crowd]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "array_above_max_length")


# Those that a server runs


@pytest.mark.parametrize("kind", HOSTED)
@pytest.mark.parametrize("choice", [None, "auto", "none"])
async def test_what_nobody_here_runs_is_left_out(
    upstream: FakeUpstream, gateway: Gateway, kind: str, choice: str | None
) -> None:
    asked = {"model": "up", "input": "?", "tools": [{"type": kind}, SPAWN], "tool_choice": choice}
    upstream.scripts = [reply(completion())]
    answer = await gateway.http.post("/v1/responses", json=asked)
    assert answer.status_code == 200
    assert names(upstream) == ["spawn"]
    told = answer.headers["x-tollgate-tools-left-out"]
    assert kind.startswith(told)
    receipt = await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}")
    assert receipt.json()["stages"]["tools"] == {"left_out": [told]}
    assert [tool["type"] for tool in answer.json()["tools"]] == ["function"]


async def test_nothing_is_told_where_nothing_is_left_out(upstream: FakeUpstream, gateway: Gateway) -> None:
    upstream.scripts = [reply(completion())]
    answer = await gateway.http.post("/v1/responses", json={"model": "up", "input": "?", "tools": [AGENTS]})
    assert "x-tollgate-tools-left-out" not in answer.headers


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([SEARCH, SPAWN], {"type": "web_search"}),
        ([SEARCH], "required"),
        ([SEARCH], {"type": "web_search"}),
        ([SEARCH, SPAWN], {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}),
        ([{"type": "something_new"}, SPAWN], "auto"),
        ([{**AGENTS, "tools": [SEARCH]}], "auto"),
    ],
)
async def test_what_is_wanted_and_cannot_be_had(gateway: Gateway, tools: Any, choice: Any) -> None:
    answer = await gateway.http.post(
        "/v1/responses", json={"model": "up", "input": "?", "tools": tools, "tool_choice": choice}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_tool")


@pytest.mark.parametrize(
    ("choice", "sent", "offered"),
    [
        (
            {"type": "function", "name": "spawn", "namespace": "agents"},
            {"type": "function", "function": {"name": "agents__spawn"}},
            ["agents__spawn", "agents__patch", "patch"],
        ),
        (
            {"type": "custom", "name": "patch"},
            {"type": "function", "function": {"name": "patch"}},
            ["agents__spawn", "agents__patch", "patch"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "agents"}]},
            "required",
            ["agents__spawn", "agents__patch"],
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH, {"type": "custom", "name": "patch"}]},
            "auto",
            ["patch"],
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}, None, []),
    ],
)
async def test_a_choice_among_them(
    upstream: FakeUpstream, gateway: Gateway, choice: Any, sent: Any, offered: list[str]
) -> None:
    upstream.scripts = [reply(completion())]
    asked = {"model": "up", "input": "?", "tools": [AGENTS, PATCH, SEARCH], "tool_choice": choice}
    assert (await gateway.http.post("/v1/responses", json=asked)).status_code == 200
    assert upstream.requests[0].json().get("tool_choice") == sent
    assert names(upstream) == offered
