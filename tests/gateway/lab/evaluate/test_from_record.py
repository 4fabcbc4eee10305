"""Sets of recorded traffic: which requests become cases, and what their answers must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.__main__ import main
from gateway.lab.evaluate.errors import SetError
from gateway.lab.evaluate.from_record import Wanted, sampled, write_set
from gateway.lab.evaluate.reader import read_set
from gateway.recording.recorded_request import RecordedRequest
from tests.examples import examples


def chat(number: int, model: str = "m", answer: dict[str, Any] | None = None, **more: Any) -> RecordedRequest:
    told = {
        "messages": [{"role": "user", "content": f"question {number}"}],
        "answers": [answer or {"role": "assistant", "content": f"answer {number}"}],
        "params": {"temperature": 0, "n": 1},
    }
    given = {"text": json.dumps(told), **more}
    return RecordedRequest(at=float(number), request_id=f"req_{number}", model=model, answered=model, **given)


def called(arguments: str = '{"city": "Rome"}') -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": arguments}}]}


def test_texts_are_judged_or_similar_and_calls_are_those_of_then() -> None:
    text, call = sampled([chat(1), chat(2, answer=called())], Wanted(10))
    assert text["checks"] == [{"similar": "answer 1", "at_least": 0.8}]
    assert (text["task"], text["reference"], text["params"]) == ("m text", "answer 1", {"temperature": 0})
    assert call["checks"] == [{"tool_call": {"name": "weather", "arguments": {"city": "Rome"}}}]
    assert call["task"] == "m tools"
    (judged,) = sampled([chat(1)], Wanted(10, "Is it polite?"))
    assert judged["checks"] == [{"judge": "Is it polite?"}]


@pytest.mark.parametrize(
    "request_",
    [
        chat(1, text=None),
        chat(1, outcome="failed"),
        chat(1, text="{"),
        chat(1, text='{"messages": [], "answers": []}'),
        chat(1, text='{"messages": ["x"], "answers": ["y"]}'),
        chat(1, answer=called("{")),
        chat(1, answer={"role": "assistant", "content": ""}),
    ],
    ids=["no-text", "failed", "broken", "empty", "no-messages", "broken-call", "nothing-said"],
)
def test_what_cannot_be_asked_again_is_left_out(request_: RecordedRequest) -> None:
    assert sampled([request_], Wanted(10)) == []


@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 40), min_size=1), st.integers(1, 60))
def test_each_stratum_has_its_share(sizes: dict[str, int], sample: int) -> None:
    traffic = [
        chat(1000 * place + number, model)
        for place, (model, size) in enumerate(sizes.items())
        for number in range(size)
    ]
    cases = sampled(traffic, Wanted(sample))
    total = sum(sizes.values())
    assert min(sample, total) <= len(cases) <= max(min(sample, total), len(sizes))
    for model, size in sizes.items():
        mine = sum(case["task"] == f"{model} text" for case in cases)
        assert 1 <= mine <= size
        if sample >= len(sizes):
            assert abs(mine - size * min(sample, total) / total) <= len(sizes)


def test_a_grown_record_gives_mostly_the_same_cases() -> None:
    before = {case["id"] for case in sampled([chat(number) for number in range(1000)], Wanted(100))}
    after = {case["id"] for case in sampled([chat(number) for number in range(1100)], Wanted(100))}
    assert len(before & after) >= 80


def test_a_written_set_is_read_and_nothing_is_overwritten(tmp_path: Path) -> None:
    trace, path = tmp_path / "traffic.jsonl", tmp_path / "set.jsonl"
    trace.write_bytes(b"\n".join(chat(number).to_json() for number in range(5)))
    assert write_set(trace, path, Wanted(3)) == 3
    assert [case.reference.split()[0] for case in read_set(path)] == ["answer"] * 3
    with pytest.raises(SetError, match="is there already"):
        write_set(trace, path, Wanted(3))


def test_traffic_without_texts_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "traffic.jsonl"
    trace.write_bytes(chat(1, text=None).to_json())
    command = ["evaluate", str(tmp_path / "set.jsonl"), "--from-record", str(trace), "--models", "m"]
    assert main(command) == 2
    assert "record: {texts: masked}" in capsys.readouterr().err
    assert not (tmp_path / "set.jsonl").exists()
