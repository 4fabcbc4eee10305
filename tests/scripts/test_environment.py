"""scripts/environment.py: when an environment counts as done, which torch it takes, what it tells the person."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from types import ModuleType
from typing import Any
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment", ROOT / "scripts" / "environment.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(ROOT / "scripts"))  # as where the script is run
    spec.loader.exec_module(module)
    sys.path.remove(str(ROOT / "scripts"))
    return module


script = load()
pip_output = sys.modules["pip_output"]


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
    made.stamps.mkdir()
    return made


def install(environment: Any, *stages: str) -> None:
    """As if these stages had been installed."""
    for stage in stages:
        (environment.stamps / stage).write_text(environment.wanted_stamp(stage))


def put_nvidia_smi(folder: Path, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH whose only program is an nvidia-smi that ends with `status`."""
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\nexit {status}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_without_a_stamp_nothing_is_done(environment: Any) -> None:
    assert environment.missing("dev") == ["serve", "guards", "dev"]
    assert environment.missing("serve") == ["serve"]


def test_a_stage_adds_to_those_before_it(environment: Any) -> None:
    install(environment, "serve")
    assert environment.missing("serve") == []
    assert environment.missing("dev") == ["guards", "dev"]


def test_serving_brings_neither_triton_nor_guards_nor_linters(environment: Any) -> None:
    names = {
        stage: {Requirement(line).name for line in environment.requirements(stage)} for stage in script.STAGES
    }
    assert "torch" in names["serve"] and "tollgate" not in set().union(*names.values())
    assert names["serve"].isdisjoint(
        {"triton", "transformers", "presidio-analyzer", "ruff", "mypy", "pytest"}
    )
    assert {"transformers", "presidio-analyzer", "faiss-cpu"} <= names["guards"]
    assert {"triton", "ruff", "mypy", "pytest"} <= names["dev"]
    extras = environment.project()["project"]["optional-dependencies"]
    assert set(extras) == {extra for group in script.STAGES.values() for extra in group}


@pytest.mark.parametrize("change", ["constraints", "dependency", "python", "moved"])
def test_a_changed_input_makes_it_stale(environment: Any, tmp_path: Path, change: str) -> None:
    install(environment, *script.STAGES)
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
    assert environment.missing("dev") == ["serve", "guards", "dev"]


def test_a_stage_is_not_made_stale_by_what_another_adds(environment: Any) -> None:
    install(environment, *script.STAGES)
    project = environment.root / "pyproject.toml"
    project.write_text(project.read_text().replace("dev = [", 'dev = [\n"left-pad",', 1))
    assert environment.missing("dev") == ["dev"]


def test_tool_settings_do_not_cause_an_install(environment: Any) -> None:
    install(environment, *script.STAGES)
    project = environment.root / "pyproject.toml"
    project.write_text(project.read_text().replace("timeout = 900", "timeout = 901"))
    assert environment.missing("dev") == []


def test_an_interrupted_install_is_started_over(environment: Any) -> None:
    install(environment, *script.STAGES)
    environment.unfinished.touch()
    assert not environment.is_sound()
    assert environment.missing("serve") == ["serve"]


def test_an_environment_that_a_gateway_runs_in_is_not_made_anew(environment: Any) -> None:
    install(environment, "serve")
    environment.unfinished.touch()
    with pytest.raises(SystemExit, match="stop the gateway"):
        environment.update(["guards"], running=True)
    assert environment.python.exists()


def test_ctrl_c_while_the_environment_is_made_is_one_line(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "scripts").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "scripts/environment.py", "scripts/pip_output.py"):
        (root / name).write_text((ROOT / name).read_text())
    command = [sys.executable, str(root / "scripts" / "environment.py"), "serve"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None and "Creating .venv" in process.stdout.readline()
        while not (root / ".venv" / "bin").is_dir():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to all of the group
        assert process.stdout.read().strip() == "Interrupted. Run the same command again to finish."
        assert process.wait(60) == 1


PIP = """\
#!/bin/sh
# pip as far as this script knows it: says each line, a second apart where it is asked to be slow.
{lines}
"""


@pytest.mark.parametrize(
    ("lines", "worked", "sound"),
    [
        ("echo Collecting a; exit 0", True, True),
        ("echo Collecting a; exit 1", False, True),
        (f"echo '{script.UNPACKING} a'; exit 0", True, True),
        (f"echo '{script.UNPACKING} a'; exit 1", False, False),
    ],
    ids=["done", "nothing found", "unpacked", "failed while unpacking"],
)
def test_a_failure_before_anything_is_unpacked_leaves_the_environment_sound(
    environment: Any, lines: str, worked: bool, sound: bool
) -> None:
    environment.python.write_text(PIP.format(lines=lines))
    assert environment.pip() is worked
    assert environment.unfinished.exists() is not sound


@pytest.mark.parametrize(("unpacking", "finished"), [(True, True), (False, False)])
def test_told_to_end_it_ends_before_unpacking_or_after_it(
    environment: Any, tmp_path: Path, unpacking: bool, finished: bool
) -> None:
    """As when a gateway is stopped that has its packages installed; this is what makes that safe."""
    done = tmp_path / "done"
    said = f"{script.UNPACKING} a" if unpacking else "Collecting a"
    lines = (
        f"trap 'exit 130' INT; echo '{said}'; for i in 1 2 3 4 5 6 7 8; do sleep 0.1; done; echo > '{done}'"
    )
    if not unpacking:
        lines = f"trap 'exit 130' INT; echo '{said}'; while :; do sleep 0.1; done"
    environment.python.write_text(PIP.format(lines=lines))
    code = (
        "import importlib.util, pathlib, signal, sys\n"
        "spec = importlib.util.spec_from_file_location('environment', sys.argv[1])\n"
        "sys.path.insert(0, str(pathlib.Path(sys.argv[1]).parent))\n"
        "script = importlib.util.module_from_spec(spec); spec.loader.exec_module(script)\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "script.TIDY_S = 0.2\n"
        "import pip_output; pip_output.news_in = lambda line: line.strip() or None\n"
        "script.Environment(pathlib.Path(sys.argv[2])).pip()\n"
    )
    command = [sys.executable, "-c", code, str(ROOT / "scripts" / "environment.py"), str(environment.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None and said in process.stdout.readline()
        process.terminate()
        assert process.wait(300) != 0
    assert done.exists() is finished
    assert not environment.unfinished.exists()


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


@pytest.mark.usefixtures("without_gpu")
def test_where_pip_finds_the_cpu_build_by_itself_nothing_is_told(
    environment: Any, cpu_index: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environment.create()
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert not environment.finds_cpu_torch(), "no index at all is the ordinary one"
    monkeypatch.setenv("PIP_INDEX_URL", cpu_index)
    environment.install_small_torch()
    assert capfd.readouterr().out == ""


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
    assert pip_output.news_in(line) == told


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = tmp_path / "tmp" / "pip-unpack-x"
    downloads.mkdir(parents=True)
    output, drawn = script.PipOutput(tmp_path, downloads.parent, Terminal()), []
    monkeypatch.setattr(output, "tick", lambda: drawn.append(output._drawing(output.started + 7)))
    output.line("Collecting aiohttp>=3.12\n")
    output.line("  Downloading https://h/aiohttp-3.12%2Bx-cp311.whl (1.7 MB)\n")
    (downloads / "aiohttp-3.12+x-cp311.whl").write_bytes(bytes(425_000))
    output.tick()
    output.line(f"{script.UNPACKING} aiohttp, attrs\n")
    (tmp_path / "aiohttp-3.12.dist-info").mkdir()
    output.tick()
    assert drawn == [
        "  1 packages found 7 s",
        f"  downloading aiohttp [{'.' * 24}] 0.0 of 1.7 MB 7 s",
        f"  downloading aiohttp [{'#' * 6}{'.' * 18}] 0.4 of 1.7 MB 7 s",
        f"  unpacking [{'.' * 24}] 0 of 2 packages 7 s",
        f"  unpacking [{'#' * 12}{'.' * 12}] 1 of 2 packages 7 s",
    ]


def test_pip_keeps_its_files_where_their_growth_is_seen(environment: Any, tmp_path: Path) -> None:
    """The real pip of this Python, and a wheel that comes slowly."""
    name, size = "slow-1.0-py3-none-any.whl", 6_000_000
    index = tmp_path / "index" / "slow"
    index.mkdir(parents=True)
    with ZipFile(index / name, "w") as wheel:
        wheel.writestr("slow-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n")
        wheel.writestr(
            "slow-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("slow-1.0.dist-info/RECORD", "")
        wheel.writestr("slow/data", bytes(size))
    halfway = Event()

    class Slow(Quiet):
        def copyfile(self, source: Any, outputfile: Any) -> None:
            outputfile.write(source.read(size * 3 // 5))
            outputfile.flush()
            halfway.wait(60)
            outputfile.write(source.read())

    drawn: list[str] = []

    class Watched(script.PipOutput):  # type: ignore[misc,name-defined]
        def tick(self) -> None:
            drawn.append(self._drawing(self.started))
            if re.search(r"3\.[56] of 6\.0 MB", drawn[-1]):
                halfway.set()

    environment.create()
    handler = partial(Slow, directory=str(tmp_path / "index"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, pytest.MonkeyPatch.context() as patch:
        Thread(target=server.serve_forever, daemon=True).start()
        patch.setattr(script, "PipOutput", Watched)
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("PIP_NO_CACHE_DIR", "1")
        try:
            assert environment.pip("--index-url", f"http://127.0.0.1:{server.server_port}", "slow")
        finally:
            halfway.set()
            server.shutdown()
    assert any("downloading slow [##############..........]" in line for line in drawn), drawn


def test_elsewhere_nothing_moves(tmp_path: Path) -> None:
    out = io.StringIO()
    output = script.PipOutput(tmp_path, tmp_path, out)
    output.line("Collecting aiohttp>=3.12\n")
    output.tick()
    assert out.getvalue() == ""
    output.said -= 60
    output.tick()
    assert "still at it" in out.getvalue() and "\r" not in out.getvalue()


BACKEND = """\
import os, tomllib, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = tomllib.load(open("pyproject.toml", "rb"))["project"]["name"].replace("-", "_")
    info = f"{name}-1.dist-info"
    with zipfile.ZipFile(os.path.join(folder, f"{name}-1-py3-none-any.whl"), "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\\nName: {name}\\nVersion: 1\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\\ntollgate = gateway:main\\n")
        wheel.writestr(f"{name}.pth", os.getcwd())
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name}-1-py3-none-any.whl"
"""
"""Of a project as ours, which needs nothing from an index."""


@pytest.mark.usefixtures("without_gpu")
def test_the_old_name_makes_room_for_the_new(environment: Any, capfd: pytest.CaptureFixture[str]) -> None:
    environment.create()
    project = environment.root / "pyproject.toml"
    (environment.root / "backend.py").write_text(BACKEND)
    (environment.root / "gateway.py").write_text("def main(): print('it serves')\n")
    for name in ("tollgate", "tollgate-gateway"):
        build = 'requires = []\nbuild-backend = "backend"\nbackend-path = ["."]'
        project.write_text(f'[project]\nname = "{name}"\nversion = "1"\n[build-system]\n{build}\n')
        assert environment.pip("--no-deps", "--editable", "."), environment.log.read_text()
    environment.leave_old_name()
    assert "Replacing the package tollgate" in capfd.readouterr().out
    left = [found.name for found in environment.packages().glob("tollgate*.dist-info")]
    assert left == ["tollgate_gateway-1.dist-info"]
    command = [str(environment.venv / "bin" / "tollgate")]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, env={}).stdout == "it serves\n"
    environment.leave_old_name()
    assert capfd.readouterr().out == "", "once"
