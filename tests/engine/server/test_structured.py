"""Answers that must have a form, over real sockets: a random model is the best that could be asked to keep to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.engine.live import EngineServer, eventually
from tests.engine.tiny import SHAPE, write_model
from tests.sampling import diagonal

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: Literal["Oslo", "Rome"]
    days: list[int] = Field(max_length=3)
    note: str | None = Field(max_length=5)


SCHEMA = {
    "$defs": {"day": {"type": "integer", "minimum": -9, "maximum": 99}},
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 3},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
    },
    "required": ["city", "days", "note"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    folder = tmp_path_factory.mktemp("structured")
    model = write_model(folder / "tiny", {**SHAPE, "max_position_embeddings": 2000})
    # So few blocks that requests push each other out.
    options = ("--kv-cache-blocks", "40", "--max-num-seqs", "24", "--max-batched-tokens", "64")
    with EngineServer(model, *options, "--check-integrity", log=folder / "log") as server:
        yield server


def ask(server: EngineServer, path: str = CHAT, **body: Any) -> Any:
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    answer = server.post(path, **{"model": "tiny", "max_tokens": 300, "seed": 1, **prompt, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def received(server: EngineServer, path: str = CHAT, **body: Any) -> str:
    """The text of an answer that came to its end."""
    (choice,) = ask(server, path, **body)["choices"]
    assert choice["finish_reason"] == "stop", choice
    return choice["message"]["content"] if path == CHAT else choice["text"]


FORMS = [
    pytest.param({"response_format": JSON_SCHEMA}, id="openai"),
    pytest.param({"guided_json": SCHEMA}, id="guided"),
    pytest.param({"guided_json": json.dumps(SCHEMA)}, id="text"),
    pytest.param({"structured_outputs": {"json": SCHEMA}}, id="structured"),
]


@pytest.mark.parametrize(("form", "seed"), diagonal(FORMS, range(6)))
def test_an_answer_keeps_to_its_schema(server: EngineServer, form: dict[str, Any], seed: int) -> None:
    place = Place.model_validate_json(received(server, **form, seed=seed))
    assert all(-9 <= day <= 99 for day in place.days)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"guided_regex": r"\d{4}-[a-f]{2,3}"}, r"[0-9]{4}-[a-f]{2,3}"),
        ({"structured_outputs": {"regex": "(é|ü){3}"}}, "[éü]{3}"),
        ({"guided_choice": ["north", "south", "a/b \"c\"\n"]}, 'north|south|a/b "c"\n'),
        ({"structured_outputs": {"choice": ["ja", "jawohl"]}}, "ja(wohl)?"),
        ({"guided_grammar": 'start: "<" inner ">"\ninner: /[xy]/ | "(" inner ")"'}, r"<\(*[xy]\)*>"),
        ({"guided_grammar": 'root ::= "a" b\nb ::= [0-9] | "-" b'}, "a-*[0-9]"),
        ({"structured_outputs": {"grammar": 'start: "one" | "two"'}}, "one|two"),
    ],
)  # fmt: skip
def test_an_answer_keeps_to_its_form(
    server: EngineServer, path: str, form: dict[str, Any], pattern: str
) -> None:
    for temperature in (0, 1):
        assert re.fullmatch(pattern, received(server, path, **form, temperature=temperature))


@pytest.mark.parametrize(
    "form", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_a_json_object_is_begun_and_may_be_cut(server: EngineServer, form: dict[str, Any]) -> None:
    (choice,) = ask(server, **form, max_tokens=1)["choices"]
    assert choice["message"]["content"].strip().startswith("{")
    assert choice["finish_reason"] == "length"


def test_text_is_no_form(server: EngineServer) -> None:
    free = ask(server, max_tokens=9)["choices"]
    assert ask(server, max_tokens=9, response_format={"type": "text"})["choices"] == free


def test_the_sdk_parses_answers(server: EngineServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    # A schema that the SDK makes has no bounds that it does not know.
    answer = client.chat.completions.parse(
        model="tiny", messages=HELLO, response_format=Place, max_tokens=300, seed=3
    )
    assert isinstance(answer.choices[0].message.parsed, Place)


def test_twenty_forms_at_once_are_each_as_alone(server: EngineServer) -> None:
    """Beside each other and pushed out by each other."""
    forms = [{"guided_regex": f"{i}[a-z]{{{i + 60}}}\\."} for i in range(1, 21)]

    def one(i: int) -> str:
        return received(server, **forms[i], seed=i, max_tokens=200)

    def preempted() -> float:
        found = re.search(
            r"^tollgate_engine_preempt\w+ (\S+)$", server.http.get("/metrics").text, re.MULTILINE
        )
        assert found is not None
        return float(found[1])

    alone = [one(i) for i in range(20)]
    for i, text in enumerate(alone, 1):
        assert re.fullmatch(f"{i}[a-z]{{{i + 60}}}\\.", text)
    for _ in range(10):  # where twenty threads come too slowly, there are blocks for all
        with ThreadPoolExecutor(20) as threads:
            assert list(threads.map(one, range(20))) == alone
        if preempted() > 0:
            break
    assert preempted() > 0, "the blocks were to be too few"


def test_every_choice_keeps_to_the_schema_in_its_own_way(server: EngineServer) -> None:
    choices = ask(server, n=5, response_format=JSON_SCHEMA)["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["stop"] * 5
    texts = [choice["message"]["content"] for choice in choices]
    for text in texts:
        Place.model_validate_json(text)
    assert len(set(texts)) > 1


def test_a_stream_says_the_same(server: EngineServer) -> None:
    whole = received(server, response_format=JSON_SCHEMA)
    body = {"model": "tiny", "messages": HELLO, "max_tokens": 300, "seed": 1, "response_format": JSON_SCHEMA}
    lines = server.post(CHAT, **body, stream=True).text.split("\n\n")
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole


def test_a_continued_answer_keeps_to_the_form_that_it_began_with(server: EngineServer) -> None:
    begun = [*HELLO, {"role": "assistant", "content": '{"city": "Ro'}]
    text = received(
        server,
        messages=begun,
        continue_final_message=True,
        add_generation_prompt=False,
        response_format=JSON_SCHEMA,
    )
    assert Place.model_validate_json('{"city": "Ro' + text).city == "Rome"
    begun[-1]["content"] = '{"city": "Paris'
    answer = server.post(
        CHAT, model="tiny", messages=begun, continue_final_message=True, response_format=JSON_SCHEMA
    )
    assert answer.status_code == 400
    assert "does not begin" in answer.json()["error"]["message"]


def test_a_complete_form_ends_the_answer_and_no_sooner_than_asked(server: EngineServer) -> None:
    for more in ({"ignore_eos": True}, {"min_tokens": 40}):
        assert received(server, guided_regex="abc", **more) == "abc"
    assert received(server, guided_regex="b{1,50}", ignore_eos=True) == "b" * 50
    assert len(received(server, guided_regex="b{1,50}", min_tokens=45)) >= 45
    (choice,) = ask(server, guided_regex="b*", ignore_eos=True, max_tokens=60)["choices"]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("form", "param", "reason"),
    [
        ({"guided_regex": "a("}, "guided_regex", "unclosed group"),
        ({"guided_json": "{"}, "guided_json", "not valid JSON"),
        ({"guided_json": "[]"}, "guided_json", "must be a JSON object"),
        ({"guided_grammar": "start: nowhere"}, "guided_grammar", "unknown name"),
        ({"guided_grammar": 'root ::= "a'}, "guided_grammar", "cannot be used"),
        ({"structured_outputs": {"json": {"type": "strin"}}}, "structured_outputs.json", "strin"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needs"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 1}}}},
            "response_format.json_schema.schema",
            "cannot be used",
        ),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "exclude each other"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "exclude each other",
        ),
        ({"guided_regex": "a" * 200_000}, "guided_regex", "is the most"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(
    server: EngineServer, form: dict[str, Any], param: str, reason: str
) -> None:
    for path, prompt in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "hello"})):
        answer = server.post(path, model="tiny", **prompt, **form)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == param
        assert reason in error["message"]
        assert len(error["message"]) < 700


def test_drafts_change_no_answer(server: EngineServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("speculating")
    model = write_model(folder / "tiny", {**SHAPE, "max_position_embeddings": 2000})
    repeated = r"(\[[ab]\]){30}"
    with EngineServer(model, "--speculation", "ngram", log=folder / "log") as speculating:
        for form in ({"guided_regex": repeated}, {"response_format": JSON_SCHEMA}):
            for temperature in (0, 1):
                asked = {**form, "temperature": temperature}
                assert received(speculating, **asked) == received(server, **asked)


def test_whoever_leaves_while_the_form_is_compiled_leaves_nothing_behind(server: EngineServer) -> None:
    for patience in (0.1, 0.3, 0.5, 30):
        # New each time, and a second's work in all.
        names = [f"p{i}" for i in range(1500)]
        schema = {"properties": {name: {"const": patience} for name in names}, "required": names}
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 1, "guided_json": schema}
        with suppress(httpx.ReadTimeout):
            assert server.http.post(CHAT, json=body, timeout=patience).status_code == 200
    eventually(lambda: server.state()["running"] == server.state()["waiting"] == 0)
    assert server.state()["kv_cache"]["blocks_used"] == 0


def test_a_form_that_is_too_much_work_is_an_error_and_never_half_an_answer(server: EngineServer) -> None:
    hostile = {"guided_regex": "((a|b|ab|ba){1,300}c?){1,300}", "max_tokens": 500, "ignore_eos": True}
    answer = server.post(CHAT, model="tiny", messages=HELLO, seed=3, **hostile)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["code"] == "grammar_failed"
    assert "simpler" in error["message"]
    # Nobody else was hurt.
    assert received(server, guided_choice=["yes"]) == "yes"
    eventually(lambda: server.state()["running"] == 0)
