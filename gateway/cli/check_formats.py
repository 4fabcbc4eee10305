"""What ``tollgate check`` found, for programs: JSON, SARIF 2.1.0, and the workflow commands of GitHub Actions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from gateway.policy.problems import Problem
from gateway.version import version

Level = Literal["error", "warning"]
_SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


@dataclass(frozen=True, slots=True)
class Report:
    folder: Path
    errors: Sequence[Problem]
    warnings: Sequence[Problem] = ()
    disabled: Mapping[str, str] | None = None
    """Backends that would not be used, and why."""
    idle: Sequence[str] = ()
    """Models that none of the others would serve."""

    @property
    def found(self) -> Iterator[tuple[Level, Problem]]:
        yield from (("error", problem) for problem in self.errors)
        yield from (("warning", problem) for problem in self.warnings)


def as_json(report: Report) -> str:
    content = {
        "folder": str(report.folder),
        "valid": not report.errors,
        "problems": [
            {
                "severity": level,
                "rule": problem.rule,
                "file": str(problem.file),
                "line": problem.line or None,
                "path": problem.path or None,
                "message": problem.message,
            }
            for level, problem in report.found
        ],
        "disabled_backends": dict(report.disabled or {}),
        "idle_models": [*report.idle],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def as_sarif(report: Report) -> str:
    rules = sorted({problem.rule for _, problem in report.found})
    content = {
        "$schema": _SARIF,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "Tollgate",
                        "version": version(),
                        "rules": [
                            {"id": rule, "shortDescription": {"text": rule.replace("-", " ").capitalize()}}
                            for rule in rules
                        ],
                    }
                },
                "originalUriBaseIds": {"%SRCROOT%": {"uri": f"{Path.cwd().as_uri()}/"}},
                "results": [
                    {
                        "ruleId": problem.rule,
                        "ruleIndex": rules.index(problem.rule),
                        "level": level,
                        "message": {"text": problem.message},
                        "locations": [{"physicalLocation": _place(problem)}],
                    }
                    for level, problem in report.found
                ],
            }
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def _place(problem: Problem) -> dict[str, Any]:
    file = _from_here(problem.file)
    artifact = (
        {"uri": file.as_uri()}
        if file.is_absolute()
        else {"uri": quote(file.as_posix()), "uriBaseId": "%SRCROOT%"}
    )
    place: dict[str, Any] = {"artifactLocation": artifact}
    if problem.line:
        place["region"] = {"startLine": problem.line}
    return place


def as_github(report: Report) -> str:
    """https://docs.github.com/actions/reference/workflow-commands-for-github-actions"""
    lines = []
    for level, problem in report.found:
        where = {
            "file": _from_here(problem.file).as_posix(),
            "line": problem.line or 1,
            "title": problem.rule,
        }
        told = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in where.items())
        lines.append(f"::{level} {told}::{_escaped(problem.message)}")
    good = f"{report.folder}: good"
    return "\n".join(lines if report.errors else [*lines, good])


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(char):02X}" if char in f"%\r\n{more}" else char for char in text)


def _from_here(file: Path) -> Path:
    """As a checkout of the working folder has it."""
    try:
        return file.resolve().relative_to(Path.cwd().resolve())
    except ValueError:
        return file.resolve()


FORMATS: Mapping[str, Callable[[Report], str]] = {"json": as_json, "sarif": as_sarif, "github": as_github}
