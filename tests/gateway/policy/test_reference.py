"""What ships in ``policies/`` is sound, and its README tells every key there is, with the right default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from gateway.lab.reference import Key
from gateway.policy.loader import load_policy
from gateway.policy.yaml_tree import typed
from tests.policy_keys import POLICIES, README, documented, field_of, in_schema

KEYS = {
    "OPENAI_API_KEY": "sk-test",
    "ANTHROPIC_API_KEY": "sk-ant-test",
    "AZURE_OPENAI_API_KEY": "azure-test",
    "GEMINI_API_KEY": "gemini-test",
}
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_every_key_is_documented_and_nothing_else() -> None:
    assert set(documented()) == set(in_schema())


@pytest.mark.parametrize("key", in_schema(), ids=lambda key: f"{key[0] or ''}:{key[1]}")
def test_its_default_is_what_the_readme_says(key: tuple[str | None, str]) -> None:
    row, default = documented()[Key(*key)], in_schema()[key]
    if default is ... or default is None:
        assert row.default == ("required" if default is ... else "none")
        return
    assert TypeAdapter(field_of(key).rebuild_annotation()).validate_python(row.value) == default


TYPES: dict[str, tuple[object, object]] = {
    "duration": ("3s", 3),
    "size": ("3KiB", 3),
    "whole number": (20, 0.5),
    "number, at most 0": (-0.5, "-0.5"),
    "number": (0.5, "0.5"),
    "true or false": (False, "perhaps"),
    "name": ("x", "no name"),
    "URL": ("http://127.0.0.1:1", "127.0.0.1:1"),
    "date and time": ("2030-01-01T12:00:00Z", "tomorrow"),
    "day": ("2030-01-01", "tomorrow"),
    "64 hex digits": ("a" * 64, "a" * 63),
    "list": (None, "text"),
    "mapping": (None, "text"),
    "text": (None, {}),
}
"""What the reference calls them: a value of the type (None: it depends), and one that is not. A bare number is no
duration."""
BOUNDS = re.compile(r"([0-9]+)(?:–| to )([0-9]+)")


@pytest.mark.parametrize("key", in_schema(), ids=lambda key: f"{key[0] or ''}:{key[1]}")
def test_its_type_and_unit_are_what_the_readme_says(key: tuple[str | None, str]) -> None:
    said = documented()[Key(*key)].type
    field = field_of(key)
    takes = TypeAdapter(field.rebuild_annotation())
    if choices := re.findall(r"`([^`]+)`", said):
        if not said.startswith("list"):
            for choice in choices:
                takes.validate_python(typed(choice))
        return
    if bounds := BOUNDS.search(said):
        low, high = (int(bound) for bound in bounds.groups())
        for good, bad in ((low, low - 1), (high, high + 1)):
            takes.validate_python(good)
            with pytest.raises(ValidationError):
                takes.validate_python(bad)
        return
    good, bad = next(values for word, values in TYPES.items() if said.startswith(word))
    if good is not None:
        takes.validate_python(good)
    with pytest.raises(ValidationError):
        takes.validate_python(bad)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_its_examples_load(block: str, tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(block)
    load_policy(tmp_path, {})


@pytest.mark.parametrize(
    "folder", [POLICIES, *sorted((POLICIES / "examples").iterdir())], ids=lambda path: path.name
)
@pytest.mark.parametrize("env", [{}, KEYS], ids=["no key", "key"])
def test_what_ships_loads(folder: Path, env: dict[str, str]) -> None:
    loaded = load_policy(folder, env)
    assert loaded.policy.models
    assert not (env and loaded.disabled)


def test_the_default_policy_follows_the_containers_environment() -> None:
    env = {
        "ENGINE_LAUNCH": "false",
        "ENGINE_URL": "http://engine:8100",
        "TOLLGATE_STORE": "redis://redis:6379/0",
        "OPENAI_API_KEY": "",
    }
    loaded = load_policy(POLICIES, env)
    engine = loaded.policy.backends["bundled"]
    assert (engine.kind, engine.base_url) == ("engine", "http://engine:8100")
    assert engine.kind == "engine" and not engine.launch
    assert loaded.policy.store == "redis://redis:6379/0"
    assert loaded.disabled == {
        "openai": "OPENAI_API_KEY is not set",
        "anthropic": "ANTHROPIC_API_KEY is not set",
    }


def test_the_readme_names_every_example() -> None:
    for example in (POLICIES / "examples").iterdir():
        assert f"(examples/{example.name}/gateway.yaml)" in README
