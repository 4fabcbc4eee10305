"""Prompts in files of their own: read, watched, recorded and rolled back as all of the policy is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.policy.history import PolicyHistory
from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError

POLICY = """\
version: 1
backends: {up: {kind: openai, base_url: http://up/v1}}
models: {m: {targets: [{backend: up, model: x}]}}
experiments:
  t: {arms: {a: {}, b: {prompt: brief@2}}}
"""


def folder(path: Path) -> Path:
    (path / "gateway.yaml").write_text(POLICY)
    return path


def test_a_file_is_a_prompt_as_it_stands(tmp_path: Path) -> None:
    text = "---\nBe brief: ${HOME}, {{x}}.\n\n# Always\n"
    (tmp_path / "brief@2.prompt.md").write_text(text)
    (tmp_path / ".draft.prompt.md").write_text("half")
    (tmp_path / "README.md").write_text("no prompt")
    loaded = load_policy(folder(tmp_path), {})
    assert loaded.policy.prompts == {"brief@2": text.strip("\n")}
    (tmp_path / "brief@2.prompt.md").write_text("Be kind.")
    assert load_policy(tmp_path, {}).fingerprint != loaded.fingerprint


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "brief@3.prompt.md",
            "Be brief.",
            "gateway.yaml:5: experiments.t.arms.b.prompt: no prompt is named 'brief@2'",
        ),
        ("brief@2.prompt.md", "", "brief@2.prompt.md:1: is empty"),
        ("brief@2.prompt.md", "\n \n", "brief@2.prompt.md:1: prompts.brief@2: should not be empty"),
        ("no name.prompt.md", "Be brief.", "no name.prompt.md:1: prompts.no name: 'no name' is not a name"),
        ("more.yaml", "prompts: {brief@2: x}", "more.yaml:1: prompts.brief@2: is given twice"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, name: str, text: str, said: str) -> None:
    if name == "more.yaml":
        (tmp_path / "brief@2.prompt.md").write_text("Be brief.")
    (tmp_path / name).write_text(text)
    with pytest.raises(PolicyError) as raised:
        load_policy(folder(tmp_path), {})
    told = [str(one).removeprefix(f"{tmp_path}/") for one in raised.value.problems]
    assert any(one.startswith(said) or (name == "more.yaml" and "is given twice" in one) for one in told), (
        told
    )


def test_the_history_has_it(tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "brief@2.prompt.md").write_text("Be brief.")
    history = PolicyHistory(tmp_path / "state", policies)
    number = history.add(load_policy(folder(policies), {}))
    kept = history.generation(number)
    assert kept is not None and kept.files["brief@2.prompt.md"] == b"Be brief."
