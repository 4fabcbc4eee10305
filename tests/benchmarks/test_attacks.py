"""The frame for attacks tells one that succeeded, one that broke by itself, and one that was held, from each other."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import attacks
from benchmarks.attacks.__main__ import main
from benchmarks.attacks.frame import ALICE, MALLORY, Rig, found

HEADER = """
from benchmarks.attacks.frame import Rig, must, skip
POINT, TRIED, HOLDS = "{point}", "a {name} thing", "all is well"
async def attack(rig: Rig) -> str:
    """
BODIES = {
    "held": ("A.10", "return 'nothing happened'"),
    "success": ("A.9", "must(1 > 2, 'it took 40 dollars')"),
    "broken": ("B.1", "raise RuntimeError('the script is wrong')"),
    "skipped": ("B.2", "skip('needs another machine')"),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = tmp_path / "some_attacks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, (point, body) in BODIES.items():
        (folder / f"{name}.py").write_text(HEADER.format(point=point, name=name).rstrip() + f"\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "some_attacks"]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("some_attacks")


def verdicts(table: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {row[1]: row[4:] for row in rows}


def test_an_attack_that_succeeds_is_told_and_fails_the_run(
    package: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], package) == 1
    printed = verdicts(capsys.readouterr().out)
    assert list(printed) == ["success", "held", "broken", "skipped"]
    assert printed["success"] == ["it took 40 dollars", "SUCCEEDED"]
    assert printed["held"] == ["nothing happened", "held"]
    assert printed["broken"] == ["RuntimeError: the script is wrong", "BROKEN"]
    assert printed["skipped"] == ["needs another machine", "skipped"]


@pytest.mark.parametrize(
    ("name", "code"), [("success", 1), ("broken", 1), ("held", 0), ("skipped", 0), ("A.10", 0)]
)
def test_one_attack_by_its_name_or_point(package: ModuleType, name: str, code: int) -> None:
    assert main([name], package) == code


def test_a_name_that_there_is_not_is_refused(package: ModuleType) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nonesuch"], package)
    assert ended.value.code == 2


def test_every_attack_says_what_it_tries_and_what_must_hold() -> None:
    all_ = list(found(attacks))
    assert all_
    for one in all_:
        assert one.tried.strip() and one.holds.strip(), one.name
        assert re.fullmatch(r"([A-D]|[0-9]+)\.[0-9]+", one.point), one.name


@pytest.mark.anyio
async def test_a_rig_starts_a_real_gateway_and_ends_it() -> None:
    async with Rig() as rig:
        upstream = await rig.upstream()
        gateway = await rig.gateway(rig.policy(upstream))
        assert (await gateway.chat(MALLORY)).status_code == 200
        assert (await gateway.chat(ALICE, model="nonesuch")).status_code == 404
        assert len(upstream.requests) == 1
        (worker,) = gateway.workers
        assert await gateway.is_alive()
        folder = rig.folder
    assert not [left for left in (Path(f"/proc/{worker}"), folder) if left.exists()]
