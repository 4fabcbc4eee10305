"""Test files, read and checked as policies are: each problem with its file and line, and what was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from gateway.lab.policy_tests.schema import TestFile
from gateway.policy import yaml_tree
from gateway.policy.explain import explain
from gateway.policy.files import is_test, read_file
from gateway.policy.folder import location_of
from gateway.policy.loader import DRAINED, Loaded, load_policy
from gateway.policy.problems import Location, PolicyError, Problem
from gateway.policy.yaml_tree import Map

_UNSET = re.compile(r"(\w+) is not set")
SCRIPTED = "scripted"
"""The value of a variable that holds a secret of a backend's, where a test gives it none: nobody is shown it."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    path: Path
    file: TestFile
    root: Map

    def where(self, case: int) -> Location:
        """The line where a case begins."""
        return location_of(self.root, ("cases", case))


def test_files(directory: Path) -> list[Path]:
    """Those of a policy folder, by name."""
    return sorted(path for path in directory.iterdir() if is_test(path.name))


def read_tests(path: Path) -> ReadFile:
    """Raises ``PolicyError``."""
    given = read_file(path)
    if given.content is None or given.problem:
        raise PolicyError([Problem(path, 1, given.problem)])
    problems: list[Problem] = []
    try:
        text = given.content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PolicyError([Problem(path, 1, "is not UTF-8; save it as UTF-8")]) from None
    root = yaml_tree.read(text, path, {}, problems)
    if root is None:
        raise PolicyError(problems or [Problem(path, 1, "holds nothing; begin with 'cases:'")])
    try:
        file = TestFile.model_validate(yaml_tree.data(root))
    except ValidationError as error:
        for details in error.errors(include_url=False):
            if details["type"] == "too_short" and details["input"]:
                continue  # pydantic counts valid entries only, and reports the others
            where, message = explain(details, TestFile)
            problems.append(Problem.at(location_of(root, where), message, where))
        raise PolicyError(problems) from None
    if problems:
        raise PolicyError(problems)
    return ReadFile(path, file, root)


def policy_for(directory: Path, env: Mapping[str, str], also: Sequence[Path] = ()) -> Loaded:
    """The policy that a file's cases are about: all backends are in use, as scripts answer for them. ``also``: files
    with more of it. Raises ``PolicyError``."""
    loaded = load_policy(directory, env, also=also)
    missing = dict(_missing(loaded))
    if missing:
        loaded = load_policy(directory, {**env, **missing}, also=also)
    drained = {name: why for name, why in loaded.disabled.items() if why == DRAINED}
    return replace(loaded, disabled=drained)


def _missing(loaded: Loaded) -> Iterator[tuple[str, str]]:
    for why in loaded.disabled.values():
        if (found := _UNSET.fullmatch(why)) is not None:
            yield found[1], SCRIPTED
