"""The engine is asked whether it would start, before it is started again and again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.policy.engine_options import start_error
from gateway.policy.schema import EngineBackend

POLICY = """\
version: 1
backends:
  own:
    kind: engine
    launch: true
    model: {model}
    args:
      - --max-num-seqs
      - "4"
      - {argument}
models:
  m: {{targets: [{{backend: own, model: m}}]}}
"""


def engine(**more: object) -> EngineBackend:
    return EngineBackend.model_validate({"kind": "engine", "launch": True, **more})


def test_what_would_start_is_let_be(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for good in ({}, {"model": str(tmp_path)}, {"model": "org/on-the-hub"}, {"args": ["--max-model-len=64"]}):
        assert start_error(engine(**good)) is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"args": ["--max-seqs", "4"]}, "unrecognized arguments: --max-seqs 4"),
        ({"args": ["--dtype", "float4"]}, "argument --dtype: invalid choice: 'float4'"),
        ({"args": ["--max-num-seqs", "0"]}, "--max-num-seqs must be at least 1, not 0."),
        ({"args": ["--max-num-seqs"]}, "argument --max-num-seqs: expected one argument"),
        ({"model": "/nowhere/at/all"}, "There is no folder /nowhere/at/all."),
        ({"model": "demmo"}, "There is no folder demmo."),
    ],
)
def test_what_would_not_is_told_in_the_engines_own_words(more: dict[str, object], said: str) -> None:
    assert (start_error(engine(**more)) or "").startswith(f"the engine would not start: {said}")


@pytest.mark.parametrize(
    ("model", "argument", "said"),
    [
        (
            "demo",
            "--max-sequences",
            "gateway.yaml:10: backends.own.args[2]: the engine would not start: unrecognized",
        ),
        (
            "/nowhere",
            "--deterministic",
            "gateway.yaml:6: backends.own.model: the engine would not start: There is no",
        ),
    ],
)
def test_check_names_the_line_and_serve_does_not_begin(
    tmp_path: Path, model: str, argument: str, said: str
) -> None:
    (tmp_path / "gateway.yaml").write_text(POLICY.format(model=model, argument=argument))
    for command, begins in (
        (["check", str(tmp_path)], f"{tmp_path}/{said}"),
        (["serve", "--policies", str(tmp_path), "--port", "0"], "backend 'own': the engine would not start"),
    ):
        ran = subprocess.run(
            [sys.executable, "-m", "gateway", *command],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ran.returncode == 1, ran
        assert any(begins in line for line in (ran.stdout + ran.stderr).splitlines()), ran
