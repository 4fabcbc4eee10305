"""All tests of a policy folder, one after the other, each over a gateway of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gateway.lab.policy_lines import PolicyLines
from gateway.lab.policy_tests.case_run import CaseResult, CaseRun
from gateway.lab.policy_tests.reader import policy_for, read_tests
from gateway.lab.policy_tests.report import FileResult
from gateway.lab.policy_tests.virtual_time import VirtualLoop, VirtualTime
from gateway.policy.problems import PolicyError


def run_all(directory: Path, paths: Sequence[Path], clock: VirtualTime, only: str | None) -> list[FileResult]:
    """``only`` is a part of a name."""
    return [_file(directory, path, clock, only) for path in paths]


def _file(directory: Path, path: Path, clock: VirtualTime, only: str | None) -> FileResult:
    result = FileResult(str(path))
    try:
        read = read_tests(path)
        loaded = policy_for(directory, read.file.env)
    except PolicyError as error:
        result.problems = [str(problem) for problem in error.problems]
        return result
    lines = PolicyLines(loaded, read.file.env)
    for number, case in enumerate(read.file.cases):
        if only is not None and only not in case.name:
            continue
        told = CaseResult(case.name, str(read.where(number)))
        result.cases.append(told)
        loop = VirtualLoop(clock)
        try:
            loop.run_until_complete(CaseRun(read.file, case, told, lines, clock).run(loaded, directory))
        except RuntimeError as error:
            told.broken = str(error)
        finally:
            _close(loop)
    return result


def _close(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
