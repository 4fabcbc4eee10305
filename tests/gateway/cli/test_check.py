from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.__main__ import main

GOOD = """\
version: 1
backends:
  one: {kind: openai, base_url: http://one/v1, api_key: "${SOME_KEY}"}
  two: {kind: openai, base_url: http://two/v1}
models:
  m: {targets: [{backend: one, model: m}]}
  n: {targets: [{backend: one, model: n}, {backend: two, model: n}]}
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    monkeypatch.delenv("TOLLGATE_POLICIES", raising=False)


def test_a_good_folder_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gateway.yaml").write_text(GOOD)
    assert main(["check", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}: good (1 file, 2 backends, 2 models, 0 keys)",
        "backend 'one' is disabled: SOME_KEY is not set",
        "model 'm' has no backend that is enabled",
    ]


def test_models_without_a_price_under_a_budget_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "tenants: {a: {budget: {usd_per_day: 1.0}}}\nprices: {n: {input: 1.0, output: 1.0}}\n"
    (tmp_path / "gateway.yaml").write_text(GOOD.replace(', api_key: "${SOME_KEY}"', "") + more)
    assert main(["check", str(tmp_path)]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.startswith(
        f"{tmp_path}/gateway.yaml:6: models.m.targets[0]: 'm' has no price: requests under a budget"
    )
    assert "prices.one/m" in line
    assert line.endswith("(warning)")


def test_prices_out_of_the_catalogue_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gateway.yaml").write_text(
        GOOD.replace("http://two/v1", "https://api.openai.com/v1").replace(
            "backend: two, model: n", "backend: two, model: gpt-4o"
        )
    )
    assert main(["check", str(tmp_path)]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("two/gpt-4o costs what the catalogue says (read 20")
    )


def test_a_file_that_is_not_there_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gateway.yaml").write_text(GOOD + "jwt: [{issuer: i, audience: a, jwks: keys.json}]\n")
    assert main(["check", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/gateway.yaml:8: jwt[0].jwks: there is no file '{tmp_path}/keys.json'"
    ]
    (tmp_path / "keys.json").write_text("{}")
    assert main(["check", str(tmp_path)]) == 0


def test_each_problem_is_a_line_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gateway.yaml").write_text(
        GOOD.replace("two/v1", "two/v1, apikey: 1").replace("backend: two", "backend: tow")
    )
    assert main(["check", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}/gateway.yaml:4: backends.two.apikey: unknown key; did you mean 'api_key'?",
        f"{tmp_path}/gateway.yaml:7: models.n.targets[1].backend: no backend is named 'tow'; did you mean 'two'?",
    ]


def test_without_a_folder_it_takes_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 1
    assert capsys.readouterr().out.startswith("policies: no such folder")
    monkeypatch.setenv("TOLLGATE_POLICIES", "elsewhere")
    assert main(["check"]) == 1
    assert capsys.readouterr().out.startswith("elsewhere: no such folder")


@pytest.mark.parametrize("arguments", [[], ["chekc"], ["check", "a", "b"], ["serve", "--nope"], ["keys"]])
def test_wrong_arguments_exit_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: tollgate" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("tollgate ")


def test_the_command_starts_without_loading_what_only_workers_need() -> None:
    code = "import sys, gateway.__main__; print(*({'uvicorn', 'starlette', 'httpcore', 'redis'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
