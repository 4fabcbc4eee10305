"""Langfuse, Phoenix and LangSmith take scores and evaluations, by their own code where it is installed
(``python -m benchmarks.conformance.receivers install``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.conformance import tools
from benchmarks.conformance.receivers import tried
from benchmarks.conformance.receivers.tried import TOOLS, Tool


@pytest.mark.slow
@pytest.mark.parametrize("tool", TOOLS, ids=[tool.package for tool in TOOLS])
def test_it_takes_what_is_sent(tool: Tool) -> None:
    home = tools.FOLDER / tool.package.replace("==", "-")
    if not (home / "made").exists():
        pytest.skip(f"{tool.package} is not installed: python -m benchmarks.conformance.receivers install")
    outcome = tool.check(home / "bin" / "python")
    assert outcome.failures == ()
    assert outcome.total > 5


def test_what_a_tool_refuses_is_a_failure() -> None:
    tool = Tool("any==1", lambda python: iter([("one", ""), ("two", "no such field")]))
    outcome = tool.check(Path("python"))
    assert (outcome.passed, outcome.total, outcome.failures) == (1, 2, ("two: no such field",))


def test_each_script_is_there() -> None:
    assert {file.name for file in tried.SCRIPTS.glob("*.py")} == {
        "langfuse_types.py",
        "langsmith_types.py",
        "phoenix_client.py",
    }
