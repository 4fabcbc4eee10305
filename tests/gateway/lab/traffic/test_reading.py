from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.lab.traffic.reading import TrafficError, read_traffic
from gateway.recording.recorded_request import RecordedRequest

TRACES = Path(__file__).resolve().parents[5] / "shared" / "data" / "traces"
OWN = RecordedRequest(
    at=1_700_000_000.5,
    request_id="r1",
    tenant="acme",
    priority=-1,
    max_tokens=None,
    blocks=(2**47, 3),
    block_tokens=64,
    outcome="refused",
    status=429,
    findings=(("pii", "mask"),),
    ttft=0.25,
    deadline=2.0,
    tools=True,
)


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, text: str | bytes, name: str = "traffic") -> list[RecordedRequest]:
    return list(read_traffic(written(folder, name, text)))


def test_azures_are_told_by_their_columns(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
        "2024-05-10 00:00:00.009930+00:00,9,1\r\n2023-11-16 18:15:46,7,2\r\n"
    )
    first, second, third = read(tmp_path, text)
    assert first == RecordedRequest(at=1700158546.68059, prompt_tokens=374, completion_tokens=44)
    assert (second.at, third.at) == (1715299200.00993, 1700158546.0)


def test_mooncakes_have_blocks_of_512_tokens(tmp_path: Path) -> None:
    (row,) = read(
        tmp_path, '{"timestamp": 27482, "input_length": 700, "output_length": 52, "hash_ids": [46, 47]}\n'
    )
    assert row == RecordedRequest(
        at=27.482, prompt_tokens=700, completion_tokens=52, blocks=(46, 47), block_tokens=512
    )


def test_ones_own_come_back_as_they_were_written(tmp_path: Path) -> None:
    lines = OWN.to_json() + b"\n\n" + RecordedRequest(at=3).to_json()
    assert read(tmp_path, lines) == read(tmp_path, gzip.compress(lines)) == [OWN, RecordedRequest(at=3)]
    (short,) = read(tmp_path, '{"at": 5, "prompt_tokens": 8, "output_tokens": 2, "hash_ids": [1]}')
    assert short == RecordedRequest(
        at=5.0, prompt_tokens=8, completion_tokens=2, blocks=(1,), block_tokens=512
    )


def test_a_folder_is_all_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    written(tmp_path, "in/2.jsonl", '{"at": 2}')
    written(tmp_path, "in/1.jsonl", '{"at": 1}')
    written(tmp_path, "in/.hidden", "nothing")
    assert [row.at for row in read_traffic(tmp_path / "in")] == [1, 2]


def test_requests_in_openais_form(tmp_path: Path) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "x" * 600}], "max_tokens": 5}
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
    answer = {
        "id": "chatcmpl-1",
        "created": 1_700_000_000,
        "model": "m-2026",
        "choices": [{"finish_reason": "stop", "message": {"content": "Hello there."}}],
        "usage": usage,
    }
    lines = [
        {"request": {**asked, "user": "ann@example.com", "stream": True}, "response": answer, "ttft": 0.5},
        {"custom_id": "b-1", "method": "POST", "url": "/v1/chat/completions", "body": asked},
        {"timestamp": "2023-11-14T22:13:20Z", "error": {"code": "context_length_exceeded"}, "request": asked},
    ]
    logged, batch, failed = read(tmp_path, "\n".join(map(json.dumps, lines)))
    assert (logged.at, logged.request_id, logged.answered) == (1_700_000_000, "chatcmpl-1", "m-2026")
    assert (logged.prompt_tokens, logged.completion_tokens, logged.cached_tokens) == (9, 4, 3)
    assert (logged.stream, logged.max_tokens, logged.ttft, logged.finish_reason) == (True, 5, 0.5, "stop")
    assert logged.user and "ann" not in logged.user
    assert (batch.at, batch.request_id, batch.api) == (2, "b-1", "chat")
    assert batch.prompt_tokens > 600 // 4 and batch.completion_tokens == 0
    assert batch.prompt_key == logged.prompt_key and len(batch.blocks) == 2 and batch.block_tokens == 64
    assert (failed.at, failed.outcome, failed.status) == (1_700_000_000, "failed", 500)
    assert failed.code == "context_length_exceeded"


def test_conversations_share_the_blocks_that_they_begin_with(tmp_path: Path) -> None:
    turn = {"role": "user", "content": "a" * 1000}
    lines = [
        {"messages": [turn]},
        {"messages": [turn, {"role": "assistant", "content": "b" * 1000}]},
        {"messages": [{**turn, "content": "c" + "a" * 999}]},
        {"messages": [turn], "tools": [{"type": "function"}]},
    ]
    first, longer, other, with_tools = read(tmp_path, "\n".join(map(json.dumps, lines)))
    assert first.blocks and longer.blocks[: len(first.blocks)] == first.blocks
    assert first.blocks[0] not in {other.blocks[0], with_tools.blocks[0]} and with_tools.tools


SPEND = {
    "request_id": "chatcmpl-7",
    "call_type": "acompletion",
    "api_key": "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b",
    "spend": 0.00125,
    "prompt_tokens": 30,
    "completion_tokens": 10,
    "startTime": "2026-01-02T03:04:05.000Z",
    "endTime": "2026-01-02T03:04:07.500Z",
    "completionStartTime": "2026-01-02T03:04:05.250Z",
    "model": "gpt-4o-mini",
    "model_group": "chat",
    "custom_llm_provider": "openai",
    "metadata": {
        "user_api_key_alias": "alice",
        "usage_object": {"prompt_tokens_details": {"cached_tokens": 20}},
    },
    "cache_hit": "False",
    "team_id": "acme",
    "end_user": "u-1",
    "status": "success",
}


def test_litellms_spend_logs(tmp_path: Path) -> None:
    failed = {
        **SPEND,
        "status": "failure",
        "metadata": {"error_information": {"error_code": "429", "error_class": "RateLimitError"}},
    }
    answered, refused = read(tmp_path, json.dumps([SPEND, failed]))
    assert (answered.at, answered.ttft, answered.duration) == (1767323045.0, 0.25, 2.5)
    assert (answered.tenant, answered.key, answered.model, answered.target) == (
        *("acme", "alice", "chat"),
        "gpt-4o-mini",
    )
    assert (answered.stream, answered.cached_tokens, answered.cost, answered.api) == (
        True,
        20,
        0.00125,
        "chat",
    )
    assert (refused.outcome, refused.status, refused.code, refused.key) == (
        *("refused", 429, "RateLimitError"),
        "88dc28d0f030",
    )
    columns = ["startTime", "endTime", "metadata", "prompt_tokens", "spend", "cache_hit"]
    row = ["2026-01-02 03:04:05.123", "", '"{""user_api_key_alias"": ""bob""}"', "3", "0.5", "True"]
    (from_csv,) = read(tmp_path, f"{','.join(columns)}\n{','.join(row)}\n")
    assert from_csv == replace(
        RecordedRequest(at=1767323045.123, key="bob", prompt_tokens=3, cost=0.5), cache="exact"
    )
    table = 'COPY public."LiteLLM_SpendLogs" ("startTime", spend, cache_hit) FROM stdin;'
    copied = f"{table}\n2026-01-02 03:04:05\t0.5\tFalse\n\\.\n"
    (from_sql,) = read(tmp_path, copied)
    assert from_sql == RecordedRequest(at=1767323045.0, cost=0.5)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\nsoon,1,2\n", ":3: "),
        ("when,what\n1,2\n", ":2: a recorded request has no 'when'"),
        ('{"at": 1}\n{"at": ', ":2: it is not JSON"),
        ('{"at": 1, "prompt_tokens": -1}\n', ":1: prompt_tokens: -1"),
        ('{"at": 1, "status": true}\n', ":1: status"),
        ('{"at": "soon"}\n', ":1: at"),
        ('{"tenant": "acme"}\n', ":1: there is no 'at'"),
        ('{"at": 1, "outcome": "lost"}\n', ":1: outcome: 'lost' is none of"),
        ('{"at": 1}\n[]\n', ":2: it is no object"),
        ('{"timestamp": 1, "input_length": -1, "output_length": 1}\n', ":1: a length below"),
        ('{"messages": "x", "at": 1, "response": 3}\n', ":1: "),
        ("\n", "no requests"),
        ("nothing\n", "no requests"),
        (b"\x1f\x8b\x08broken", ":1: "),
        (b"\xff\xfe\x00", ":1: "),
    ],
)
def test_what_is_no_traffic_is_said_with_file_and_line(tmp_path: Path, text: str | bytes, told: str) -> None:
    with pytest.raises(TrafficError, match="traffic") as caught:
        read(tmp_path, text)
    assert told in str(caught.value)


def test_a_file_that_is_not_there_and_a_folder_without_any_are_said(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match=r"none\.csv: No such file"):
        list(read_traffic(tmp_path / "none.csv"))
    with pytest.raises(TrafficError, match="no file in it"):
        list(read_traffic(tmp_path))


@pytest.mark.parametrize(
    ("name", "count"),
    [("azure_conv.csv", 19_366), ("azure_code.csv", 8_819), ("mooncake_conversation.jsonl", 4_000)],
)
def test_the_published_ones_are_read_whole(name: str, count: int) -> None:
    if not (TRACES / name).exists():
        pytest.skip("the published traces are not here")
    assert sum(1 for _ in read_traffic(TRACES / name)) == count
