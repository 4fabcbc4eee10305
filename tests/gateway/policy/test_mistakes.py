"""What hurried hands write: each mistake is told in one line, which says what to write instead."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError

GOOD = """\
version: 1
backends:
  up: {kind: openai, base_url: http://up/v1, max_concurrency: 4}
models:
  m: {targets: [{backend: up, model: x, weight: 2}]}
tenants:
  acme: {quotas: {requests_per_minute: 60}}
"""


def told(folder: Path) -> list[str]:
    """Each problem, its file reduced to the name."""
    with pytest.raises(PolicyError) as caught:
        load_policy(folder, {})
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        (
            "weight: 2",
            "weight:2",
            "5: models.m.targets[0].weight:2: unknown key; put a space after the colon: 'weight: 2'",
        ),
        (
            ": 60}",
            ": 1,000}",
            "7: tenants.acme.quotas.000: unknown key; write numbers without commas: 1000, not 1,000",
        ),
        ("y: 4", "y: 4.5", "3: backends.up.max_concurrency: should be a whole number"),
        ("y: 4", "y: 1e3", "3: backends.up.max_concurrency: should be a whole number"),
        ("y: 4", 'y: "4"', "3: backends.up.max_concurrency: should be a whole number, without quotes"),
        ("y: 4", "y: many", "3: backends.up.max_concurrency: should be a whole number"),
        ("y: 4", "y: -4", "3: backends.up.max_concurrency: should be 1 or more"),
        ("weight: 2", "weight: -2", "5: models.m.targets[0].weight: should be more than 0"),
        ("weight: 2", "weight: .nan", "5: models.m.targets[0].weight: should be a number"),
        (
            "http://up/v1",
            '"${UP"',
            "3: backends.up.base_url: write ${NAME} or ${NAME:-default}, or $${ where you …",
        ),
        (
            "tenants:",
            "guards: {pii: {entities: [EMAIL]}}\ntenants:",
            "6: guards.pii.entities: EMAIL: nobody here can …",
        ),
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["unix", "windows"])
def test_one_mistake_is_one_line(tmp_path: Path, right: str, wrong: str, line: str, ends: str) -> None:
    (tmp_path / "a.yaml").write_bytes(GOOD.replace(right, wrong).replace("\n", ends).encode())
    [said] = told(tmp_path)
    assert said.startswith(f"a.yaml:{line.removesuffix('…')}")
    assert line.endswith("…") or said == f"a.yaml:{line}"


def test_an_entity_is_guessed_from_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD + "guards: {pii: {entities: [EMAIL, CREDITCARD]}}\n")
    first, second = told(tmp_path)
    assert "did you mean 'EMAIL_ADDRESS'?" in first or "did you mean 'EMAIL_ADDRESS'?" in second
    assert "did you mean 'CREDIT_CARD'?" in first or "did you mean 'CREDIT_CARD'?" in second


def test_a_suffix_counts_in_capitals_too(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "B.YAML").write_text("tiers: {gold: {}}\n")
    assert "gold" in load_policy(tmp_path, {}).policy.tiers


@pytest.mark.parametrize("name", ["gateway.yml.txt", "gateway.yaml~", "gateway.json"])
def test_a_folder_of_files_with_other_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "README.md").write_text("Read me.")
    (tmp_path / name).write_text(GOOD)
    meant = f"rename '{name}' so that it ends with .yaml, or write one that begins with 'version: 1'"
    assert told(tmp_path) == [f"{tmp_path}: holds no *.yaml file; {meant}"]


@contextmanager
def _a_socket(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(path))
        yield


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    why = ":1: is a pipe, a device or a socket; write a file, or remove it"
    assert told(tmp_path) == [f"pipe.yaml{why}", f"zero.yaml{why}"]


def test_nor_is_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's address is short
    with _a_socket(Path("a.yaml")):
        assert told(tmp_path) == ["a.yaml:1: is a pipe, a device or a socket; write a file, or remove it"]
