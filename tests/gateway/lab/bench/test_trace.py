from __future__ import annotations

from pathlib import Path

import pytest

from gateway.lab.bench.errors import OptionError
from gateway.lab.bench.trace import Arrival, read_trace

TRACES = Path(__file__).resolve().parents[4].parent / "shared" / "data" / "traces"


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_azures(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "azure.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n"
        "2023-11-16 18:15:47.1805999,9,1\r\n",
    )
    assert read_trace(path) == [Arrival(0.0, 374, 44), Arrival(pytest.approx(0.50001, abs=1e-5), 9, 1)]
    assert read_trace(path, speed=2, length_scale=0.1)[1] == Arrival(pytest.approx(0.250005, abs=1e-5), 1, 1)


def test_mooncakes_and_ones_own(tmp_path: Path) -> None:
    mooncake = written(
        tmp_path,
        "mooncake.jsonl",
        '{"timestamp": 27482, "input_length": 700, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"timestamp": 3000, "input_length": 10, "output_length": 5, "hash_ids": [46]}\n\n',
    )
    assert read_trace(mooncake) == [Arrival(0.0, 10, 5, (46,)), Arrival(24.482, 700, 52, (46, 47))]
    own = written(tmp_path, "own.jsonl", '{"at": 5.5, "prompt_tokens": 8, "output_tokens": 2}\n')
    assert read_trace(own) == [Arrival(0.0, 8, 2)]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "a.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,2\nsoon,1,2\n",
            "a.csv:3: ",
        ),
        ("a.csv", "when,what\n1,2\n", "a.csv:2: there is no 'at'"),
        ("a.jsonl", '{"at": 1, "prompt_tokens": 1, "output_tokens": 1}\n{"at": ', "a.jsonl:2: "),
        ("a.jsonl", '{"at": 1, "prompt_tokens": -1, "output_tokens": 1}\n', "a.jsonl:1: a length below"),
        ("a.jsonl", "[]\n", "a.jsonl:1: "),
        ("a.jsonl", "\n", "no requests"),
    ],
)
def test_what_is_no_trace_is_said(tmp_path: Path, name: str, text: str, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        read_trace(written(tmp_path, name, text))


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="No such file"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("name", "count"),
    [("azure_conv.csv", 19_366), ("azure_code.csv", 8_819), ("mooncake_conversation.jsonl", 4_000)],
)
def test_the_published_ones_are_read_whole(name: str, count: int) -> None:
    if not (TRACES / name).exists():
        pytest.skip("the published traces are not here")
    rows = read_trace(TRACES / name)
    assert len(rows) == count and rows[0].at == 0 and rows == sorted(rows, key=lambda row: row.at)
