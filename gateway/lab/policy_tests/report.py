"""How the tests of a policy went: a table, JSON, JUnit's XML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from gateway.lab.policy_lines import PolicyLine
from gateway.lab.policy_tests.case_run import CaseResult


@dataclass(slots=True)
class FileResult:
    path: str
    cases: list[CaseResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Why none of it could be run."""

    @property
    def failed(self) -> int:
        return sum(not case.passed for case in self.cases) + bool(self.problems)


def lines(results: Sequence[FileResult]) -> Iterator[str]:
    """For a terminal."""
    for result in results:
        yield result.path
        yield from (f"  {problem}" for problem in result.problems)
        width = max((len(case.name) for case in result.cases), default=0)
        for case in result.cases:
            mark = "ok  " if case.passed else "FAIL"
            yield f"  {mark} {case.name:<{width}}  {_decided(case.decided)}".rstrip()
            if case.broken is not None:
                yield f"       {case.at}: {case.broken}"
            for request in case.failed:
                for failure in request.failures:
                    where = f"{request.where}: " if request.where else ""
                    yield f"       {case.at}: {where}{failure}"
                if request.decided:
                    yield f"       decided at {_decided(request.decided)}"
    passed = sum(case.passed for result in results for case in result.cases)
    failed = sum(result.failed for result in results)
    yield f"{passed} passed, {failed} failed"


def _decided(decided: Sequence[PolicyLine]) -> str:
    return "; ".join(map(str, decided))


def as_json(results: Sequence[FileResult]) -> str:
    told = [
        {
            "file": result.path,
            "problems": result.problems,
            "cases": [
                {
                    "name": case.name,
                    "at": case.at,
                    "passed": case.passed,
                    "broken": case.broken,
                    "failures": [
                        {"where": request.where, **asdict(failure), "decided_by": _named(request.decided)}
                        for request in case.failed
                        for failure in request.failures
                    ],
                    "requests": case.seen,
                    "decided_by": _named(case.decided),
                }
                for case in result.cases
            ],
        }
        for result in results
    ]
    passed = sum(case.passed for result in results for case in result.cases)
    return json.dumps(
        {"files": told, "passed": passed, "failed": sum(one.failed for one in results)}, indent=2
    )


def _named(decided: Sequence[PolicyLine]) -> list[dict[str, str | bool | None]]:
    return [{"key": line.key, "at": line.at, "written": line.written} for line in decided]


def write_junit(results: Sequence[FileResult], path: Path) -> None:
    """As CI systems read it (https://llg.cubic.org/docs/junit/)."""
    root = ElementTree.Element("testsuites")
    for result in results:
        count = len(result.cases) + bool(result.problems)
        suite = ElementTree.SubElement(
            root, "testsuite", name=result.path, tests=str(count), failures=str(result.failed)
        )
        if result.problems:
            case = ElementTree.SubElement(suite, "testcase", classname=result.path, name="the file itself")
            ElementTree.SubElement(case, "failure", message=result.problems[0]).text = "\n".join(
                result.problems
            )
        for one in result.cases:
            case = ElementTree.SubElement(suite, "testcase", classname=result.path, name=one.name)
            if not one.passed:
                told = [*([one.broken] if one.broken else [])]
                told += [
                    f"{request.where} {each}".strip() for request in one.failed for each in request.failures
                ]
                text = "\n".join([f"{one.at}:", *told, f"decided at {_decided(one.decided)}"])
                ElementTree.SubElement(case, "failure", message=told[0]).text = text
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
