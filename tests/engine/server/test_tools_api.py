"""Tool calls over real sockets: forced ones by a random model, free ones by a grammar that plays a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engine.live import EngineServer
from tests.engine.server.test_tools import HERMES_TEMPLATE, LLAMA_TEMPLATE, MISTRAL_TEMPLATE
from tests.engine.tiny import SHAPE, write_model
from tests.sampling import slow

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "…", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
BAD = {"type": "function", "function": {"name": "f", "parameters": {"type": "strin"}}}


def write_tool_model(folder: Path, template: str, *marks: str) -> Path:
    """The tiny model with ``marks`` as special tokens, which a detokenizer leaves out."""
    write_model(folder, {**SHAPE, "vocab_size": 352, "max_position_embeddings": 2000}, template=template)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"] += [
        {"id": 320 + i, "content": mark, "special": True, **flags} for i, mark in enumerate(marks)
    ]
    path.write_text(json.dumps(tokenizer))
    return folder


FAMILIES = {
    "hermes": (HERMES_TEMPLATE, "<tool_call>", "</tool_call>"),
    "plain": (HERMES_TEMPLATE,),
    "llama": (LLAMA_TEMPLATE, "<|python_tag|>"),
    "mistral": (MISTRAL_TEMPLATE, "[TOOL_CALLS]"),
}


@pytest.fixture(scope="module", params=["hermes", *slow("plain", "llama"), "mistral"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def server(family: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    folder = tmp_path_factory.mktemp(family)
    model = write_tool_model(folder / "tiny", *FAMILIES[family])
    options = ("--kv-cache-blocks", "400", "--max-string-length", "40")
    with EngineServer(model, *options, log=folder / "log") as server:
        yield server


@pytest.fixture(scope="module")
def sdk(server: EngineServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HELLO, "tools": TOOLS, "max_tokens": 400, "seed": 7, **more}


def check_call(name: str, arguments: str) -> None:
    found = json.loads(arguments)
    if name == "weather":
        assert set(found) == {"city", "days"}
        assert found["city"] in ("Oslo", "Rome")
        assert 0 <= found["days"] <= 99
    else:
        assert (name, found) == ("now", {})


def test_a_required_call_is_made_and_fits_its_schema(sdk: openai.OpenAI, family: str) -> None:
    for seed in range(4):
        answer = sdk.chat.completions.create(
            **body(tool_choice="required", parallel_tool_calls=False, seed=seed)
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls or ()
        assert call.type == "function"
        assert len(call.id) == 9 if family == "mistral" else call.id.startswith("call_")
        check_call(call.function.name, call.function.arguments)


def test_a_named_tool_is_the_one_called(sdk: openai.OpenAI) -> None:
    for name in ("weather", "now"):
        choice = {"type": "function", "function": {"name": name}}
        (found,) = sdk.chat.completions.create(**body(tool_choice=choice)).choices
        assert [call.function.name for call in found.message.tool_calls or ()] == [name]
        assert found.finish_reason == "tool_calls"


def test_a_forced_call_ends_though_its_model_babbles(server: EngineServer) -> None:
    """The model is random: without bounds its strings would hardly end."""
    parameters = {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "own": {"type": "string", "maxLength": 60, "minLength": 50},
        },
        "required": ["text", "own"],
    }
    tool = {"type": "function", "function": {"name": "say", "parameters": parameters}}
    asked = body(tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=1500)
    for seed in range(3):
        (choice,) = server.post(CHAT, **asked | {"seed": seed}).json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        found = json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
        assert list(found) == ["text", "own"], "no further properties are made up"
        assert len(found["text"]) <= 40
        assert 50 <= len(found["own"]) <= 60


UNKNOWN = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True}},
}
UNUSED = {"type": "function", "function": {"name": "f", "parameters": UNKNOWN}}


@pytest.mark.parametrize("choice", ["auto", "none", None])
@pytest.mark.parametrize("form", [None, {"type": "json_object"}])
def test_tools_that_need_not_be_called_are_no_reason_to_refuse(
    server: EngineServer, choice: str | None, form: dict[str, str] | None
) -> None:
    asked = body(tools=[UNUSED, *TOOLS], tool_choice=choice, response_format=form, max_tokens=5)
    answer = server.post(CHAT, **asked)
    assert answer.status_code == 200, answer.text


def test_a_forced_call_that_could_be_wrong_is_refused_by_name(server: EngineServer) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        error = server.post(CHAT, **body(tools=[*TOOLS, UNUSED], tool_choice=choice)).json()["error"]
        assert error["param"] == "tools[2].function.parameters"
        assert "uniqueItems" in error["message"]
    # Another tool's parameters are nobody's business.
    other = {"type": "function", "function": {"name": "now"}}
    assert server.post(CHAT, **body(tools=[UNUSED, *TOOLS], tool_choice=other)).status_code == 200


STRICT = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]


def test_a_strict_call_fits_its_schema_without_being_forced(sdk: openai.OpenAI, family: str) -> None:
    if family == "plain":
        pytest.skip("no token of its own that would begin a call")
    begun = body(tools=STRICT, logit_bias={"320": 100}, parallel_tool_calls=False)
    for seed in range(4):
        (choice,) = sdk.chat.completions.create(**begun | {"seed": seed}).choices
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or ()
        check_call(call.function.name, call.function.arguments)


def test_a_strict_tool_leaves_text_as_it_is(sdk: openai.OpenAI) -> None:
    asked = body(max_tokens=40, temperature=0)
    free, strict = (sdk.chat.completions.create(**asked | {"tools": tools}) for tools in (TOOLS, STRICT))
    assert strict.choices[0].message == free.choices[0].message


@pytest.mark.parametrize("form", [None, {"type": "json_object"}])
def test_a_strict_tool_that_could_be_called_wrongly_is_refused_by_name(
    server: EngineServer, form: dict[str, str] | None
) -> None:
    unknown = {"name": "f", "parameters": {"properties": {"a": {"type": "strin"}}}}
    for function, what in ((UNUSED["function"], "uniqueItems"), (unknown, "strin")):
        strict = {"type": "function", "function": {**function, "strict": True}}
        asked = body(tools=[*TOOLS, strict], response_format=form)
        answer = server.post(CHAT, **asked)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "tools[2].function.parameters"
        assert what in error["message"]
        assert server.post(CHAT, **asked | {"tool_choice": "none", "max_tokens": 2}).status_code == 200


def test_a_required_call_is_the_only_one_unless_several_are_asked_for(sdk: openai.OpenAI) -> None:
    for choice in sdk.chat.completions.create(**body(tool_choice="required", n=6, max_tokens=120)).choices:
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or ()
        check_call(call.function.name, call.function.arguments)


def test_several_calls_may_be_made_and_choices_differ(sdk: openai.OpenAI) -> None:
    counts, first = set(), set()
    asked = body(tools=TOOLS[:1], tool_choice="required", n=6, parallel_tool_calls=True)
    for choice in sdk.chat.completions.create(**asked).choices:
        assert choice.finish_reason in ("tool_calls", "length")
        calls = choice.message.tool_calls or []
        counts.add(len(calls))
        whole = calls[:-1] if choice.finish_reason == "length" else calls
        assert len({str(sorted(json.loads(call.function.arguments).items())) for call in whole}) == len(whole)
        for call in calls[:-1] if choice.finish_reason == "length" else calls:
            check_call(call.function.name, call.function.arguments)
            first.add(call.function.arguments)
    assert len(first) > 1
    assert max(counts) > 1


def test_a_call_that_was_made_before_ends_the_answer(server: EngineServer) -> None:
    """The only tool has no arguments, so every further call is the same as the first."""
    asked = body(tools=TOOLS[1:], tool_choice="required", parallel_tool_calls=True, min_tokens=200)
    answer = server.post(CHAT, **asked).json()
    (choice,) = answer["choices"]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["now"]
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens"] < 200


@pytest.mark.parametrize("seed", range(4))
def test_several_required_calls_come_to_an_end(server: EngineServer, seed: int) -> None:
    """Also where what the grammar forces next, a token by its name, is asked beforehand."""
    asked = body(tool_choice="required", parallel_tool_calls=True, temperature=1, seed=seed, max_tokens=200)
    answer = server.post(CHAT, **asked)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] in ("tool_calls", "length")


def test_a_stream_tells_the_calls_of_the_whole_answer(sdk: openai.OpenAI) -> None:
    asked = body(tools=TOOLS[:1], tool_choice="required", parallel_tool_calls=False)
    (whole,) = sdk.chat.completions.create(**asked).choices
    content, calls, finish, parts = "", {}, None, 0
    for chunk in sdk.chat.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        for delta in choice.delta.tool_calls or ():
            parts += 1
            if delta.index not in calls:
                assert delta.id
                assert delta.type == "function"
                calls[delta.index] = [delta.function.name, ""]
            calls[delta.index][1] += delta.function.arguments
    assert content == ""
    assert finish == "tool_calls"
    reported = [[call.function.name, call.function.arguments] for call in whole.message.tool_calls or ()]
    assert list(calls.values()) == reported
    assert parts > 2, "arguments come in pieces"


def test_the_sdk_puts_a_stream_together(sdk: openai.OpenAI) -> None:
    strict = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
    with sdk.chat.completions.stream(
        **body(tools=strict, tool_choice="required", parallel_tool_calls=False)
    ) as stream:
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or ()
    check_call("weather", call.function.arguments)
    assert call.function.parsed_arguments["city"] in ("Oslo", "Rome")


def test_a_cut_call_ends_for_its_length(sdk: openai.OpenAI) -> None:
    asked = body(tool_choice={"type": "function", "function": {"name": "weather"}})
    (whole,) = sdk.chat.completions.create(**asked).choices
    seen = set()
    for most in (2, 70, 74, 78):
        (choice,) = sdk.chat.completions.create(**{**asked, "max_tokens": most}).choices
        if choice.finish_reason == "tool_calls":
            continue
        assert choice.finish_reason == "length"
        for call in choice.message.tool_calls or ():
            assert whole.message.tool_calls[0].function.arguments.startswith(call.function.arguments)
            seen.add(call.function.arguments)
    (choice,) = sdk.chat.completions.create(**{**asked, "max_tokens": 2}).choices
    assert choice.finish_reason == "length"
    assert not choice.message.tool_calls


def test_a_free_model_may_call_or_not(server: EngineServer, family: str) -> None:
    """A grammar says the model's lines here."""
    call = {
        "mistral": '[TOOL_CALLS][{"name": "now", "arguments": {}}]',
        "llama": '{"name": "now", "parameters": {}}',
    }.get(family, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    before = "" if family == "llama" else "I look.\n"
    for stream in (False, True):
        for line, content, finish in (
            (before + call, before.strip() or None, "tool_calls"),
            ("No <tool.", "No <tool.", "stop"),
        ):
            answer = server.post(CHAT, **body(guided_choice=[line], stream=stream))
            assert answer.status_code == 200, answer.text
            if stream:
                data = [
                    json.loads(part[6:]) for part in answer.text.split("\n\n") if part.startswith("data: {")
                ]
                choices = [event["choices"][0] for event in data]
                text = "".join(choice["delta"].get("content") or "" for choice in choices) or None
                calls = [one for choice in choices for one in choice["delta"].get("tool_calls", ())]
                ended = choices[-1]["finish_reason"]
            else:
                (choice,) = answer.json()["choices"]
                text, calls = choice["message"]["content"], choice["message"].get("tool_calls", [])
                ended = choice["finish_reason"]
            assert (text, ended) == (content, finish)
            assert ["now"] * (finish == "tool_calls") == [
                one["function"]["name"] for one in calls if one.get("id")
            ]


def test_without_tools_or_with_none_of_them_text_stays_text(server: EngineServer) -> None:
    line = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for more in ({"tools": None}, {"tool_choice": "none"}):
        (choice,) = server.post(CHAT, **body(guided_choice=[line], **more)).json()["choices"]
        assert choice["message"]["content"] == line
        assert choice["finish_reason"] == "stop"


def test_json_or_calls(server: EngineServer) -> None:
    """Free to call, bound to JSON if it does not."""
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes", "no"]}}}
    kinds = set()
    for seed in range(12):
        (choice,) = server.post(
            CHAT, **body(response_format=form, seed=seed, parallel_tool_calls=False)
        ).json()["choices"]
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert choice["message"]["content"] in ('"yes"', '"no"')
        else:
            (call,) = choice["message"]["tool_calls"]
            check_call(call["function"]["name"], call["function"]["arguments"])
    assert kinds <= {"stop", "tool_calls"}


def test_what_a_tool_said_goes_back_to_the_model(sdk: openai.OpenAI) -> None:
    (first,) = sdk.chat.completions.create(**body(tool_choice="required", parallel_tool_calls=False)).choices
    (call,) = first.message.tool_calls or ()
    messages = [*HELLO, first.message, {"role": "tool", "tool_call_id": call.id, "content": "12"}]
    answer = sdk.chat.completions.create(**body(messages=messages, max_tokens=3))
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        ({"tool_choice": "required", "tools": [BAD]}, "tools[0].function.parameters"),
    ],
)
def test_what_cannot_be_forced_is_refused(server: EngineServer, more: dict[str, Any], param: str) -> None:
    answer = server.post(CHAT, **body(**more))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_forced_call_continues_no_text(server: EngineServer, family: str) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "a"}]
    answer = server.post(CHAT, **body(tool_choice="required", continue_final_message=True, messages=begun))
    assert answer.status_code == 400
    # Mistral's template here does not show such messages at all.
    param = "continue_final_message" if family == "mistral" else "tool_choice"
    assert answer.json()["error"]["param"] == param


def test_logprobs_go_with_calls(server: EngineServer) -> None:
    asked = body(tool_choice="required", parallel_tool_calls=False, logprobs=True)
    answer = server.post(CHAT, **asked).json()
    (choice,) = answer["choices"]
    assert choice["message"]["tool_calls"]
    assert 0 < len(choice["logprobs"]["content"]) <= answer["usage"]["completion_tokens"]
