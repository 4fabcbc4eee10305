"""The published schemas of the Responses API, held against what is rendered: OpenAI's types, and Open Responses
(https://www.openresponses.org/reference).
"""

from __future__ import annotations

from typing import Any

import orjson
from openai.types import responses as published
from pydantic import TypeAdapter

RESPONSE = frozenset(
    {
        *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model", "error"),
        *("previous_response_id", "instructions", "output", "tools", "tool_choice", "truncation", "text"),
        *("parallel_tool_calls", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "store"),
        *("temperature", "reasoning", "user", "usage", "max_output_tokens", "max_tool_calls", "background"),
        *("service_tier", "metadata", "safety_identifier", "prompt_cache_key"),
    }
)
"""The fields that Open Responses requires of a response."""
ITEMS: dict[str, frozenset[str]] = {
    "message": frozenset({"type", "id", "status", "role", "content"}),
    "function_call": frozenset({"type", "id", "call_id", "name", "arguments", "status"}),
    "custom_tool_call": frozenset({"type", "id", "call_id", "name", "input", "status"}),
    "reasoning": frozenset({"type", "id", "summary", "status"}),
}
PARTS: dict[str, frozenset[str]] = {
    "output_text": frozenset({"type", "text", "annotations", "logprobs"}),
    "refusal": frozenset({"type", "refusal"}),
}
PLACE = frozenset({"type", "sequence_number", "item_id", "output_index"})
TEXT = PLACE | {"content_index"}
SUMMARY = PLACE | {"summary_index"}
EVENTS: dict[str, frozenset[str]] = {
    **{
        f"response.{state}": frozenset({"type", "sequence_number", "response"})
        for state in ("created", "in_progress", "completed", "incomplete", "failed")
    },
    "response.output_item.added": frozenset({"type", "sequence_number", "output_index", "item"}),
    "response.output_item.done": frozenset({"type", "sequence_number", "output_index", "item"}),
    "response.content_part.added": TEXT | {"part"},
    "response.content_part.done": TEXT | {"part"},
    "response.output_text.delta": TEXT | {"delta", "logprobs"},
    "response.output_text.done": TEXT | {"text", "logprobs"},
    "response.refusal.delta": TEXT | {"delta"},
    "response.refusal.done": TEXT | {"refusal"},
    "response.function_call_arguments.delta": PLACE | {"delta"},
    "response.function_call_arguments.done": PLACE | {"arguments"},
    "response.custom_tool_call_input.delta": PLACE | {"delta"},
    "response.custom_tool_call_input.done": PLACE | {"input"},
    "response.reasoning_summary_part.added": SUMMARY | {"part"},
    "response.reasoning_summary_part.done": SUMMARY | {"part"},
    "response.reasoning_summary_text.delta": SUMMARY | {"delta"},
    "response.reasoning_summary_text.done": SUMMARY | {"text"},
    "response.output_text.annotation.added": TEXT | {"annotation_index", "annotation"},
    "error": frozenset({"type", "sequence_number", "error"}),
}
"""The events that Open Responses has, and the fields that it requires of each."""
EVENT: TypeAdapter[Any] = TypeAdapter(published.ResponseStreamEvent)


def check_response(response: dict[str, Any]) -> None:
    published.Response.model_validate(response)
    assert response.keys() >= RESPONSE
    assert isinstance(response["created_at"], int)
    assert {"format", "verbosity"} <= response["text"].keys()
    if response["text"]["format"]["type"] == "json_schema":
        assert response["text"]["format"].keys() >= {"name", "description", "schema", "strict"}
    for tool in response["tools"]:
        wanted = {"type", "name", "description", "parameters", "strict"}
        assert tool.keys() >= (wanted if tool["type"] == "function" else {"type", "name"})
    assert response["reasoning"].keys() >= {"effort", "summary"}
    if response["usage"] is not None:
        published.ResponseUsage.model_validate(response["usage"])
    for item in response["output"]:
        check_item(item)


def check_item(item: dict[str, Any]) -> None:
    assert item.keys() >= ITEMS[item["type"]]
    for part in item.get("content", ()):
        assert part.keys() >= PARTS[part["type"]]


def read_events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each sound by itself."""
    *blocks, end, rest = text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    events = []
    for block in blocks:
        name, data = block.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event.keys() >= EVENTS[event["type"]]
        EVENT.validate_python(event)
        if "response" in event:
            check_response(event["response"])
        if "item" in event:
            check_item(event["item"])
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def replay(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that the events add up to, by the rules of the specification: what a client would put together."""
    output: list[dict[str, Any]] = []
    done: set[int] = set()
    for event in events:
        kind, _, what = event["type"].removeprefix("response.").partition(".")
        place = event.get("output_index")
        if place is not None and kind != "output_item":
            assert output[place]["id"] == event["item_id"]
            assert place not in done, "nothing follows an item's end"
        match kind, what:
            case "output_item", "added":
                assert place == len(output)
                assert event["item"]["status"] == "in_progress"
                output.append({**event["item"]})
            case "output_item", "done":
                # What is sealed is known at the end.
                end = {name: value for name, value in event["item"].items() if name != "encrypted_content"}
                assert output[event["output_index"]] | {"status": end["status"]} == end
                output[event["output_index"]] = event["item"]
                done.add(event["output_index"])
            case (("content_part" | "reasoning_summary_part"), "added"):
                parts = output[event["output_index"]]["content" if kind == "content_part" else "summary"]
                assert len(parts) == event["content_index" if kind == "content_part" else "summary_index"]
                parts.append({**event["part"]})
            case (("content_part" | "reasoning_summary_part"), "done"):
                parts = output[event["output_index"]]["content" if kind == "content_part" else "summary"]
                assert parts[-1] == event["part"]
            case (("output_text" | "refusal" | "reasoning_summary_text"), ("delta" | "done")):
                name = "summary" if kind == "reasoning_summary_text" else "content"
                part = output[event["output_index"]][name][-1]
                field = "refusal" if kind == "refusal" else "text"
                if what == "delta":
                    part[field] += event["delta"]
                assert what == "delta" or part[field] == event[field]
            case "output_text", "annotation.added":
                output[event["output_index"]]["content"][-1]["annotations"].append(event["annotation"])
            case "function_call_arguments", "delta":
                output[event["output_index"]]["arguments"] += event["delta"]
            case "function_call_arguments", "done":
                assert output[event["output_index"]]["arguments"] == event["arguments"]
            case "custom_tool_call_input", "delta":
                output[event["output_index"]]["input"] += event["delta"]
            case "custom_tool_call_input", "done":
                assert output[event["output_index"]]["input"] == event["input"]
            case _:
                assert place is None
    assert done == set(range(len(output)))
    return output
