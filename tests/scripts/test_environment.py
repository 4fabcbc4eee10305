"""scripts/environment.py: when an environment counts as done, which torch it takes, what it tells the person."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment", ROOT / "scripts" / "environment.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load()


@pytest.fixture
def environment(tmp_path: Path) -> Any:
    """The environment of a project of its own, not yet installed."""
    root = tmp_path / "a project"
    root.mkdir()
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).write_text((ROOT / name).read_text())
    made = script.Environment(root)
    made.python.parent.mkdir(parents=True)
    made.python.touch(mode=0o755)
    return made


def put_nvidia_smi(folder: Path, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH whose only program is an nvidia-smi that ends with `status`."""
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\nexit {status}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_without_a_stamp_nothing_is_done(environment: Any) -> None:
    assert not environment.is_current()


def test_a_stamp_from_the_same_inputs_is_current(environment: Any) -> None:
    environment.stamp.write_text(environment.wanted_stamp())
    assert environment.is_current()


@pytest.mark.parametrize("change", ["constraints", "dependency", "python", "moved"])
def test_a_changed_input_makes_it_stale(environment: Any, tmp_path: Path, change: str) -> None:
    environment.stamp.write_text(environment.wanted_stamp())
    project = environment.root / "pyproject.toml"
    if change == "constraints":
        environment.constraints.write_text(environment.constraints.read_text() + "left-pad==1.0\n")
    elif change == "dependency":
        project.write_text(
            project.read_text().replace("dependencies = [", 'dependencies = [\n"left-pad",', 1)
        )
    elif change == "python":
        environment.python.unlink()
    else:
        environment = script.Environment(environment.root.rename(tmp_path / "elsewhere"))
    assert not environment.is_current()


def test_tool_settings_do_not_cause_an_install(environment: Any) -> None:
    environment.stamp.write_text(environment.wanted_stamp())
    project = environment.root / "pyproject.toml"
    project.write_text(project.read_text().replace("timeout = 120", "timeout = 121"))
    assert environment.is_current()


def test_an_interrupted_install_is_started_over(environment: Any) -> None:
    environment.unfinished.touch()
    assert not environment.is_sound()


@pytest.mark.parametrize(("status", "found"), [(0, True), (9, False)])
def test_a_gpu_counts_only_if_its_driver_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, found: bool
) -> None:
    put_nvidia_smi(tmp_path / "bin", status, monkeypatch)
    assert script.has_nvidia_gpu() is found


def test_no_nvidia_smi_is_no_gpu(environment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert script.has_nvidia_gpu() is False


@pytest.fixture
def cpu_index(tmp_path: Path) -> Iterator[str]:
    """A real package index on a free port that holds one wheel: an empty torch, in a build for the CPU."""
    name = "torch-2.13.0+cpu-py3-none-any.whl"
    folder = tmp_path / "index" / "torch"
    folder.mkdir(parents=True)
    info = "torch-2.13.0+cpu.dist-info"
    with ZipFile(folder / name, "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\nRequires-Dist: numpy\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    handler = partial(Quiet, directory=str(tmp_path / "index"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Nothing on the test's stderr."""


@pytest.fixture
def without_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, and pip as it comes."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PATH", str(tmp_path))


def create_without_pip(environment: Any) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment.venv)], check=True
    )


@pytest.mark.usefixtures("without_gpu")
def test_torch_index_gives_torch_alone_or_a_notice(
    environment: Any, cpu_index: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environment.create()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: every connection is refused
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("TORCH_INDEX", nowhere)
        environment.install_small_torch()
        assert "NOTICE: nothing usable at TORCH_INDEX" in capfd.readouterr().out
        assert not environment.has_torch()

        monkeypatch.setenv("TORCH_INDEX", cpu_index)
        environment.install_small_torch()
        assert "NOTICE" not in capfd.readouterr().out
        assert environment.has_torch()

        # Once it is there, no index is asked again.
        monkeypatch.setenv("TORCH_INDEX", nowhere)
        environment.install_small_torch()
        assert capfd.readouterr().out == ""


def test_with_a_gpu_torch_index_is_left_alone(
    environment: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    create_without_pip(environment)
    put_nvidia_smi(tmp_path / "bin", 0, monkeypatch)
    monkeypatch.setenv("TORCH_INDEX", "http://127.0.0.1:9")
    environment.install_small_torch()
    assert "not used" in capfd.readouterr().out
    assert not environment.log.exists()


@pytest.mark.usefixtures("without_gpu")
def test_the_size_is_told_beforehand(
    environment: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    create_without_pip(environment)
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    environment.install_small_torch()
    said = capfd.readouterr().out
    assert "several GB" in said and "TORCH_INDEX=" in said


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "Downloading torch-2.13.0-cp312-cp312-linux.whl (532.1 MB)",
            "  downloading torch 2.13.0 (532.1 MB)",
        ),
        (
            "Downloading http://h:1/torch/torch-2.13.0%2Bcpu-cp311-linux.whl (1.1 GB)",
            "  downloading torch 2.13.0+cpu (1.1 GB)",
        ),
        ("  Downloading uvloop-0.23.0-cp312-cp312-manylinux.whl (4.2 MB)", None),
        ("  Downloading h11-0.16.0-py3-none-any.whl.metadata (8.3 kB)", None),
        ("Installing collected packages: a, b, c", "  unpacking 3 packages"),
        ("Collecting aiohttp>=3.12", None),
    ],
)
def test_pips_chatter_is_cut_to_what_matters(line: str, told: str | None) -> None:
    assert script.news_in(line) == told
