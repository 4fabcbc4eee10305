"""Variables from the environment and from a folder of secrets; the folder is replaced as the kubelet replaces one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli import check
from gateway.policy import variables as module
from gateway.policy.candidate import problems_of
from gateway.policy.files import read_files
from gateway.policy.loader import Loaded, load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.reload import PolicyWatcher
from gateway.policy.schema import OpenAIBackend, Policy
from gateway.policy.variables import FOLDER, MAX_BYTES, Variables
from gateway.settings import Settings, SettingsError
from tests.gateway.policy.test_reload import until

POLICY = """version: 1
backends: {b: {kind: openai, base_url: "http://b", api_key: "${PROVIDER_KEY}"}}
models: {m: {targets: [{backend: b, model: m}]}}
store: redis://tollgate:${REDIS_PASSWORD}@redis:6379/0
"""


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    write(folder, "PROVIDER_KEY", b"sk-one\n")
    write(folder, "REDIS_PASSWORD", b"hush")
    return folder


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "gateway.yaml").write_text(POLICY)
    return folder


def provider_key(policy: Policy) -> str | None:
    backend = policy.backends["b"]
    assert isinstance(backend, OpenAIBackend)
    return backend.api_key.get_secret_value() if backend.api_key is not None else None


def write(folder: Path, name: str, content: bytes) -> Path:
    (folder / name).write_bytes(content)
    (folder / name).chmod(0o600)
    return folder / name


def test_a_file_is_a_variable_of_settings_and_policies(secrets: Path, policies: Path) -> None:
    write(secrets, "TOLLGATE_SESSION_SECRET", b"0123456789abcdef0123456789abcdef\r\n")
    write(secrets, "ledger-password", b"no variable has this name")
    variables = Variables({FOLDER: str(secrets), "TOLLGATE_PORT": "9000"})
    settings = Settings.from_env(variables)
    assert settings.session_secret == "0123456789abcdef0123456789abcdef" and settings.port == 9000
    policy = load_policy(policies, variables).policy
    assert provider_key(policy) == "sk-one"
    assert policy.store == "redis://tollgate:hush@redis:6379/0"
    assert {*variables} == {
        FOLDER,
        "TOLLGATE_PORT",
        "PROVIDER_KEY",
        "REDIS_PASSWORD",
        "TOLLGATE_SESSION_SECRET",
    }
    assert variables.notices() == []


def test_the_environment_goes_first_and_that_is_said(secrets: Path) -> None:
    variables = Variables({FOLDER: str(secrets), "PROVIDER_KEY": "sk-env", "REDIS_PASSWORD": ""})
    assert (variables["PROVIDER_KEY"], variables["REDIS_PASSWORD"]) == ("sk-env", "hush")
    (notice,) = variables.notices()
    assert notice.startswith("PROVIDER_KEY is set in the environment")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: file.write_bytes(b"sk\0one"), "NUL byte"),
        (lambda file: file.write_bytes(b"\xff\xfe"), "UTF-8"),
        (lambda file: file.write_bytes(b"x" * (MAX_BYTES + 1)), "more than 65536 bytes"),
        (lambda file: (file.unlink(), file.mkdir()), "is no file"),
        (lambda file: (file.unlink(), file.symlink_to("gone")), "No such file"),
    ],
    ids=["nul", "bytes", "large", "folder", "dangling"],
)
def test_a_file_that_is_no_secret_is_an_error_where_it_is_asked_for(
    secrets: Path, policies: Path, spoil: Callable[[Path], object], said: str
) -> None:
    spoil(secrets / "REDIS_PASSWORD")
    variables = Variables({FOLDER: str(secrets)})
    with pytest.raises(PolicyError, match=rf"gateway.yaml:4: .*REDIS_PASSWORD.*{said}") as found:
        load_policy(policies, variables)
    assert "sk" not in str(found.value)
    assert "REDIS_PASSWORD" not in set(variables)


def test_an_empty_file_counts_as_not_set(secrets: Path, policies: Path) -> None:
    write(secrets, "PROVIDER_KEY", b"\n")
    variables = Variables({FOLDER: str(secrets)})
    assert load_policy(policies, variables).disabled == {"b": "PROVIDER_KEY is not set"}
    (notice,) = variables.notices()
    assert "PROVIDER_KEY' is empty" in notice


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"{FOLDER} must name a folder .*No such file"):
        Variables({FOLDER: str(tmp_path / "none")})


def test_check_says_who_else_may_read_a_secret(
    secrets: Path, policies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (secrets / "PROVIDER_KEY").chmod(0o644)
    monkeypatch.setenv(FOLDER, str(secrets))
    monkeypatch.delenv("PROVIDER_KEY", raising=False)
    parser = check.argparse.ArgumentParser()
    check.add_parser(parser.add_subparsers())
    assert check.run(parser.parse_args(["check", str(policies)])) == 0
    assert "PROVIDER_KEY' (mode 0644): take that right away" in capsys.readouterr().out


def test_what_a_proposed_policy_is_told_has_no_secret_of_a_file(secrets: Path, policies: Path) -> None:
    (policies / "gateway.yaml").write_text(POLICY.replace("redis://", "${PROVIDER_KEY}://"))
    valid, problems = problems_of(read_files(policies), Variables({FOLDER: str(secrets)}))
    assert not valid and problems and "sk-one" not in str(problems) and "hush" not in str(problems)


@pytest.mark.anyio
async def test_a_secret_that_is_swapped_is_in_force_and_a_broken_one_is_not(
    tmp_path: Path, policies: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet writes a new folder, and replaces one link to it."""
    caplog.set_level(logging.INFO)
    mounted, taken = tmp_path / "mounted", list[str | None]()
    mounted.mkdir()

    def swap(version: str, **content: bytes) -> None:
        (mounted / f"..{version}").mkdir()
        for name, value in content.items():
            write(mounted / f"..{version}", name, value)
            if not (mounted / name).is_symlink():
                (mounted / name).symlink_to(f"..data/{name}")
        (mounted / "..data_tmp").symlink_to(f"..{version}")
        (mounted / "..data_tmp").replace(mounted / "..data")

    async def take(loaded: Loaded) -> None:
        taken.append(provider_key(loaded.policy))

    swap("one", PROVIDER_KEY=b"sk-one", REDIS_PASSWORD=b"hush")
    variables = Variables({FOLDER: str(mounted)})
    async with PolicyWatcher(policies, take, env=variables, interval=0.02) as watcher:
        swap("two", PROVIDER_KEY=b"sk-two\n", REDIS_PASSWORD=b"hush")
        await until(lambda: taken == ["sk-one", "sk-two"])
        swap("three", PROVIDER_KEY=b"sk\0", REDIS_PASSWORD=b"hush")
        await until(lambda: watcher.last_error is not None)
        assert "NUL byte" in str(watcher.last_error) and watcher.generation == 2
        (mounted / "..data").rename(mounted / "..away")
        mounted.rename(tmp_path / "elsewhere")
        await until(lambda: "stays in force" in caplog.text and module.FOLDER in caplog.text)
        (tmp_path / "elsewhere").rename(mounted)
        swap("four", PROVIDER_KEY=b"sk-four", REDIS_PASSWORD=b"hush")
        await until(lambda: taken[-1] == "sk-four")
        await until(lambda: watcher.last_error is None)
    assert "secrets have changed" in caplog.text and "sk-" not in caplog.text
