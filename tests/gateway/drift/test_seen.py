"""What a request says: its language, and whether an answer that was to be JSON is some."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.drift.hour_sketch import HourSketch
from gateway.drift.language import language_of
from gateway.drift.seen import asks_for_json, is_no_json, question_of, seen
from gateway.observe.ended import Ended
from gateway.recording.kept_answer import KeptAnswer
from gateway.types import ChatRequest, Chunk
from tests.fakes import a_call


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("How do I get a refund for this order?", "en"),
        ("Wie bekomme ich das Geld für die Bestellung zurück?", "de"),
        ("Comment est-ce que je peux annuler dans le cas présent", "fr"),
        ("¿Qué es lo que puedo hacer para cambiar el pedido?", "es"),
        ("Não sei como posso cancelar, você pode me ajudar com isso?", "pt"),
        ("Nie wiem co to jest, ale chcę się dowiedzieć", "pl"),
        ("請用中文回答這個問題", "zh"),
        ("この質問に日本語で答えてください", "ja"),
        ("Как мне вернуть деньги?", "ru"),
        ("print(x + 1)", "latin"),
        ("12 + 30 = ?", "none"),
        ("", "none"),
    ],
)
def test_a_language_is_told_by_script_and_small_words(text: str, language: str) -> None:
    assert language_of(text) == language


def asked(**given: Any) -> ChatRequest:
    return ChatRequest("m", **given)


@pytest.mark.parametrize(
    ("request_", "question"),
    [
        (
            asked(
                messages=(
                    {"role": "user", "content": "first"},
                    {"role": "assistant", "content": "x"},
                    {"role": "user", "content": "last"},
                )
            ),
            "last",
        ),
        (
            asked(
                messages=({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "t"}]},)
            ),
            "t",
        ),
        (asked(messages=({"role": "system", "content": "x"},)), ""),
        (asked(prompt=["one", "two"]), "one"),
        (asked(prompt=[1, 2]), ""),
    ],
    ids=["last", "part", "none", "prompts", "tokens"],
)
def test_the_question_is_the_last_that_the_user_says(request_: ChatRequest, question: str) -> None:
    assert question_of(request_) == question


@pytest.mark.parametrize(
    ("form", "asks"),
    [({"type": "json_object"}, True), ({"type": "json_schema"}, True), ({"type": "text"}, False), (7, False)],
)
def test_json_is_asked_for_by_the_response_format(form: Any, asks: bool) -> None:
    assert asks_for_json(asked(messages=(), params={"response_format": form})) is asks


@pytest.mark.parametrize(
    ("deltas", "fails"),
    [
        ([{"content": '{"a": '}, {"content": "1}"}], False),
        ([{"content": '{"a": 1'}], True),
        ([{"content": "Sure! {}"}], True),
        ([{"content": ""}], True),
        ([{"content": "1" * 400}], False),
        ([{"refusal": "no"}], None),
        ([{"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]}], None),
        ([], None),
    ],
)
def test_an_answer_is_json_or_not_or_neither(deltas: list[dict[str, Any]], fails: bool | None) -> None:
    answer = KeptAnswer(asked(messages=()), "m")
    for delta in deltas:
        answer.add(Chunk(delta=delta))
    assert is_no_json(answer) is fails


def test_a_projection_is_counted_and_not_in_the_receipt() -> None:
    call = a_call()
    call.receipt.note("cache", semantic="unlike", projection=(3, -1, 0, 0, 0, 0, 0, 7))
    one = seen(call, Ended(call), 7200.0, None)
    assert call.receipt.notes["cache"] == {"semantic": "unlike"}
    sketch = HourSketch()
    one.count(sketch)
    assert (sketch.of("embedding_0"), sketch.of("embedding_1"), sketch.of("embedding_7")) == (
        {3: 1},
        {-1: 1},
        {7: 1},
    )
