"""What ships in ``policies/`` is sound, and its README tells every key there is, with the right default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from gateway.policy.fields import keys, kind_of
from gateway.policy.loader import load_policy
from gateway.policy.yaml_tree import typed
from tests.policy_keys import POLICIES, README, documented, in_schema

BLOCKS = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_every_key_is_documented_and_nothing_else() -> None:
    assert set(documented()) == set(in_schema())


@pytest.mark.parametrize("key", in_schema(), ids=lambda key: f"{key[0] or ''}:{key[1]}")
def test_its_default_is_what_the_readme_says(key: tuple[str | None, str]) -> None:
    said, default = documented()[key], in_schema()[key]
    if default is ... or default is None:
        assert said == ("required" if default is ... else "none")
        return
    owner = next(
        owner
        for path, owner in keys()
        if path == key[1] and (not key[0] or (kind_of(owner) or key[0]) == key[0])
    )
    field = owner.model_fields[key[1].rpartition(".")[2]]
    written = yaml.safe_load(said) if said[0] in "[{" else {'""': ""}.get(said, typed(said))
    assert TypeAdapter(field.rebuild_annotation()).validate_python(written) == default


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_its_examples_load(block: str, tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(block)
    load_policy(tmp_path, {})


@pytest.mark.parametrize(
    "folder", [POLICIES, *sorted((POLICIES / "examples").iterdir())], ids=lambda path: path.name
)
@pytest.mark.parametrize(
    "env", [{}, {"OPENAI_API_KEY": "sk-test", "ANTHROPIC_API_KEY": "sk-ant-test"}], ids=["no key", "key"]
)
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
