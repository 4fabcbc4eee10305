"""A gateway in an environment without the packages of an extra: what would be lost is refused, all else is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.conftest import METRICS_TOKEN
from tests.e2e.gateways import serving
from tests.serving import KEY, a_policy, chat

ROOT = Path(__file__).parents[2]
HIDING = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name in {names!r} or name.startswith(tuple(one + "." for one in {names!r})):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hiding())
"""
DATABASE = "postgresql://nobody@127.0.0.1:1/none"
OPERATOR = {"authorization": f"Bearer {METRICS_TOKEN}"}


def without(folder: Path, *names: str) -> dict[str, str]:
    """An environment in whose processes these packages cannot be imported."""
    hidden = folder / "hidden"
    hidden.mkdir(parents=True)
    (hidden / "sitecustomize.py").write_text(HIDING.format(names=names))
    return {"PYTHONPATH": os.pathsep.join((str(hidden), str(ROOT)))}


def policy(**more: Any) -> dict[str, Any]:
    return a_policy("http://127.0.0.1:1/v1", **more)


def gateway(tmp_path: Path, written: dict[str, Any], *command: str, **env: str) -> tuple[int, str]:
    """A command that ends by itself, and what it says."""
    policies = tmp_path / "policies"
    policies.mkdir(exist_ok=True)
    (policies / "gateway.yaml").write_text(yaml.safe_dump(written))
    ran = subprocess.run(
        [sys.executable, "-m", "gateway", *command, str(policies)],
        env={**os.environ, "TOLLGATE_STATE_DIR": str(tmp_path / "state"), **env},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    "command", [("check",), ("serve", "--port", "0", "--policies")], ids=["check", "serve"]
)
def test_a_ledger_without_its_driver_is_refused(tmp_path: Path, command: tuple[str, ...]) -> None:
    code, said = gateway(
        tmp_path, policy(ledger={"store": DATABASE}), *command, **without(tmp_path, "psycopg")
    )
    assert code == 1
    assert "gateway.yaml:" in said and "nothing can be recorded: psycopg is not installed" in said
    assert "[postgres]" in said


def test_a_driver_that_cannot_be_loaded_is_none(tmp_path: Path) -> None:
    """As psycopg is without the library below it."""
    code, said = gateway(tmp_path, policy(ledger={"store": DATABASE}), "check", PSYCOPG_IMPL="nosuch")
    assert code == 1 and "[postgres]" in said
    assert "nothing can be recorded: psycopg is installed, and cannot be used (" in said


def test_check_warns_of_what_else_is_missing(tmp_path: Path) -> None:
    written = policy(files={"store": "s3://bucket"}, telemetry={"endpoint": "http://127.0.0.1:1"})
    env = without(tmp_path, "botocore", "opentelemetry")
    code, said = gateway(tmp_path, written, "check", **env)
    assert code == 0
    for words in ("no files can be kept: botocore", "[s3]", "no traces are sent", "[otel]"):
        assert words in said


def test_a_running_gateway_says_what_is_missing_and_keeps_its_ledger(tmp_path: Path) -> None:
    written = policy(files={"store": "s3://bucket"}, telemetry={"endpoint": "http://127.0.0.1:1"})
    hidden = without(tmp_path / "x", "botocore", "opentelemetry", "psycopg")
    with (
        serving(tmp_path / "gateway", written, **hidden) as url,
        httpx.Client(base_url=url, timeout=300, verify=False) as http,
    ):
        ready = http.get("/readyz", headers=OPERATOR)
        assert ready.status_code == 200
        extras = ready.json()["extras"]
        assert "botocore is not installed" in extras["files.store"]
        assert "[otel]" in extras["telemetry.endpoint"]
        assert "extras" not in http.get("/readyz").json()  # for the operator
        log = tmp_path / "gateway" / "log"
        assert "no files can be kept: botocore" in log.read_text()
        # An edit by which nothing would be recorded any more is not put in force.
        file = tmp_path / "gateway" / "policies" / "gateway.yaml"
        file.write_text(yaml.safe_dump({**written, "ledger": {"store": DATABASE}}))
        while "nothing can be recorded" not in log.read_text():
            http.get("/healthz")
        assert http.get("/readyz").status_code == 200
        answer = http.post(
            "/v1/chat/completions", json=chat("fake"), headers={"authorization": f"Bearer {KEY}"}
        )
        assert answer.status_code == 200
        told = ""
        while "acme" not in told:  # it is written a little later
            command = [sys.executable, "-m", "gateway", "usage", "--ledger"]
            ledger = str(tmp_path / "gateway" / "state" / "ledger.sqlite")
            told = subprocess.run([*command, ledger], capture_output=True, text=True, timeout=300).stdout
