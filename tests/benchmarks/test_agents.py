"""The table of what agents did: right ones are counted, and what the others lacked is told."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.agents.table import table
from benchmarks.agents.task import CHAT, RESPONSES, Bench, Task, holds
from tests.json_server import Asked, json_server


def answer(asked: Asked) -> tuple[int, object]:
    message = {"role": "assistant", "content": f"to {asked.body['model']}"}
    return 200, {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


async def ask(bench: Bench) -> None:
    told = await bench.client.chat.completions.create(model=bench.model, messages=[])
    holds(bench.api == CHAT, f"{told.choices[0].message.content} by {bench.api}")


async def fail(bench: Bench) -> None:
    raise RuntimeError("two\nlines")


@pytest.mark.anyio
async def test_a_cell_has_how_often_it_was_right_and_the_wire_what_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOLLGATE_KEY", "tg-key")
    tasks = (Task("asks", "ours", ask, guarded=True), Task("fails", "ours", fail))
    with json_server(answer) as server:
        args = argparse.Namespace(
            base_url=server.url,
            model="plain",
            guarded="masked",
            api=[CHAT, RESPONSES],
            repeats=2,
            side_by_side=3,
            wire=tmp_path / "wire",
        )
        await table(args, tasks)
    out, err = capsys.readouterr()
    assert out.splitlines()[2:] == ["| asks | ours | 2/2 | 0/2 |", "| fails | ours | 0/2 | 0/2 |"]
    assert "Wrong: to masked by responses" in err and "RuntimeError: two lines" in err
    said = [json.loads(line) for line in (tmp_path / "wire").read_text().splitlines()]
    assert [one["request"]["model"] for one in said] == ["masked"] * 4
    assert said[0]["status"] == 200 and "to masked" in said[0]["answer"]
