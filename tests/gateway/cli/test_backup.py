"""``tollgate backup`` and ``restore``: by real gateways, under load."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from gateway.__main__ import main
from gateway.cli import archive
from gateway.control.state_lock import LOCK, state_lock
from tests.minimal_environment import ROOT
from tests.somebody import as_somebody

KEY = "tg-acme-1"
POLICY = f"""\
version: 1
backends: {{scripted: {{kind: fake, script: [{{reply: one two three}}]}}}}
models: {{fake: {{targets: [{{backend: scripted, model: x}}]}}}}
tenants: {{acme: {{}}}}
keys: [{{id: a, sha256: {sha256(KEY.encode()).hexdigest()}, tenant: acme, models: ["*"]}}]
"""
HEADERS = {"authorization": f"Bearer {KEY}"}
Run = Callable[..., tuple[int, str, str]]


@contextmanager
def serving(policies: Path, state: Path) -> Iterator[str]:
    """A gateway of its own process; its URL."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TOLLGATE_STATE_DIR": str(state)}
    command = [sys.executable, "-m", "gateway", "serve", "--policies", str(policies), "--port", "0"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        said = ""
        while not (ready := re.search(r"is ready at (http://[^ ,\n]+)", said)):
            line = process.stdout.readline()
            assert line, said
            said += line
        reader = threading.Thread(target=process.stdout.read)
        reader.start()
        try:
            yield ready[1]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0
            reader.join()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(state: Path, policies: Path, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setenv("TOLLGATE_STATE_DIR", str(state))
        code = main([*arguments, "--policies", str(policies)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "gateway.yaml").write_text(POLICY)
    return folder


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """What a gateway may have left."""
    folder = tmp_path / "state"
    (folder / "history").mkdir(parents=True)
    (folder / "history" / "1.json").write_text("{}")
    (folder / "session-secret").write_text("s3cret")
    (folder / "file.partial").write_text("half")
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as ledger:
        ledger.execute("PRAGMA journal_mode = WAL")
        ledger.execute("CREATE TABLE rows (n)")
        ledger.execute("INSERT INTO rows VALUES (7)")
        ledger.commit()
    return folder


def answered(url: str) -> None:
    asked = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
    httpx.post(f"{url}/v1/chat/completions", headers=HEADERS, json=asked, timeout=300).raise_for_status()


def uploaded(url: str, content: bytes) -> str:
    answer = httpx.post(
        f"{url}/v1/files",
        headers=HEADERS,
        files={"file": ("lines.jsonl", content)},
        data={"purpose": "batch"},
        timeout=300,
    )
    return str(answer.raise_for_status().json()["id"])


def rows(file: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.timeout(900)
def test_under_load_each_backup_restores_to_one_sound_moment(
    policies: Path, tmp_path: Path, run: Run
) -> None:
    state = tmp_path / "state"
    done: list[str] = []
    over = threading.Event()
    failed: list[BaseException] = []

    def load(url: str) -> None:
        try:
            while not over.is_set():
                answered(url)
                content = os.urandom(2**16)
                done.append(uploaded(url, content))
        except BaseException as error:
            failed.append(error)

    with serving(policies, state) as url:
        line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"}
        line["body"] = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}  # type: ignore[assignment]
        lines = "\n".join(json.dumps({**line, "custom_id": str(n)}) for n in range(300))
        asked = {
            "input_file_id": uploaded(url, lines.encode()),
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        }
        batch = (
            httpx.post(f"{url}/v1/batches", headers=HEADERS, json=asked, timeout=300)
            .raise_for_status()
            .json()
        )
        threads = [threading.Thread(target=load, args=(url,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        before: list[list[str]] = []
        for number in range(4):
            while len(done) < 10 * (number + 1) and not failed:
                time.sleep(0.01)
            before.append([*done])
            code, out, err = run(state, policies, "backup", str(tmp_path / f"{number}.tar.gz"))
            assert code == 0, err
            assert "environment" in out and "secrets" in out
        code, _, err = run(state, policies, "restore", str(tmp_path / "0.tar.gz"), "--replace")
        assert code == 1 and "a gateway serves on" in err
        over.set()
        for thread in threads:
            thread.join()
        assert not failed, failed

    for number, files in enumerate(before):
        archive, fresh = tmp_path / f"{number}.tar.gz", tmp_path / f"fresh {number}"
        assert archive.stat().st_mode & 0o077 == 0
        code, out, err = run(fresh, tmp_path / f"policies {number}", "restore", str(archive))
        assert code == 0, err
        modes = {path.stat().st_mode & 0o077 for path in (fresh, *fresh.rglob("*"))}
        assert modes == {0}
        for database in fresh.glob("*.sqlite"):
            assert rows(database, "PRAGMA integrity_check") == [("ok",)]
        kept = {str(row[0]) for row in rows(fresh / "files.sqlite", "SELECT id FROM files")}
        assert kept >= set(files)
    with (
        serving(tmp_path / "policies 3", tmp_path / "fresh 3") as url,
        httpx.Client(headers=HEADERS) as client,
    ):
        for file in before[3]:
            assert len(client.get(f"{url}/v1/files/{file}/content").raise_for_status().content) == 2**16
        while True:
            found = client.get(f"{url}/v1/batches/{batch['id']}").raise_for_status().json()
            if found["status"] == "completed":
                break
            time.sleep(0.05)
        assert found["request_counts"] == {"total": 300, "completed": 300, "failed": 0}
        answered(url)


def test_it_says_what_it_has_not_and_no_password(
    policies: Path, state: Path, tmp_path: Path, run: Run
) -> None:
    more = "store: redis://:hunter2@cache:6379/0\nledger: {store: 'postgresql://u:hunter2@db/t'}\n"
    more += "files: {store: 's3://bucket/prefix'}\nreview: {path: /var/log/review.jsonl}\n"
    (policies / "gateway.yaml").write_text(POLICY + more)
    code, out, _ = run(state, policies, "backup", str(tmp_path / "b.tar.gz"))
    assert code == 0 and "hunter2" not in out
    for told in (
        "redis://cache:6379/0",
        "redis-cli",
        "postgresql://db/t",
        "pg_dump",
        "s3://bucket/prefix",
        "/var/log/",
    ):
        assert told in out
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        names = tar.getnames()
        told = json.load(tar.extractfile("manifest.json") or pytest.fail())
    assert names[0] == "state/ledger.sqlite" and names[-1] == "manifest.json"
    assert set(names[1:-1]) == {"state/session-secret", "state/history/1.json", "policies/gateway.yaml"}
    assert told["version"] and told["files"].keys() == {*names[:-1]}


def test_what_is_in_memory_alone_is_said_to_be_missing(
    policies: Path, state: Path, tmp_path: Path, run: Run
) -> None:
    code, out, _ = run(state, policies, "backup", str(tmp_path / "b.tar.gz"))
    assert code == 0 and "stored responses" in out


def test_where_it_cannot_write_is_said_without_numbers(
    policies: Path, state: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "file").touch()
    code, _, error = run(state, policies, "backup", str(tmp_path / "file" / "b.tar.gz"))
    assert code == 1 and "Not a directory" in error and "Errno" not in error
    for place in (tmp_path / "file", tmp_path / "nosuch"):
        code, _, error = run(state, policies, "backup", str(place / "b.tar.gz"))
        assert code == 1 and f"{place / 'b.tar.gz'} cannot be made" in error, "that is what was named"


def test_what_is_there_is_not_overwritten_without_a_flag(
    policies: Path, state: Path, tmp_path: Path, run: Run
) -> None:
    archive = str(tmp_path / "b.tar.gz")
    assert run(state, policies, "backup", archive)[0] == 0
    assert "is there already" in run(state, policies, "backup", archive)[2]
    (state / "session-secret").write_text("another")
    (policies / "gateway.yaml").write_text("version: 1\n")
    code, _, err = run(state, policies, "restore", archive)
    assert code == 1 and "is not empty" in err and (state / "session-secret").read_text() == "another"
    code, out, _ = run(tmp_path / "elsewhere", policies, "restore", archive)
    assert code == 0 and "was left as it is" in out and "gateway.yaml" in out
    assert (policies / "gateway.yaml").read_text() == "version: 1\n"
    assert (tmp_path / "elsewhere" / "session-secret").read_text() == "s3cret"

    code, out, _ = run(state, policies, "restore", archive, "--replace")
    assert code == 0
    assert (state / "session-secret").read_text() == "s3cret"
    assert (policies / "gateway.yaml").read_text() == POLICY
    (aside,) = state.glob(".before-restore-*")
    assert str(aside) in out and (aside / "session-secret").read_text() == "another"
    assert rows(state / "ledger.sqlite", "SELECT n FROM rows") == [(7,)]
    assert run(state, policies, "backup", str(tmp_path / "c.tar.gz"))[0] == 0
    with tarfile.open(tmp_path / "c.tar.gz") as tar:
        assert not [name for name in tar.getnames() if "before-restore" in name], (
            "nothing put aside is kept again"
        )


def names_in(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return set(tar.getnames())


def test_what_lies_behind_a_link_is_kept(policies: Path, state: Path, tmp_path: Path, run: Run) -> None:
    """A restore on another machine has no other disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "of a caller").write_text("content")
    (state / "files").symlink_to(tmp_path / "disk")
    (state / "beside").symlink_to("history")
    (state / "history" / "back").symlink_to(state)
    (state / "to nothing").symlink_to("nowhere")
    code, out, _ = run(state, policies, "backup", str(tmp_path / "b.tar.gz"))
    assert code == 0 and "to nothing leads to: nowhere is not there" in out
    names = names_in(tmp_path / "b.tar.gz")
    assert {"state/files/of a caller", "state/history/1.json", "state/beside/1.json"} <= names
    assert not [name for name in names if "back/" in name or "nothing" in name]
    fresh = tmp_path / "fresh"
    assert run(fresh, policies, "restore", str(tmp_path / "b.tar.gz"))[0] == 0
    assert (fresh / "files" / "of a caller").read_text() == "content"
    assert not [path for path in fresh.rglob("*") if path.is_symlink()]


def test_a_folder_that_cannot_be_read_is_not_left_out() -> None:
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        root = Path(name)
        root.chmod(0o777)
        for folder in ("state", "policies", "state/files"):
            (root / folder).mkdir()
        (root / "state" / "files").chmod(0)

        def attempt() -> None:
            folders = {"state": root / "state", "policies": root / "policies"}
            with pytest.raises(PermissionError, match="files"):
                archive.write(root / "b.tar.gz", folders, version="1", made="now", left_out=())
            assert not list(root.glob("*.gz*"))

        as_somebody(attempt)
        (root / "state" / "files").chmod(0o700)


def test_a_folder_behind_a_link_takes_no_backup_of_itself(
    policies: Path, state: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "link").symlink_to(state)
    for served, named in ((tmp_path / "link", state), (state, tmp_path / "link")):
        code, _, err = run(served, policies, "backup", str(named / "b.tar.gz"))
        assert code == 1 and "elsewhere" in err


@pytest.mark.parametrize("fault", ["cut", "changed", "strange", "outside", "nested"])
def test_of_a_damaged_backup_nothing_is_taken(
    policies: Path, state: Path, tmp_path: Path, run: Run, fault: str
) -> None:
    archive, fresh = tmp_path / "b.tar.gz", tmp_path / "fresh"
    assert run(state, policies, "backup", str(archive))[0] == 0
    if fault == "cut":
        archive.write_bytes(archive.read_bytes()[:-200])
    elif fault == "strange":
        archive.write_bytes(b"nothing of the kind")
    elif fault == "nested":
        with tarfile.open(archive, "w:gz") as tar:
            entry = tarfile.TarInfo("manifest.json")
            entry.size = 200_000
            tar.addfile(entry, io.BytesIO(b"[" * entry.size))
    else:
        with tarfile.open(archive) as tar:
            held = [(entry, (tar.extractfile(entry) or pytest.fail()).read()) for entry in tar]
        with tarfile.open(archive, "w:gz") as tar:
            for entry, content in held:
                if entry.name == "state/session-secret":
                    content = b"forged" if fault == "changed" else content
                    entry.name = "state/../../evil" if fault == "outside" else entry.name
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    code, _, err = run(fresh, policies, "restore", str(archive))
    assert code == 1 and ("damaged" in err or "no backup" in err)
    assert list(fresh.iterdir()) == [] and not (tmp_path / "evil").exists()


def test_a_backup_is_not_made_in_what_it_keeps(policies: Path, state: Path, run: Run) -> None:
    code, _, err = run(state, policies, "backup", str(state / "b.tar.gz"))
    assert code == 1 and "elsewhere" in err


def test_a_restore_that_fails_halfway_moves_all_back(
    policies: Path, state: Path, tmp_path: Path, run: Run
) -> None:
    """A folder of the policies is a file there by now."""
    (policies / "more").mkdir()
    (policies / "more" / "b.yaml").write_text("{}")
    assert run(state, policies, "backup", str(tmp_path / "b.tar.gz"))[0] == 0
    (state / "session-secret").write_text("another")
    (state / "link").symlink_to("history")
    (policies / "more" / "b.yaml").unlink()
    (policies / "more").rmdir()
    (policies / "more").write_text("no folder")
    (policies / "gateway.yaml").write_text("version: 1\n")
    before = [sorted(folder.rglob("*")) for folder in (state, policies)]
    code, _, err = run(state, policies, "restore", str(tmp_path / "b.tar.gz"), "--replace")
    assert code == 1 and "more" in err and "by hand" not in err
    assert [sorted(folder.rglob("*")) for folder in (state, policies)] == before
    assert (state / "session-secret").read_text() == "another" and os.readlink(state / "link") == "history"
    assert (policies / "gateway.yaml").read_text() == "version: 1\n"


def test_links_that_are_put_aside_lead_where_they_led(
    policies: Path, state: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "disk").mkdir()
    (state / "files").symlink_to("../disk")
    assert run(state, policies, "backup", str(tmp_path / "b.tar.gz"))[0] == 0
    (policies / "gateway.yaml").rename(tmp_path / "own.yaml")
    (tmp_path / "own.yaml").write_text("version: 1\n")
    (policies / "gateway.yaml").symlink_to("../own.yaml")
    code, _, err = run(state, policies, "restore", str(tmp_path / "b.tar.gz"), "--replace")
    assert code == 0, err
    (aside,), (policies_aside,) = state.glob(".before-*"), policies.glob(".before-*")
    assert (aside / "files").samefile(tmp_path / "disk")
    assert (policies_aside / "gateway.yaml").samefile(tmp_path / "own.yaml")
    assert (policies / "gateway.yaml").read_text() == POLICY and not (policies / "gateway.yaml").is_symlink()


def test_what_a_linked_folder_of_policies_leads_to_stays_as_it_is(
    policies: Path, state: Path, tmp_path: Path, run: Run
) -> None:
    for name in ("changed", "same"):
        (policies / "more").mkdir(exist_ok=True)
        (policies / "more" / name).write_text("kept")
    assert run(state, policies, "backup", str(tmp_path / "b.tar.gz"))[0] == 0
    shared = (policies / "more").rename(tmp_path / "shared")
    (policies / "more").symlink_to("../shared")
    (shared / "changed").write_text("another's")
    code, _, err = run(state, policies, "restore", str(tmp_path / "b.tar.gz"), "--replace")
    assert code == 0, err
    assert {file.name: file.read_text() for file in shared.iterdir()} == {
        "changed": "another's",
        "same": "kept",
    }
    assert not (policies / "more").is_symlink()
    assert {file.name: file.read_text() for file in (policies / "more").iterdir()} == dict.fromkeys(
        ("changed", "same"), "kept"
    )
    (aside,) = policies.glob(".before-*")
    assert (aside / "more").samefile(shared)


def test_a_gateway_and_a_restore_keep_each_other_out(
    policies: Path, state: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "b.tar.gz")
    with state_lock(state, alone=False), state_lock(state, alone=False):
        assert run(state, policies, "backup", file)[0] == 0
        code, _, err = run(state, policies, "restore", file, "--replace")
        assert code == 1 and "a gateway serves on" in err
    assert not any(name.endswith(LOCK) for name in names_in(Path(file)))
    unpack, started = archive.unpack, list[subprocess.CompletedProcess[str]]()

    def slowly(*arguments: Path) -> archive.Manifest:
        command = [sys.executable, "-m", "gateway", "serve", "--policies", str(policies), "--port", "0"]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TOLLGATE_STATE_DIR": str(state)}
        started.append(subprocess.run(command, env=env, capture_output=True, text=True, timeout=60))
        return unpack(*arguments)

    monkeypatch.setattr(archive, "unpack", slowly)
    assert run(state, policies, "restore", file, "--replace")[0] == 0
    assert started[0].returncode == 1 and "'tollgate restore' is under way" in started[0].stderr
    assert [*state.glob(".before-restore-*/.lock")] == []


def test_what_does_not_fit_is_refused_before_it_is_written(
    policies: Path, state: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(state, policies, "backup", str(tmp_path / "b.tar.gz"))[0] == 0
    for bound, value in (("SPARE", 2**62), ("MOST_MANIFEST", 10)):
        with monkeypatch.context() as patched:
            patched.setattr(archive, bound, value)
            code, _, err = run(tmp_path / "fresh", policies, "restore", str(tmp_path / "b.tar.gz"))
        assert code == 1 and "there is room for" in err
        assert list((tmp_path / "fresh").iterdir()) == []
