"""The real folder, the real clock, a quick poll."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.identity.api_keys import hash_key
from gateway.policy import files, reload
from gateway.policy.loader import Loaded
from gateway.policy.problems import PolicyError
from gateway.policy.reload import PolicyWatcher
from gateway.policy.revoked_keys import RevokedKeys

pytestmark = pytest.mark.anyio

POLL = 0.02


def policy(model: str) -> str:
    return (
        "version: 1\nbackends: {b: {kind: openai, base_url: http://b}}\n"
        f"models: {{{model}: {{targets: [{{backend: b, model: m}}]}}}}\n"
    )


class Taker:
    """Takes policies up, and remembers them by their one model."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.failing = False

    async def __call__(self, loaded: Loaded) -> None:
        if self.failing:
            raise OSError("the store is away")
        self.taken.append(next(iter(loaded.policy.models)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gateway.yaml").write_text(policy("one"))
    return tmp_path


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "did not happen within 300 s"
        await asyncio.sleep(POLL / 2)


async def several_polls() -> None:
    await asyncio.sleep(POLL * 8)


async def test_changes_are_taken_up(folder: Path) -> None:
    taker = Taker()
    async with PolicyWatcher(folder, taker, interval=POLL) as watcher:
        assert taker.taken == ["one"] and watcher.generation == 1
        (folder / "gateway.yaml").write_text(policy("two"))
        await until(lambda: taker.taken == ["one", "two"])
        draft = folder / ".draft"
        draft.write_text(policy("three"))
        draft.rename(folder / "gateway.yaml")
        await until(lambda: taker.taken[-1] == "three")
        (folder / "more.yaml").write_text(policy("x").splitlines()[0] + "\nstore: redis://r\n")
        await until(lambda: watcher.generation == 4)
        assert watcher.current is not None and watcher.current.policy.store == "redis://r"
        (folder / "more.yaml").unlink()
        await until(lambda: watcher.generation == 5)


async def test_a_link_that_leads_nowhere_is_told(folder: Path) -> None:
    taker = Taker()
    async with PolicyWatcher(folder, taker, interval=POLL) as watcher:
        (folder / "more.yaml").symlink_to("nowhere")
        await until(lambda: watcher.last_error is not None)
        assert "more.yaml:1: is a link to 'nowhere', which is not there" in str(watcher.last_error)
        (folder / "more.yaml").unlink()
        await until(lambda: watcher.last_error is None)
    assert taker.taken == ["one"]


async def test_a_config_map_swapped_by_symlink(tmp_path: Path) -> None:
    """As the kubelet does it: the files are links into ``..data``, and that link is replaced."""
    for name in ("one", "two"):
        (tmp_path / f"..{name}").mkdir()
        (tmp_path / f"..{name}" / "gateway.yaml").write_text(policy(name))
        os.utime(tmp_path / f"..{name}" / "gateway.yaml", (1, 1))
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "gateway.yaml").symlink_to("..data/gateway.yaml")
    taker = Taker()
    async with PolicyWatcher(tmp_path, taker, interval=POLL):
        (tmp_path / "..tmp").symlink_to("..two")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        await until(lambda: taker.taken == ["one", "two"])


async def test_a_broken_folder_keeps_the_last_good_policy(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taker, errors = Taker(), []
    async with PolicyWatcher(folder, taker, on_error=lambda _: errors.append(1), interval=POLL) as watcher:
        (folder / "gateway.yaml").write_text("version: [")
        await until(lambda: watcher.last_error is not None)
        await several_polls()
        logged = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(logged) == len(errors) == 1
        assert f"{folder}/gateway.yaml:1: not valid YAML" in logged[0].getMessage()
        assert taker.taken == ["one"] and watcher.generation == 1
        (folder / "gateway.yaml").write_text(policy("two"))
        await until(lambda: taker.taken == ["one", "two"])
        await until(lambda: watcher.last_error is None)


@pytest.mark.parametrize("restored", ["one", "two"])
async def test_a_folder_that_went_away_and_came_back(folder: Path, restored: str) -> None:
    taker = Taker()
    async with PolicyWatcher(folder, taker, interval=POLL) as watcher:
        shutil.rmtree(folder)
        await until(lambda: watcher.last_error is not None)
        os.mkdir(folder)
        (folder / "gateway.yaml").write_text(policy(restored))
        await until(lambda: watcher.last_error is None)
        assert taker.taken == list(dict.fromkeys(["one", restored]))


async def test_a_file_is_not_read_while_it_is_being_written(folder: Path) -> None:
    taker = Taker()
    async with PolicyWatcher(folder, taker, interval=POLL * 4) as watcher:
        with (folder / "gateway.yaml").open("w") as file:
            for line in (policy("two") + "store: redis://r\n").splitlines(keepends=True):
                file.write(line)
                file.flush()
                await asyncio.sleep(POLL * 2)
        await until(lambda: watcher.generation == 2)
        assert watcher.current is not None and watcher.current.policy.store == "redis://r"
        assert watcher.last_error is None


async def test_a_writer_that_is_held_up_half_way_makes_no_mistake(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that stands still between two polls shows both the empty file, however short its time was."""
    now = 1000.0
    monkeypatch.setattr(reload, "time", SimpleNamespace(monotonic=lambda: now))
    errors: list[Exception] = []
    async with PolicyWatcher(folder, Taker(), on_error=errors.append, interval=1000.0) as watcher:
        for content in ("", policy("two") + "nonsense: 1\n", "", policy("three")):
            (folder / "gateway.yaml").write_text(content)
            for _ in range(3):
                await watcher._poll()
            if "nonsense" in content:
                assert not errors and watcher.last_error is None
                now += 5001.0
                for _ in range(2):
                    await watcher._poll()
        assert watcher.generation == 2 and watcher.last_error is None
    [logged] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "nonsense" in logged.getMessage() and len(errors) == 1


async def test_what_changes_nothing_is_no_new_generation(folder: Path) -> None:
    taker = Taker()
    async with PolicyWatcher(folder, taker, interval=POLL) as watcher:
        (folder / "gateway.yaml").touch()
        (folder / "gateway.yaml").write_text("# only a comment\n" + policy("one"))
        (folder / "notes.txt").write_text("not ours")
        await several_polls()
        assert watcher.generation == 1 and taker.taken == ["one"]


async def test_two_writes_within_one_tick_of_the_file_systems_clock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same name, inode, size and times, another content: only looking again finds it."""
    taker, file = Taker(), folder / "gateway.yaml"
    now = time.time_ns()
    monkeypatch.setattr(files, "stamp_of", lambda path: (1, 1, now, now) if path.exists() else None)
    monkeypatch.setattr(files, "_JUST_WRITTEN", 3600.0)
    async with PolicyWatcher(folder, taker, interval=POLL):
        file.write_text(policy("six"))
        await until(lambda: taker.taken[-1] == "six")


async def test_a_taker_that_fails_keeps_the_last_good_policy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.policy.reload._RETRY", POLL * 4)
    taker = Taker()
    async with PolicyWatcher(folder, taker, interval=POLL) as watcher:
        taker.failing = True
        (folder / "gateway.yaml").write_text(policy("two"))
        await until(lambda: watcher.last_error == "OSError: the store is away")
        assert watcher.generation == 1
        taker.failing = False  # nothing in the folder changes, and yet it is tried again
        await until(lambda: taker.taken == ["one", "two"])
        await until(lambda: watcher.last_error is None)  # which is noted once it has been taken


async def test_a_start_without_a_policy_fails(tmp_path: Path) -> None:
    with pytest.raises(PolicyError):
        await PolicyWatcher(tmp_path, Taker()).start()


async def test_a_start_with_a_broken_folder_takes_the_fallback(folder: Path, tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    (good / "gateway.yaml").write_text(policy("good"))
    (folder / "gateway.yaml").write_text("version: 2")
    taker = Taker()
    async with PolicyWatcher(folder, taker, fallback=good, interval=POLL) as watcher:
        assert taker.taken == ["good"]
        assert watcher.last_error is not None and "version" in watcher.last_error
        (folder / "gateway.yaml").write_text(policy("mended"))
        await until(lambda: taker.taken == ["good", "mended"])
        await until(lambda: watcher.last_error is None)


async def test_the_environment_is_read_anew_at_each_load(folder: Path) -> None:
    env: dict[str, str] = {"MODEL": "first"}
    (folder / "gateway.yaml").write_text(policy("${MODEL}"))
    taker = Taker()
    async with PolicyWatcher(folder, taker, env=env, interval=POLL):
        env["MODEL"] = "second"
        (folder / "gateway.yaml").write_text(policy("${MODEL}") + "# touched\n")
        await until(lambda: taker.taken == ["first", "second"])


def with_keys(*names: str) -> str:
    return "keys:\n" + "".join(f"  - {{id: {name}, sha256: '{hash_key(name)}'}}\n" for name in names)


def gone(*ids: str) -> RevokedKeys:
    return RevokedKeys(gone=frozenset(ids))


async def test_keys_that_cannot_be_told_are_in_force_and_told_later(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys, told, full = folder / "keys.yaml", list[str](), True

    def tell(digest: str) -> None:
        if full:
            raise OSError(28, "No space left on device")
        told.append(digest)

    keys.write_text(with_keys("a", "b"))
    async with PolicyWatcher(folder, Taker(), on_in_force=tell, interval=POLL) as watcher:
        keys.write_text(with_keys("a"))
        await until(lambda: watcher.generation == 2)
        assert watcher.last_error is None and not told
        assert sum("No space left" in line for line in caplog.messages) == 1
        full = False
        await until(lambda: told == [watcher.in_force])
        await several_polls()
        assert len(told) == 1


async def test_a_key_taken_out_of_a_broken_folder_is_told(folder: Path) -> None:
    keys, told = folder / "keys.yaml", list[RevokedKeys]()
    keys.write_text(with_keys("a", "b", "c"))
    async with PolicyWatcher(folder, Taker(), on_revoked=told.append, interval=POLL) as watcher:
        (folder / "gateway.yaml").write_text("version: [")
        await until(lambda: watcher.last_error is not None)
        keys.write_text(with_keys("a", "c"))
        await until(lambda: told == [gone("b")])
        keys.write_text(with_keys("c"))
        await until(lambda: told[-1] == gone("a", "b"))
        keys.write_text(with_keys("a", "b", "c"))
        await until(lambda: told[-1] == gone())
        keys.write_text(with_keys("a"))
        await until(lambda: told[-1] == gone("b", "c"))
        (folder / "gateway.yaml").write_text(policy("two"))
        await until(lambda: watcher.generation == 2)
        assert told[-1] == gone("b", "c")  # the new generation knows without being told


async def test_broken_yaml_is_no_revocation(folder: Path) -> None:
    keys, told = folder / "keys.yaml", list[RevokedKeys]()
    keys.write_text(with_keys("a", "b"))
    async with PolicyWatcher(folder, Taker(), on_revoked=told.append, interval=POLL) as watcher:
        for mishap in ("keys: [" + with_keys("a", "b"), with_keys("a", "b") + "nonsense: 1\n"):
            keys.write_text(mishap)
            await until(lambda: watcher.last_error is not None)
            await several_polls()
        assert told == []


async def test_keys_of_a_file_that_cannot_be_read_do_not_count(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys, told = folder / "keys.yaml", list[RevokedKeys]()
    keys.write_text(with_keys("a", "b"))
    async with PolicyWatcher(folder, Taker(), on_revoked=told.append, interval=POLL) as watcher:
        both = watcher.keys_digest
        keys.write_text("")  # as does a disk that is full
        await until(lambda: told == [RevokedKeys(unverified=frozenset("ab"), unreadable_files=(str(keys),))])
        await until(lambda: watcher.keys_digest != both)
        assert not watcher.accepts(hash_key("a"))
        (said,) = (record for record in caplog.records if "2 keys are refused" in record.getMessage())
        assert said.levelno == logging.ERROR and str(keys) in said.getMessage()
        keys.unlink()
        keys.mkdir()
        await several_polls()
        assert told[-1].unverified == {"a", "b"}
        keys.rmdir()
        keys.write_text(with_keys("a", "b"))
        await until(lambda: told[-1] == gone())
        await until(lambda: watcher.keys_digest == both)


async def test_keys_of_a_file_that_vanishes_do_not_count(folder: Path) -> None:
    keys, told = folder / "keys.yaml", list[RevokedKeys]()
    keys.write_text(with_keys("a", "b"))
    async with PolicyWatcher(folder, Taker(), on_revoked=told.append, interval=POLL) as watcher:
        (folder / "gateway.yaml").write_text("version: [")  # so that nothing can be taken up
        keys.unlink()
        await until(lambda: told == [gone("a", "b")])
        shutil.rmtree(folder)
        await until(lambda: told[-1] == RevokedKeys(unverified=frozenset("ab")))
        os.mkdir(folder)
        (folder / "gateway.yaml").write_text(policy("two") + with_keys("b"))
        await until(lambda: watcher.generation == 2)
        assert watcher.accepts(hash_key("b")) and not watcher.accepts(hash_key("a"))


async def test_a_mishap_does_not_bring_a_revoked_key_back(folder: Path) -> None:
    keys, told = folder / "keys.yaml", list[RevokedKeys]()
    keys.write_text(with_keys("a", "b"))
    async with PolicyWatcher(folder, Taker(), on_revoked=told.append, interval=POLL) as watcher:
        (folder / "gateway.yaml").write_text("version: [")
        keys.write_text(with_keys("a"))
        await until(lambda: told == [gone("b")])
        keys.write_text("")
        await until(lambda: not watcher.accepts(hash_key("a")))
        assert not watcher.accepts(hash_key("b"))
        keys.write_text(with_keys("a", "b"))
        await until(lambda: told[-1] == gone())


async def test_a_taker_that_fails_does_not_keep_a_revoked_key(folder: Path) -> None:
    told, taker = list[RevokedKeys](), Taker()
    (folder / "keys.yaml").write_text(with_keys("a", "b"))
    async with PolicyWatcher(folder, taker, on_revoked=told.append, interval=POLL):
        taker.failing = True
        (folder / "keys.yaml").write_text(with_keys("a"))
        await until(lambda: told == [gone("b")])


async def test_a_start_with_the_fallback_tells_at_once(folder: Path, tmp_path: Path) -> None:
    good, told = tmp_path / "good", list[RevokedKeys]()
    good.mkdir()
    (good / "gateway.yaml").write_text(policy("good") + with_keys("a", "b"))
    (folder / "gateway.yaml").write_text(with_keys("a"))  # and no version
    async with PolicyWatcher(folder, Taker(), on_revoked=told.append, fallback=good, interval=POLL):
        assert told == [gone("b")]


@contextmanager
def rewritten(file: Path, text: str) -> Iterator[None]:
    """The file is written anew, another way each time, far more often than it is looked at."""
    over = threading.Event()

    def write() -> None:
        for number in count():
            draft = file.with_name(f".{file.name}.new")
            draft.write_text(text + f"# {number}\n")
            draft.replace(file)
            if over.wait(POLL / 10):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


async def test_a_file_that_never_stands_still_keeps_no_other_waiting(folder: Path) -> None:
    keys, taker = folder / "keys.yaml", Taker()
    keys.write_text(with_keys("a", "b"))
    async with PolicyWatcher(folder, taker, interval=POLL) as watcher:
        with rewritten(folder / "gateway.yaml", policy("two")):
            keys.write_text(with_keys("b", "c"))
            await until(lambda: watcher.accepts(hash_key("c")))
            assert not watcher.accepts(hash_key("a")) and watcher.accepts(hash_key("b"))
        await until(lambda: taker.taken[-1] == "two")  # the other is read when it stands still


async def test_keys_that_a_file_loses_do_not_wait_for_it_to_stand_still(folder: Path) -> None:
    keys, told = folder / "keys.yaml", list[RevokedKeys]()
    keys.write_text(with_keys("a", "b"))
    async with PolicyWatcher(folder, Taker(), on_revoked=told.append, interval=POLL) as watcher:
        with rewritten(keys, with_keys("a")):
            await until(lambda: not watcher.accepts(hash_key("b")))
            assert watcher.accepts(hash_key("a")) and told
        await until(lambda: watcher.generation == 2)
        assert watcher.accepts(hash_key("a")) and not watcher.accepts(hash_key("b"))


async def test_files_elsewhere_belong_to_the_policy_while_they_are_there(
    folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "state" / "keys.yaml"
    async with PolicyWatcher(folder, Taker(), also=[other], interval=POLL) as watcher:
        other.parent.mkdir()
        other.write_text(with_keys("a"))
        await until(lambda: watcher.accepts(hash_key("a")))
        (folder / "keys.yaml").write_text(with_keys("b"))
        await until(lambda: watcher.accepts(hash_key("b")))
        other.write_text(f"revoked_keys: ['{hash_key('b')}']")
        await until(lambda: not watcher.accepts(hash_key("b")))
        other.unlink()
        await until(lambda: watcher.accepts(hash_key("b")) and not watcher.accepts(hash_key("a")))


async def test_keys_of_a_table_come_and_go(folder: Path) -> None:
    table, key = folder / "keys.jsonl", '{{"id": "{0}", "sha256": "{1}"}}\n'
    table.write_text(key.format("a", hash_key("a")))
    async with PolicyWatcher(folder, Taker(), interval=POLL) as watcher:
        assert watcher.accepts(hash_key("a"))
        with table.open("a") as file:
            file.write(key.format("b", hash_key("b")))
        await until(lambda: watcher.accepts(hash_key("b")))
        (folder / "broken.yaml").write_text("models: [")
        with table.open("a") as file:
            file.write(f'{{"revoked": "{hash_key("a")}"}}\n')
        await until(lambda: not watcher.accepts(hash_key("a")))
        assert watcher.accepts(hash_key("b")), "while the rest is broken"
