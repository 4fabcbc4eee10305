from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.cli import banner as module
from gateway.cli.banner import banner, curl, first_model, python
from gateway.cli.devkey import DevelopmentKey
from gateway.policy.loader import Loaded, load_policy

URL = "http://127.0.0.1:8000"


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    (tmp_path / "gateway.yaml").write_text(
        """\
version: 1
backends:
  far: {kind: openai, base_url: http://far, api_key: "${NO}"}
  near: {kind: openai, base_url: http://near}
models:
  big: {targets: [{backend: far, model: m}]}
  small: {targets: [{backend: far, model: m}, {backend: near, model: m}]}
"""
    )
    return load_policy(tmp_path, {})


def test_the_model_in_the_examples_is_the_first_that_can_serve(loaded: Loaded) -> None:
    assert first_model(loaded, ["near"]) == "small"
    assert first_model(loaded, ["near", "far"]) == "big"
    assert first_model(loaded, []) == "big"


def test_it_shows_the_development_key_and_what_is_disabled(loaded: Loaded) -> None:
    text = banner(URL, loaded, ["near"], DevelopmentKey("tg-x", "dev-key"), Path("policies"))
    assert f"ready at {URL}" in text
    assert "Key       tg-x" in text
    assert "Disabled  far: NO is not set" in text
    assert '"model": "small"' in text


def test_with_keys_of_its_own_it_shows_none_and_says_how_to_make_one(loaded: Loaded) -> None:
    text = banner(URL, loaded, ["near"], None, Path("my policies"))
    assert f"{sys.executable} -m gateway keys create --policies 'my policies' --id NAME" in text
    assert '-H "authorization: Bearer $TOLLGATE_KEY"' in text
    assert 'api_key=os.environ["TOLLGATE_KEY"]' in text


def test_commands_in_it_are_called_as_this_one_was(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare ``tollgate`` finds nothing beside ``make serve``, or another's program of that name."""
    monkeypatch.chdir(tmp_path)
    own, others = tmp_path / ".venv" / "bin" / "tollgate", tmp_path / "others" / "tollgate"
    for file in (own, others):
        file.parent.mkdir(parents=True)
        file.touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [".venv/bin/tollgate", "serve"])
    for path, called in ((others.parent, ".venv/bin/tollgate"), (own.parent, "tollgate")):
        monkeypatch.setenv("PATH", str(path))
        text = banner(URL, loaded, ["near"], None, Path("policies"))
        assert f"To make another: {called} keys create --id NAME\n" in text


def test_it_says_where_the_page_is_and_what_opens_it(tmp_path: Path) -> None:
    text = """\
version: 1
admin: {enabled: true}
backends: {a: {kind: fake, script: [{reply: x}]}}
models: {m: {targets: [{backend: a, model: m}]}}
"""
    development = DevelopmentKey("tg-x", "dev-key")
    for keys, given, how in (
        ("", development, "the key above"),
        (
            f"keys: [{{id: a, sha256: {'0' * 64}}}]\n",
            None,
            "keys create --policies p --id NAME --scopes admin",
        ),
        (f"keys: [{{id: a, sha256: {'0' * 64}, scopes: [admin]}}]\n", None, "a key of scope admin"),
    ):
        (tmp_path / "gateway.yaml").write_text(text + keys)
        shown = banner(URL, load_policy(tmp_path, {}), ["a"], given, Path("p"))
        assert f"Page      {URL}/admin\n" in shown and how in shown
    (tmp_path / "gateway.yaml").write_text(text.replace("true", "false"))
    assert "/admin" not in banner(URL, load_policy(tmp_path, {}), ["a"], development, Path("p"))


def test_a_key_with_odd_characters_is_quoted() -> None:
    assert (
        curl(URL, "it's $x", "m")[1].split(" -H 'content")[0].strip()
        == """-H 'authorization: Bearer it'"'"'s $x'"""
    )
    line = next(line for line in python(URL, 'a"b\\é', "m") if "api_key=" in line)
    assert 'api_key="a\\"b\\\\é"' in line


def test_without_the_sdk_the_example_is_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    lines = python(URL, "k", "m")
    assert lines[0].strip() == "# pip install openai" and not any("EOF" in line for line in lines)
    compile("\n".join(line.strip() for line in lines), "example", "exec")
