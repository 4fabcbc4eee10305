"""Forms of answers and tool calls through the gateway, asked for as OpenAI's SDK does."""

from __future__ import annotations

import json

import openai
import pytest

from tests.e2e.conftest import Stack

HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key, max_retries=0, timeout=300)


def test_a_forced_call_comes_whole_and_in_pieces(sdk: openai.OpenAI) -> None:
    asked = {
        "model": "tollgate-demo",
        "messages": HELLO,
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "seed": 5,
        "max_tokens": 200,
    }
    (choice,) = sdk.chat.completions.create(**asked).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    with sdk.chat.completions.stream(**asked) as stream:
        (streamed,) = stream.get_final_completion().choices
    assert streamed.finish_reason == "tool_calls"
    (again,) = streamed.message.tool_calls or ()
    assert (again.function.name, again.function.arguments) == ("weather", call.function.arguments)
    messages = [*HELLO, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    answer = sdk.chat.completions.create(model="tollgate-demo", messages=messages, tools=[TOOL], max_tokens=3)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_forms_reach_the_engine_and_so_do_their_refusals(sdk: openai.OpenAI) -> None:
    def say(**form: object) -> str | None:
        answer = sdk.chat.completions.create(model="tollgate-demo", messages=HELLO, max_tokens=100, **form)
        return answer.choices[0].message.content

    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    assert json.loads(say(response_format=form) or "")["city"] in ("Oslo", "Rome")
    assert say(extra_body={"guided_choice": ["yes", "no"]}) in ("yes", "no")
    assert say(extra_body={"structured_outputs": {"regex": "[ab]{3}"}}).strip("ab") == ""
    with pytest.raises(openai.BadRequestError, match="unclosed group"):
        say(extra_body={"guided_regex": "a("})
