"""How a person is told to get an extra: by what works where this runs, never by a name that others have too."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import engine.extras
import gateway.extras

ROOT = Path(__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip", "install")
BOTH = pytest.mark.parametrize("module", [gateway.extras, engine.extras], ids=["gateway", "engine"])
METADATA = """\
Metadata-Version: 2.4
Name: tollgate-gateway
Version: 9
Requires-Dist: orjson>=3.10
Provides-Extra: postgres
Requires-Dist: psycopg[binary]<4,>=3.2; extra == "postgres"
Provides-Extra: s3
Requires-Dist: botocore>=1.40; extra == "s3"
"""


def test_engine_and_gateway_say_the_same() -> None:
    texts = [(ROOT / package / "extras.py").read_text() for package in ("gateway", "engine")]
    assert len({re.sub("(gateway|engine)/extras.py", "", text) for text in texts}) == 1


@BOTH
def test_in_a_checkout_it_is_the_checkouts_extra(module: ModuleType) -> None:
    assert shlex.split(module.install_command("postgres")) == [*PIP, "-e", f"{ROOT}[postgres]"]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's folder in an environment that a wheel was installed into."""
    info = tmp_path / "site packages" / "tollgate_gateway-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(METADATA)
    monkeypatch.syspath_prepend(str(info.parent))
    return info.parent / "gateway"


@BOTH
def test_installed_from_a_wheel_it_is_the_wheels_while_that_is_there(
    module: ModuleType, installed: Path, tmp_path: Path
) -> None:
    wheel = tmp_path / "a folder" / "tollgate_gateway-9-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    told = installed.parent / "tollgate_gateway-9.dist-info" / "direct_url.json"
    told.write_text(json.dumps({"url": wheel.as_uri(), "archive_info": {}}))
    assert shlex.split(module.install_command("s3", installed)) == [*PIP, f"{wheel}[s3]"]
    wheel.unlink()
    assert shlex.split(module.install_command("s3", installed)) == [*PIP, "botocore>=1.40"]


@BOTH
def test_without_a_source_it_is_what_the_extra_stands_for(module: ModuleType, installed: Path) -> None:
    assert shlex.split(module.install_command("postgres", installed)) == [*PIP, "psycopg[binary]<4,>=3.2"]


@BOTH
def test_an_environment_without_pip_is_named_to_another(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    command = shlex.split(module.install_command("s3"))
    assert command == ["pip", "--python", sys.executable, "install", "-e", f"{ROOT}[s3]"]


@BOTH
def test_another_project_in_the_parent_folder_is_not_ours(module: ModuleType, installed: Path) -> None:
    (installed.parent / "pyproject.toml").write_text('[project]\nname = "tollgate"\n')
    assert "pyproject" not in module.install_command("s3", installed) and "-e" not in module.install_command(
        "s3", installed
    )


def test_pip_understands_what_is_told() -> None:
    """Really run, but for the installation itself."""
    command = [*shlex.split(gateway.extras.install_command("s3")), "--dry-run", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--quiet"], capture_output=True, text=True, cwd="/"
    )
    assert "Invalid requirement" not in done.stderr and "does not provide the extra" not in done.stderr


def test_nothing_we_ship_tells_to_fetch_the_other_project() -> None:
    command = [
        "git",
        "grep",
        "-nE",
        r"install '?\"?tollgate(\[| |'|$)|`?tollgate\[",
        "--",
        ".",
        ":!CHANGELOG.md",
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert [line for line in found.splitlines() if not line.startswith("tests/test_extras.py")] == []
