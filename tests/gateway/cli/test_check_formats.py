"""``tollgate check`` for programs: JSON, SARIF that GitHub's code scanning takes, and workflow commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.__main__ import main
from tests.import_graph import ROOT

WRONG = """\
version: 1
backends:
  one: {kind: openai, base_url: http://one/v1, apikey: x}
models:
  m: {targets: [{backend: tow, model: "50%: x, y"}], timeouts: {total: 5}}
"""
GOOD = """\
version: 1
backends: {one: {kind: openai, base_url: http://one/v1, api_key: "${NOT_SET}"}}
models: {m: {targets: [{backend: one, model: x}], spill_over: true}}
"""
TEXT = {"type": "string", "minLength": 1}
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["$schema", "version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name", "rules"],
                                "properties": {
                                    "rules": {
                                        "items": {
                                            "required": ["id", "shortDescription"],
                                            "properties": {
                                                "id": TEXT,
                                                "shortDescription": {
                                                    "required": ["text"],
                                                    "properties": {"text": TEXT},
                                                },
                                            },
                                        }
                                    }
                                },
                            }
                        },
                    },
                    "results": {
                        "items": {
                            "required": ["ruleId", "ruleIndex", "level", "message", "locations"],
                            "properties": {
                                "ruleId": TEXT,
                                "level": {"enum": ["error", "warning", "note", "none"]},
                                "message": {"required": ["text"], "properties": {"text": TEXT}},
                                "locations": {
                                    "minItems": 1,
                                    "items": {
                                        "required": ["physicalLocation"],
                                        "properties": {
                                            "physicalLocation": {
                                                "required": ["artifactLocation"],
                                                "properties": {
                                                    "artifactLocation": {
                                                        "required": ["uri"],
                                                        "properties": {
                                                            "uri": {
                                                                "type": "string",
                                                                "pattern": "^[^ \\\\]+$",
                                                            }
                                                        },
                                                    },
                                                    "region": {
                                                        "required": ["startLine"],
                                                        "properties": {
                                                            "startLine": {"type": "integer", "minimum": 1}
                                                        },
                                                    },
                                                },
                                            }
                                        },
                                    },
                                },
                            },
                        }
                    },
                },
            },
        },
    },
}
"""What SARIF 2.1.0's schema, and GitHub's code scanning beyond it, want of a log."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my policy").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)
    return tmp_path / "my policy" / "gateway.yaml"


def told(capsys: pytest.CaptureFixture[str], format: str) -> tuple[int, str]:
    code = main(["check", "--format", format, "my policy"])
    return code, capsys.readouterr().out


def test_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here.write_text(WRONG)
    code, out = told(capsys, "json")
    found = json.loads(out)
    assert (code, found["valid"], found["folder"]) == (1, False, "my policy")
    problems = [(one["severity"], one["rule"], one["line"], one["path"]) for one in found["problems"]]
    assert problems == [
        ("error", "unknown-key", 3, "backends.one.apikey"),
        ("error", "unknown-backend", 5, "models.m.targets[0].backend"),
        ("error", "invalid-value", 5, "models.m.timeouts.total"),
    ]
    assert main(["check", "--json", "my policy"]) == 1
    assert json.loads(capsys.readouterr().out) == found


def test_json_of_a_good_policy(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here.write_text(GOOD)
    code, out = told(capsys, "json")
    found = json.loads(out)
    assert (code, found["valid"]) == (0, True)
    assert [(one["severity"], one["rule"]) for one in found["problems"]] == [
        ("warning", "spill-over-to-nobody")
    ]
    assert found["disabled_backends"] == {"one": "NOT_SET is not set"}
    assert found["idle_models"] == ["m"]


@pytest.mark.parametrize(("policy", "levels"), [(WRONG, ["error"] * 3), (GOOD, ["warning"])])
def test_sarif(here: Path, capsys: pytest.CaptureFixture[str], policy: str, levels: list[str]) -> None:
    here.write_text(policy)
    code, out = told(capsys, "sarif")
    log = json.loads(out)
    assert code == ("error" in levels)
    assert [error.message for error in Draft202012Validator(SARIF).iter_errors(log)] == []
    [run] = log["runs"]
    assert [one["level"] for one in run["results"]] == levels
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"] == {"uri": "my%20policy/gateway.yaml", "uriBaseId": "%SRCROOT%"}
        assert place["region"]["startLine"] in (3, 5)


def test_sarif_of_a_folder_that_is_not_there(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "none"
    assert main(["check", "--format", "sarif", str(elsewhere)]) == 1
    log = json.loads(capsys.readouterr().out)
    assert [error.message for error in Draft202012Validator(SARIF).iter_errors(log)] == []
    [result] = log["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"] == {"artifactLocation": {"uri": elsewhere.as_uri()}}


def test_workflow_commands_of_github(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here.write_text(WRONG.replace("tow", "'to\\nw, %'").replace("'", '"'))
    code, out = told(capsys, "github")
    lines = out.splitlines()
    assert code == 1 and all(line.startswith("::error file=my policy/gateway.yaml,line=") for line in lines)
    assert lines[0].startswith(
        "::error file=my policy/gateway.yaml,line=3,title=unknown-key::backends.one.apikey: "
    )
    assert any("no backend is named 'to%0Aw, %25'" in line for line in lines)
    here.write_text(GOOD)
    code, out = told(capsys, "github")
    warning, good = out.splitlines()
    assert code == 0 and good == "my policy: good"
    assert warning.startswith("::warning file=my policy/gateway.yaml,line=3,title=spill-over-to-nobody::")


def test_a_file_that_is_no_yaml(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here.write_text("version: 1\nbackends: {one: [}\n")
    assert [one["rule"] for one in json.loads(told(capsys, "json")[1])["problems"]] == ["yaml"]
    here.write_text(
        "version: 1\nbackends: {one: {kind: openai, base_url: '${NOT_SET}'}}\nmodels: {m: {targets: []}}\n"
    )
    assert "unset-variable" in [one["rule"] for one in json.loads(told(capsys, "json")[1])["problems"]]


def test_the_hook_and_the_workflow_run_the_command() -> None:
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert main([*hook["entry"].split()[1:], str(ROOT / "policies")]) == 0
    assert hook["language"] == "python" and hook["args"] == ["policies"] and hook["pass_filenames"] is False
    jobs = yaml.safe_load((ROOT / "deploy" / "github" / "check-policy.yml").read_text())["jobs"]
    commands = [
        step["run"]
        for job in jobs.values()
        for step in job["steps"]
        if "tollgate check" in step.get("run", "")
    ]
    assert [command.split(" policies")[0] for command in commands] == [
        "tollgate check --format github",
        "tollgate check --format sarif",
    ]
