from __future__ import annotations

import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.native import library
from tests.sampling import slow

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or shutil.which("cc") is None, reason="Linux and a C compiler"
)


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "seven.c").write_text("int seven(void) { return 7; }\n")
    monkeypatch.setattr(library, "SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    library.load.cache_clear()
    library._version.cache_clear()
    yield
    library.load.cache_clear()
    library._version.cache_clear()


def seven() -> int:
    found = library.load("seven")
    assert found is not None
    return int(found.seven())


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "tollgate" / "native").iterdir())


def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "compiler"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit\n{script}\n')
    program.chmod(stat.S_IRWXU)
    monkeypatch.setenv("CC", str(program))


def test_it_is_compiled_once_and_then_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seven() == 7
    (file,) = kept(tmp_path)
    library.load.cache_clear()
    library._version.cache_clear()
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert seven() == 7
    assert kept(tmp_path) == [file]


def test_another_source_is_another_library(tmp_path: Path) -> None:
    assert seven() == 7
    library.load.cache_clear()
    library._version.cache_clear()
    (tmp_path / "sources" / "seven.c").write_text("int seven(void) { return 8; }\n")
    assert seven() == 8
    assert len(kept(tmp_path)) == 2


def test_another_header_is_another_library(tmp_path: Path) -> None:
    (tmp_path / "sources" / "seven.c").write_text('#include "number.h"\nint seven(void) { return NUMBER; }\n')
    (tmp_path / "sources" / "number.h").write_text("#define NUMBER 7\n")
    assert seven() == 7
    library.load.cache_clear()
    library._version.cache_clear()
    (tmp_path / "sources" / "number.h").write_text("#define NUMBER 8\n")
    assert seven() == 8


def test_another_compiler_and_another_version_of_it_make_other_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault that an upgrade mended must not stay in what is kept."""
    assert seven() == 7
    upgraded = tmp_path / "upgraded"
    for version, answer in (("12.1", 6), ("12.2", 5)):
        upgraded.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo {version} && exit\n'
            f'sed -i "s/return [0-9]/return {answer}/" {tmp_path}/sources/seven.c 2>/dev/null; cc "$@"; done=$?\n'
            f'sed -i "s/return [0-9]/return 7/" {tmp_path}/sources/seven.c; exit $done\n'
        )
        upgraded.chmod(stat.S_IRWXU)
        monkeypatch.setenv("CC", str(upgraded))
        library.load.cache_clear()
        library._version.cache_clear()
        assert seven() == answer
    monkeypatch.delenv("CC")
    library.load.cache_clear()
    library._version.cache_clear()
    assert seven() == 7
    assert len(kept(tmp_path)) == 3


def test_without_a_compiler_there_is_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    with caplog.at_level(logging.INFO, "engine.kernels"):
        assert library.load("seven") is None
    assert "seven.c is not used on this machine" in caplog.text and "no C compiler" in caplog.text


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo in file included from; echo 'seven.c:1: error: no such thing' >&2; exit 1", "no such thing"),
        ("exit 3", "compiler failed"),
        ('for last; do :; done; echo rubbish > "$last"', "compiler|made.o|linked.so"),
        ("sleep 60", "timed out"),
    ],
    ids=["says why", "says nothing", "writes rubbish", "hangs"],
)
def test_a_compiler_that_fails(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "_TIMEOUT", 1)
    compiler(tmp_path, monkeypatch, script)
    with caplog.at_level(logging.INFO, "engine.kernels"):
        assert library.load("seven") is None
    assert any(part in caplog.text for part in said.split("|"))
    assert kept(tmp_path) == []


def test_a_source_that_this_processor_is_not_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "sources" / "seven.c").write_text('#error "the processor has no such instruction"\n')
    with caplog.at_level(logging.INFO, "engine.kernels"):
        assert library.load("seven") is None
    assert "no such instruction" in caplog.text


def test_a_compiler_with_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "env cc -g0")
    assert seven() == 7


@pytest.mark.parametrize("part", [*slow(0, 10, 0.3), 0.9, *slow(0.999)])
def test_a_damaged_library_is_made_anew(part: float, tmp_path: Path) -> None:
    """One that is cut short may load, and be a bus error as soon as it is used: so it is told in a process apart."""
    assert seven() == 7
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    file.unlink()  # The one that is loaded must not change under the process.
    file.write_bytes(whole[: int(part * len(whole)) if part < 1 else int(part)])
    script = (
        "import pathlib, sys\n"
        "from kernels.native import library\n"
        "library.SOURCES = pathlib.Path(sys.argv[1])\n"
        "assert library.load('seven', 'seven').seven() == 7\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "sources")], check=True, timeout=300)
    assert file.read_bytes() == whole


def test_a_library_without_its_functions_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "engine.kernels"):
        assert library.load("seven", "seven", "eight") is None
    assert "it has no function eight" in caplog.text
    assert library.load("seven", "seven") is not None


def test_a_folder_that_others_may_write_is_closed_to_them(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "tollgate" / "native"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert seven() == 7
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_belongs_to_another_user_is_not_loaded(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert seven() == 7
    (file,) = kept(tmp_path)
    os.chown(file if what == "file" else file.parent, 65534, 65534)
    library.load.cache_clear()
    library._version.cache_clear()
    with caplog.at_level(logging.INFO, "engine.kernels"):
        assert seven() == 7
    assert "belongs to user 65534" in caplog.text
    assert what == "folder" or file.stat().st_uid == 0


@pytest.mark.parametrize("what", ["a file", "read-only"])
def test_a_folder_that_cannot_be_written(what: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    if what == "a file":
        cache.write_text("")
    else:
        cache.mkdir(mode=0o500)
        if os.geteuid() == 0:
            pytest.skip("root writes anywhere")
    assert seven() == 7


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", staticmethod(nobody))
    assert seven() == 7


@pytest.mark.parametrize("path", ["reference", "triton"])
def test_who_asks_for_another_path_gets_none(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "path", lambda: path)
    assert library.load("seven") is None


def test_processes_that_start_at_once(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys\n"
        "from kernels.native import library\n"
        "library.SOURCES = pathlib.Path(sys.argv[1])\n"
        "assert library.load('seven').seven() == 7\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "sources")]
    started = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(300) for process in started] == [0, 0, 0]
    assert len(kept(tmp_path)) == 1
