"""A golden set before a server: who passes, who does not, and what is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.lab.evaluate import golden
from tests.fakes import FakeUpstream, Script, completion, reply

pytestmark = pytest.mark.anyio

CASE = '{"id": "ID", "prompt": "What is 6 * 7?", "checks": [{"number": 42}]}'


def a_set(folder: Path, *ids: str, case: str = CASE) -> Path:
    file = folder / "golden.jsonl"
    file.write_text("\n".join(case.replace("ID", one) for one in ids))
    return file


RIGHT, WRONG = reply(completion("It is 42.")), reply(completion("It is 41."))
DOWN = reply({"error": {"message": "no"}}, status=500)


@pytest.mark.parametrize(
    ("scripts", "failed"),
    [
        ((RIGHT,), []),
        ((RIGHT, WRONG), ["41"]),
        ((DOWN,), ["500", "500"]),
    ],
)
async def test_failures_are_told_by_case(
    scripts: tuple[Script, ...], failed: list[str], tmp_path: Path
) -> None:
    cases = golden.read(a_set(tmp_path, "one", "two"))
    async with FakeUpstream(*scripts) as server:
        found = await golden.failures(server.base_url.removesuffix("/v1"), cases)
    assert len(found) == len(failed)
    assert all(why in line for why, line in zip(failed, found, strict=True))
    assert {request.json()["model"] for request in server.requests} == {"golden"}


async def test_a_server_that_is_away_passes_nothing(tmp_path: Path) -> None:
    assert len(await golden.failures("http://127.0.0.1:1", golden.read(a_set(tmp_path, "one")))) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "x", "checks": [{"judge": "Is it polite?"}]}', "need a model (judge)"),
        ("no JSON", "golden.jsonl:1"),
        ("", "there is no case"),
    ],
)
def test_a_set_that_cannot_be_used_is_told(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = a_set(tmp_path, "one", case=line)
    assert golden.main([str(file), "http://127.0.0.1:1"]) == 2
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("at_least", "code"), [("0", 0), ("0.5", 1), ("1", 1)])
def test_enough_have_to_pass(
    at_least: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = a_set(tmp_path, "one", "two")
    assert golden.main([str(file), "http://127.0.0.1:1", "--at-least", at_least]) == code
    assert "0 of 2 cases pass" in capsys.readouterr().out
