"""The files of a policy folder: read once, or watched, each in its last stable version."""

from __future__ import annotations

import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gateway.policy.problems import PolicyError, Problem

MAX_BYTES = 16 * 1024 * 1024
MAX_TABLE_BYTES = 256 * 1024 * 1024
BOUND = 0.6
"""Seconds after which keys that a file has lost no longer wait for it to be stable."""
_SUFFIXES = (".yaml", ".yml")
_TESTS = (".test.yaml", ".test.yml")
PROMPT = ".prompt.md"
"""How the name of a file ends that holds a system prompt, and nothing else; what comes before names it."""
TABLE = "keys.jsonl"
"""The policy folder's table of keys (``gateway.policy.key_table``)."""
_JUST_WRITTEN = 1.0

Stamp = tuple[int, int, int, int]
"""Inode, size, mtime and ctime (ns): whatever changes a file, or who may read it, changes this."""


class PolicyFile(NamedTuple):
    path: Path
    content: bytes | None
    """None where it cannot be read."""
    problem: str = ""
    """What is wrong with it, before it is parsed."""


def policy_files(directory: Path, also: Sequence[Path] = ()) -> tuple[Path, ...]:
    """The folder's policy files, in the order of their names, and those of ``also`` that are there.

    Raises ``PolicyError`` if the folder has none.
    """
    try:
        there = sorted(entry.name for entry in directory.iterdir())
    except FileNotFoundError:
        raise _nothing(
            directory,
            "no such folder; give the folder that holds your policy files, or make one with 'tollgate init'",
        ) from None
    except NotADirectoryError:
        raise _nothing(directory, f"is a file; give the folder that holds it: {directory.parent}") from None
    except (OSError, ValueError) as error:
        raise _nothing(directory, f"cannot be read: {_why(error)}") from None
    # Names with a leading dot are the half-written files of editors and of `tollgate keys`.
    visible = [name for name in there if not name.startswith(".")]
    files = tuple(
        directory / name for name in visible if name.lower().endswith(_SUFFIXES) and not is_test(name)
    )
    if not files:
        raise _nothing(directory, f"holds no *.yaml file; {_instead(visible)}")
    prompts = [directory / name for name in visible if is_prompt(Path(name))]
    tables = [directory / TABLE] if TABLE in visible else []
    return (*files, *prompts, *tables, *(path for path in also if stamp_of(path) is not None))


def read_files(directory: Path, also: Sequence[Path] = ()) -> tuple[PolicyFile, ...]:
    """All of them as they are now. Raises ``PolicyError`` if there are none."""
    return tuple(map(read_file, policy_files(directory, also)))


def is_test(name: str) -> bool:
    """Whether a file of a policy folder has tests of the policy, and nothing of the policy itself."""
    return name.lower().endswith(_TESTS) and not name.startswith(".")


def is_prompt(path: Path) -> bool:
    """Whether it holds one of ``prompts``, as plain text."""
    return path.name.endswith(PROMPT) and not path.name.startswith(".")


def is_table(path: Path) -> bool:
    """Whether it holds keys as JSON lines, rather than YAML."""
    return path.suffix == ".jsonl"


def read_file(path: Path) -> PolicyFile:
    limit = MAX_TABLE_BYTES if is_table(path) else MAX_BYTES
    try:
        found = path.stat()
        if found.st_size > limit:
            return PolicyFile(path, None, f"is larger than {limit} bytes")
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            # A pipe would be waited for, and a device might never end.
            return PolicyFile(path, None, "is a pipe, a device or a socket; write a file, or remove it")
        content = path.read_bytes()
    except IsADirectoryError:
        return PolicyFile(
            path,
            None,
            "is a folder where a file should be (Docker makes one if the mounted file does not exist)",
        )
    except OSError as error:
        return PolicyFile(path, None, _unread(path, error))
    if not content:
        return PolicyFile(path, content, "is empty; write something or remove the file")
    return PolicyFile(path, content)


@dataclass(slots=True)
class _Watched:
    file: PolicyFile | None = None
    """Its last stable version; None where it did not exist."""
    stamp: Stamp | None = None
    """Of that."""
    seen: Stamp | None = None
    """At the last poll."""
    since: float | None = None
    """When it was first seen to differ."""
    unsettled: PolicyFile | None = None


class WatchedFiles:
    """A policy folder that is polled.

    A new version of a file is stable once two polls agree, so that a half-written file is not read; each by itself, so
    that a file that keeps changing delays no other.
    """

    def __init__(self, directory: Path, also: Sequence[Path] = ()) -> None:
        """``also`` are files elsewhere that belong to the policy while they are there."""
        self._directory = directory
        self._also = also
        self._watched: dict[Path, _Watched] = {}
        self.missing: PolicyError | None = None
        """Why there is no folder to read."""

    @property
    def settled(self) -> tuple[PolicyFile, ...]:
        """Every file in its last stable version. Raises ``PolicyError`` if there are none."""
        files = [one.file for _, one in sorted(self._watched.items(), key=self._order) if one.file]
        if not files and self.missing is not None:
            raise self.missing
        return tuple(files)

    @property
    def unsettled(self) -> tuple[PolicyFile, ...]:
        """Those that have been changing for ``BOUND``, as they were at the last poll."""
        return tuple(one.unsettled for one in self._watched.values() if one.unsettled is not None)

    def look(self, *, now: float | None = None) -> bool:
        """Poll: whether ``settled`` has changed. Blocks on the disk; ``now`` is monotonic time."""
        now = time.monotonic() if now is None else now
        try:
            listed = policy_files(self._directory, self._also)
            self.missing = None
        except PolicyError as error:
            listed = ()
            self.missing = error
        changed = False
        for path in (*listed, *(self._watched.keys() - set(listed))):
            one = self._watched.setdefault(path, _Watched())
            changed |= self._look_at(one, path, stamp_of(path) if path in listed else None, now)
            if one.file is None and one.seen is None:
                del self._watched[path]
        return changed

    def _look_at(self, one: _Watched, path: Path, stamp: Stamp | None, now: float) -> bool:
        stable, one.seen = stamp == one.seen, stamp
        if stamp == one.stamp and not is_fresh(stamp):
            one.since = one.unsettled = None
            return False
        if one.since is None:
            one.since = now
        file = read_file(path) if stamp is not None else None
        if stable and stamp == (stamp_of(path) if stamp is not None else None):
            before, one.file, one.stamp = one.file, file, stamp
            one.since = one.unsettled = None
            return file != before
        if now - one.since >= BOUND:
            one.unsettled = file or PolicyFile(path, None, "comes and goes")
        return False

    def _order(self, item: tuple[Path, _Watched]) -> tuple[bool, str]:
        return item[0] in self._also, item[0].name


def stamp_of(path: Path) -> Stamp | None:
    """None for a file that does not exist; one that cannot be examined does."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        # A dangling link is reported, rather than passed over.
        return (error.errno or 0, 0, 0, 0) if path.is_symlink() else None
    except OSError as error:
        return (error.errno or 0, 0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def is_fresh(stamp: Stamp | None) -> bool:
    """A file system's clock is coarse: two writes in a row can leave the same times."""
    return stamp is not None and abs(time.time_ns() - max(stamp[2:])) < _JUST_WRITTEN * 1e9


def _nothing(directory: Path, message: str) -> PolicyError:
    return PolicyError([Problem(directory, 0, message)])


def _instead(names: Sequence[str]) -> str:
    """What to do about a folder none of whose files, ``names``, is read."""
    meant = next(
        (name for name in names if any(suffix in name.lower() for suffix in (*_SUFFIXES, ".json"))), None
    )
    if meant is None:
        return "write one that begins with 'version: 1'"
    return f"rename '{meant}' so that it ends with .yaml, or write one that begins with 'version: 1'"


def _unread(path: Path, error: OSError) -> str:
    with suppress(OSError):
        if isinstance(error, FileNotFoundError) and path.is_symlink():
            return f"is a link to '{path.readlink()}', which is not there; correct the link or remove it"
    return f"cannot be read: {_why(error)}"


def _why(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
