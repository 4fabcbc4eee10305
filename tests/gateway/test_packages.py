"""Packages that are missing: installed by a real command where one is named, told in one line where none is."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway import packages
from gateway.backoff import Backoff

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("extra", "modules"),
    [
        ("engine", packages.ENGINE),
        (
            "guards",
            (
                *packages.EMBEDDER,
                *packages.OTHER_EMBEDDER,
                *packages.ENTITIES,
                *packages.CLASSIFIER,
                *packages.INDEX,
            ),
        ),
    ],
)
def test_the_names_are_those_of_the_extra(extra: str, modules: tuple[str, ...]) -> None:
    """Each requirement is looked for, and nothing that no requirement brings."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    named = {canonicalize_name(Requirement(line).name) for line in lines}
    brought = metadata.packages_distributions()
    found = {name: {canonicalize_name(one) for one in brought[name]} for name in modules}
    assert named <= set().union(*found.values())
    indirect = {"spacy", "tldextract", "tokenizers", "safetensors"}  # presidio's and transformers'
    assert [name for name, by in found.items() if not by & (named | indirect)] == []


def test_what_is_missing_is_told_without_importing_the_rest() -> None:
    assert packages.missing(["json", "no_such_module", "another_of_these"]) == [
        "another_of_these",
        "no_such_module",
    ]


@pytest.mark.parametrize("content", [None, "", "{}", "[]", "not json"])
def test_an_environment_that_is_not_ours_has_no_installer(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "file").write_text(content)
    assert packages.installer(tmp_path / "file") is None


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(300):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def an_installer(folder: Path, script: str) -> Path:
    (folder / "installer").write_text(json.dumps(["sh", "-c", script]))
    return folder / "installer"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a module of a folder on the path would be, but is not yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / f"tollgate_test_{tmp_path.name.replace('-', '_')}.py"


async def test_it_is_installed_where_that_is_ours_to_do(
    tmp_path: Path, module: Path, caplog: pytest.LogCaptureFixture
) -> None:
    installer = an_installer(tmp_path, f"echo downloading half the world; touch '{module}'")
    with caplog.at_level(logging.INFO):
        await packages.provide([module.stem, "json"], failed=pytest.fail, path=installer)
    assert packages.missing([module.stem]) == []
    said = [record.getMessage() for record in caplog.records]
    assert module.stem in said[0] and "on_error" in said[0] and said[1:] == ["downloading half the world"]
    sys.modules.pop(module.stem, None)


async def test_an_installation_that_fails_is_tried_again(
    tmp_path: Path, module: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packages, "_INSTALL_AGAIN", Backoff(0.01, most=600.0))
    tried = tmp_path / "tried"
    script = f"if [ -e '{tried}' ]; then touch '{module}'; else touch '{tried}'; exit 1; fi"
    failures: list[int] = []
    await packages.provide(
        [module.stem], failed=lambda: failures.append(1), path=an_installer(tmp_path, script)
    )
    assert failures == [1] and packages.missing([module.stem]) == []


async def test_one_that_does_not_bring_what_is_missing_is_not_run_for_ever(
    tmp_path: Path, module: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await packages.provide([module.stem], failed=pytest.fail, path=an_installer(tmp_path, "exit 0"))
    assert "did not bring" in caplog.text


async def test_what_is_there_while_it_is_installed_is_waited_for(tmp_path: Path) -> None:
    """Its files come one by one, and some of them can be imported already."""
    unfinished, asked = tmp_path / packages.UNFINISHED, tmp_path / "asked"
    unfinished.touch()
    installer = an_installer(tmp_path, f"touch '{asked}'; rm '{unfinished}'")
    await packages.provide(["json"], failed=pytest.fail, path=installer)
    assert asked.exists()


async def test_elsewhere_one_line_says_what_to_do(
    tmp_path: Path, module: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await packages.provide([module.stem], failed=pytest.fail, path=tmp_path / "none")
    (record,) = caplog.records
    assert module.stem in record.getMessage() and packages.install_command("guards") in record.getMessage()


async def test_whoever_ends_our_group_does_not_end_it_and_a_cancelled_one_is_asked_to_end(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    script = f"trap 'echo asked > {log}; exit 1' TERM; ps -o sid= -p $$ ; while :; do sleep 0.02; done"
    lines: asyncio.Queue[str] = asyncio.Queue()
    running = asyncio.create_task(packages.install(("sh", "-c", script), lines.put_nowait))
    session = int(await lines.get())
    assert session != os.getsid(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(log.exists)
    # It leads its session. The loop is to see its end, or another test is blamed for what was left open.
    await until(lambda: not Path(f"/proc/{session}").exists())
    await asyncio.sleep(0.1)
