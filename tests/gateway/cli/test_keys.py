from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from gateway.__main__ import main
from gateway.identity.api_keys import KeyRing, hash_key
from gateway.policy.loader import load_policy

Run = Callable[..., tuple[int, str, str]]

GATEWAY = """\
version: 1
backends: {b: {kind: openai, base_url: http://b, api_key: "${NOT_SET_HERE}"}}
models:
  gpt-4o: {targets: [{backend: b, model: m}]}
  gpt-4o-mini: {targets: [{backend: b, model: m}]}
store: ${NOT_SET_EITHER}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gateway.yaml").write_text(GATEWAY)
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(action: str, *arguments: str) -> tuple[int, str, str]:
        code = main(["keys", action, "--policies", str(folder), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def ring(folder: Path) -> KeyRing:
    return KeyRing(load_policy(folder, {"NOT_SET_EITHER": "memory"}).policy.keys)


def test_a_created_key_opens_the_gateway(run: Run, folder: Path) -> None:
    code, out, err = run(
        "create",
        "--id",
        "ci",
        "--tenant",
        "acme",
        "--models",
        "gpt-4o,gpt-4o-mini",
        "x-*",
        "--expires",
        "90d",
    )
    key = out.strip()
    assert code == 0 and re.fullmatch(r"tg-\S{43}", key)
    assert "'ci'" in err and key not in err
    principal = ring(folder).find(key, time.time())
    assert (principal.key_id, principal.tenant) == ("ci", "acme")
    assert principal.models == ("gpt-4o", "gpt-4o-mini", "x-*")
    (entry,) = yaml.safe_load((folder / "keys.yaml").read_text())["keys"]
    assert entry["sha256"] == hash_key(key)
    assert entry["expires"] == (datetime.now(UTC) + timedelta(days=90)).date().isoformat()
    # Whoever may read the policy may read this: the gateway often is another user.
    modes = {path.stat().st_mode & 0o044 for path in folder.iterdir()}
    assert len(modes) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["gateway.yaml", "keys.yaml"]


def test_create_keeps_what_else_is_in_the_file(run: Run, folder: Path) -> None:
    text = "# mine\nkeys:\n  - id: old  # by hand\n    sha256: '" + "a" * 64 + "'\n# the end\n"
    (folder / "keys.yaml").write_text(text)
    code, out, _ = run("create")
    assert code == 0
    new = (folder / "keys.yaml").read_text()
    assert [line for line in text.splitlines() if line not in new.splitlines()] == []
    assert ring(folder).find(out.strip(), 0).key_id.startswith("key-")


def test_a_key_is_created_with_its_limits(run: Run, folder: Path) -> None:
    (folder / "tiers.yaml").write_text("tiers: {pro: {}, free: {}}\n")
    code, out, _ = run(
        "create",
        *("--id", "ci", "--tier", "pro", "--allow-ip", "10.0.0.0/8", "--allow-ip", "2001:db8::1"),
        *("--tokens-per-minute", "1000", "--requests-per-minute", "60", "--usd-per-month", "0.00001"),
    )
    assert code == 0
    (key,) = load_policy(folder, {"NOT_SET_EITHER": "memory"}).policy.keys
    assert (key.tier, key.allow_ips) == ("pro", ("10.0.0.0/8", "2001:db8::1/128"))
    assert (key.quotas.tokens_per_minute, key.quotas.requests_per_minute) == (1000, 60)
    assert key.budget.usd_per_month == 0.00001
    assert ring(folder).find(out.strip(), 0).tier == "pro"
    assert run("list")[1].splitlines()[1].split()[:3] == ["ci", "default", "pro"]


def test_a_key_may_be_for_an_adapter_where_there_can_be_any(run: Run, folder: Path) -> None:
    assert run("create", "--models", "gpt-4o:sql")[0] == 1
    engine = "backends: {own: {kind: engine, base_url: 'http://127.0.0.1:1'}}\n"
    (folder / "adapters.yaml").write_text(f"{engine}adapters: {{listed: {{own: {{}}}}}}\n")
    assert run("create", "--models", "gpt-5:sql")[0] == 1
    assert run("create", "--models", "gpt-4o:sql")[0] == 0
    (key,) = load_policy(folder, {"NOT_SET_EITHER": "memory"}).policy.keys
    assert key.models == ("gpt-4o:sql",)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--tier", "pr"], 1, "--tier: no tier is named 'pr'; did you mean 'pro'?"),
        (["--tier", "no tier"], 2, "--tier: 'no tier' is not a name"),
        (["--allow-ip", "10.0.0.1/8"], 2, "--allow-ip: write an IP address or network"),
        (["--tokens-per-minute", "0"], 2, "--tokens-per-minute: "),
        (["--usd-per-month", "-1"], 2, "--usd-per-month: "),
        (["--usd-per-month", "nan"], 2, "--usd-per-month: "),
        (["--id", "bad id"], 2, "--id: 'bad id' is not a name"),
        (["--tenant", ""], 2, "--tenant: '' is not a name"),
        (["--models", ""], 2, "--models: name at least one model or pattern"),
        (["--expires", "soon"], 2, "--expires: write a day, as 2027-01-01, or a span, as 90d"),
        (["--expires", "2020-01-01"], 2, "--expires: 2020-01-01 is not in the future"),
        (["--expires", "999999999d"], 2, "--expires: write a day"),
        (
            ["--models", "gpt-4o-mni"],
            1,
            "--models: no model is named 'gpt-4o-mni'; did you mean 'gpt-4o-mini'?",
        ),
    ],
)
def test_what_create_refuses(run: Run, folder: Path, arguments: list[str], code: int, message: str) -> None:
    (folder / "tiers.yaml").write_text("tiers: {pro: {}}\n")
    found, out, err = run("create", *arguments)
    assert (found, out) == (code, "") and message in err
    assert not (folder / "keys.yaml").exists()


def test_an_id_is_given_once(run: Run, folder: Path) -> None:
    assert run("create", "--id", "ci")[0] == 0
    code, _, err = run("create", "--id", "ci")
    assert code == 1 and f"{folder}/keys.yaml:3: there is a key with the id 'ci' already" in err


def test_a_folder_that_cannot_be_read_is_left_alone(run: Run, folder: Path) -> None:
    (folder / "keys.yaml").write_text("keys: [")
    code, _, err = run("create")
    assert code == 1 and f"{folder}/keys.yaml:1: not valid YAML" in err
    (folder / "keys.yaml").write_text("{keys: []}")
    code, _, err = run("create")
    assert code == 1 and "nothing was changed" in err
    assert (folder / "keys.yaml").read_text() == "{keys: []}"
    assert main(["keys", "list", "--policies", str(folder / "no")]) == 1


def test_list_tells_where_each_key_is_and_no_hash(run: Run, folder: Path) -> None:
    assert "No keys." in run("list")[1]
    run("create", "--id", "mine", "--models", "gpt-*")
    digest = "ab" * 32
    (folder / "more.yaml").write_text(
        f"keys:\n  - {{id: old, sha256: '{digest}', tenant: acme, expires: 2020-01-01}}\n"
        "tenants: {acme: {tier: gold}}\n"
    )
    code, out, _ = run("list")
    header, mine, old = out.splitlines()
    assert code == 0
    assert header.split() == [
        "ID",
        "TENANT",
        "TIER",
        "MODELS",
        "SCOPES",
        "LIMITS",
        "EXPIRES",
        "SHA256",
        "WHERE",
    ]
    assert mine.split()[:7] == ["mine", "default", "default", "gpt-*", "inference", "-", "never"]
    assert mine.endswith(f"{folder}/keys.yaml:3")
    assert old.split() == [
        "old",
        "acme",
        "gold",
        "*",
        "inference",
        "-",
        "2020-01-01",
        "(expired)",
        "abababab…",
        f"{folder}/more.yaml:2",
    ]
    assert digest not in out


def test_revoke_removes_a_key_from_its_own_file_only(run: Run, folder: Path) -> None:
    key = run("create", "--id", "a")[1].strip()
    other = run("create", "--id", "b")[1].strip()
    (folder / "more.yaml").write_text(f"keys: [{{id: elsewhere, sha256: '{'a' * 64}'}}]\n")
    code, out, _ = run("revoke", "a")
    assert code == 0 and "'a' is revoked" in out
    assert ring(folder).find(other, 0).key_id == "b"
    with pytest.raises(Exception, match="Incorrect API key provided"):
        ring(folder).find(key, 0)
    code, _, err = run("revoke", "elsewhere")
    assert code == 1 and f"{folder}/more.yaml:1: remove this entry by hand" in err
    code, _, err = run("revoke", "bb")
    assert code == 1 and "no key has the id 'bb'" in err
    (folder / "more.yaml").unlink()
    assert "No keys are left" in run("revoke", "b")[1]
    assert len(ring(folder)) == 0


def test_a_key_is_revoked_from_a_broken_folder_with_a_warning(run: Run, folder: Path) -> None:
    run("create", "--id", "a")
    run("create", "--id", "b")
    (folder / "another.yaml").write_text("models: [")
    code, out, err = run("revoke", "a")
    assert code == 0 and "'a' is revoked" in out
    assert "The policy is invalid" in err and f"{folder}/another.yaml:1: not valid YAML" in err
    assert [entry["id"] for entry in yaml.safe_load((folder / "keys.yaml").read_text())["keys"]] == ["b"]
    code, _, err = run("revoke", "a")
    assert code == 1 and f"{folder}/another.yaml:1: not valid YAML" in err  # it may be there


def test_keys_created_at_once_are_all_kept(folder: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        codes = pool.map(
            lambda n: main(["keys", "create", "--policies", str(folder), "--id", f"k{n}"]), range(8)
        )
    assert set(codes) == {0} and len(ring(folder)) == 8


def test_create_says_what_is_of_nobody_and_list_shows_what_limits_a_key(run: Run, folder: Path) -> None:
    (folder / "tenants.yaml").write_text("tenants: {acme: {}}\n")
    code, out, err = run(
        "create", "--id", "ci", "--tenant", "acem", "--models", "gtp-*", "--usd-per-month", "3"
    )
    assert code == 0 and out.strip()
    assert "--tenant: no tenant is named 'acem'" in err and "did you mean 'acme'?" in err
    assert "--models: no model matches 'gtp-*'" in err
    *_, quiet = run(
        "create", "--id", "ok", "--tenant", "acme", "--models", "gpt-*", "--scopes", "admin", "inference"
    )
    assert "--tenant" not in quiet and "--models" not in quiet
    head, first, second = run("list")[1].splitlines()
    assert "SCOPES" in head and "LIMITS" in head
    assert "usd_per_month=3.0" in first and " inference " in first
    assert "admin inference" in second and " - " in second
