"""``tollgate backup`` and ``tollgate restore``: the state folder and the policy as one file, and back."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from filecmp import cmp
from pathlib import Path
from urllib.parse import urlsplit

from gateway.cli import archive, init
from gateway.cli.archive import ASIDE, BESIDE, ArchiveError, Manifest
from gateway.cli.moves import Moves
from gateway.cli.user import state_dir
from gateway.control.client import SOCKET
from gateway.control.state_lock import LOCK, StateInUse, state_lock
from gateway.control.unix_socket import usable
from gateway.policy.folder import find, read_folder
from gateway.policy.problems import PolicyError
from gateway.policy.variables import Variables
from gateway.policy.yaml_tree import Map, Scalar
from gateway.private import private_folder
from gateway.version import version

_NOTHING = frozenset(["lost+found", LOCK])
"""Names that do not make a folder anybody's: of an empty volume, and what stays where it is."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    backup = commands.add_parser(
        "backup",
        help="put the state folder and the policy into one file, while the gateway serves",
        description="Put the state folder (TOLLGATE_STATE_DIR: ledger, files, batches, history, keys, secrets) and the "
        "policy folder into one compressed tar file that only you may read, while the gateway serves. What it keeps "
        "in Redis, PostgreSQL or S3 is not in it, and is named.",
    )
    backup.add_argument(
        "file", metavar="FILE", nargs="?", type=Path, help="the file to make (tollgate-TIME.tar.gz)"
    )
    _with_policies(backup)
    backup.set_defaults(run=run_backup)
    restore = commands.add_parser(
        "restore",
        help="put back what 'tollgate backup' has kept",
        description="Put what a backup has into the state folder (TOLLGATE_STATE_DIR) and the policy folder. No "
        "gateway may serve on that state folder, and it must be empty unless --replace is given. All is checked "
        "first: of a damaged backup nothing is taken.",
    )
    restore.add_argument("file", metavar="FILE", type=Path, help="what 'tollgate backup' has made")
    _with_policies(restore)
    restore.add_argument(
        "--replace",
        action="store_true",
        help=f"put aside what is in the state folder, and policy files that differ, into {ASIDE}TIME there",
    )
    restore.set_defaults(run=run_restore)


def _with_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policies", metavar="DIR", help="the policy folder (policies)")


def run_backup(arguments: argparse.Namespace) -> int:
    folders, policies = {"state": state_dir()}, init.folder(arguments.policies, os.environ)
    if policies != init.BUILTIN:
        folders["policies"] = policies
    if missing := [folder for folder in folders.values() if not folder.is_dir()]:
        return _fail(
            "backup", f"there is no folder {missing[0]}: name it by TOLLGATE_STATE_DIR or --policies"
        )
    file = arguments.file or Path(f"tollgate-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    if any(file.resolve().parent.is_relative_to(folder.resolve()) for folder in folders.values()):
        return _fail("backup", f"{file} would be in what it is a backup of: name a file elsewhere")
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        elsewhere = (*left_out(policies), *archive.links_to_nothing(folders.values()))
        manifest = archive.write(file, folders, version=version(), made=made, left_out=elsewhere)
    except (ArchiveError, PolicyError, OSError) as error:
        return _fail("backup", _why(error))
    print(f"Wrote {file}: {_told(manifest)}.")
    print("It holds secrets, and what callers have uploaded: keep it where only you can read it.")
    _print_left_out(manifest)
    return 0


def left_out(policies: Path) -> Iterator[str]:
    """One line for each place where the gateway keeps what no backup of folders has. Raises ``PolicyError``."""
    root = read_folder(policies, Variables()).root
    for path, what in (
        (("store",), "counters of limits, stored responses, caches: redis-cli --rdb FILE"),
        (("cache_store",), "caches and receipts, which come again by themselves"),
        (("ledger", "store"), "usage, batches, rows of files: pg_dump --schema=tollgate"),
        (("files", "store"), "contents of files: versions of the bucket, or 'aws s3 sync'"),
    ):
        if "://" in (text := _text(root, path)):
            yield f"{'.'.join(path)} at {_without_secrets(text)}: {what}"
    if "://" not in _text(root, ("store",)):
        yield "what store: memory holds: stored responses, caches; they end with the process"
    for path in (("ledger", "path"), ("files", "path"), ("review", "path")):
        if (text := _text(root, path)).startswith("/"):
            yield f"{'.'.join(path)} at {text}, outside of the state folder: copy it, or give a relative path"
    yield "variables of the gateway's environment, such as providers' API keys"


def _text(root: Map, path: tuple[str, ...]) -> str:
    node = find(root, path)
    return node.text if isinstance(node, Scalar) else ""


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def run_restore(arguments: argparse.Namespace) -> int:
    state, policies = state_dir(), init.folder(arguments.policies, os.environ)
    if policies == init.BUILTIN:
        policies = init.USUAL
    if why := _cannot_take(state, replace=arguments.replace):
        return _fail("restore", why)
    try:
        private_folder(state)
        with state_lock(state, alone=True):
            return _restore(state, policies, arguments)
    except StateInUse:
        return _fail(
            "restore", f"a gateway serves on {state}, or another restore is under way: stop it first"
        )
    except OSError as error:
        return _fail("restore", _why(error))


def _restore(state: Path, policies: Path, arguments: argparse.Namespace) -> int:
    unpacked = state / f"{BESIDE}{os.getpid()}"
    aside = f"{ASIDE}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    moves, left = Moves(), list[Path]()
    try:
        unpacked.mkdir(mode=0o700)
        try:
            manifest = archive.unpack(arguments.file, unpacked)
            if why := _cannot_take(state, replace=arguments.replace):
                return _fail("restore", why)
            old = [name for name in sorted(os.listdir(state)) if not _is_nobodys(name)]
            for name in old:
                moves.move(state / name, state / aside / name)
            for name in sorted(os.listdir(unpacked / "state")) if (unpacked / "state").is_dir() else ():
                moves.move(unpacked / "state" / name, state / name)
            notes = _put_policies(
                moves, unpacked / "policies", policies, aside if arguments.replace else None
            )
        except BaseException:
            left = moves.back()
            raise
        finally:
            shutil.rmtree(unpacked, ignore_errors=True)
    except (ArchiveError, OSError) as error:
        stays = f"; {', '.join(map(str, left))} could not be moved back: do it by hand" if left else ""
        return _fail("restore", _why(error) + stays)
    print(f"Restored {state} from {arguments.file}: {_told(manifest)}.")
    for note in (*notes, *([f"What was there is in {state / aside}."] if old else ())):
        print(note)
    if manifest.version != version():
        print(f"This is {version()}: docs/upgrading.md says which versions read each other's files.")
    _print_left_out(manifest)
    return 0


def _cannot_take(state: Path, *, replace: bool) -> str | None:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            with usable(state / SOCKET) as address:
                sock.connect(address)
            return f"a gateway serves on {state}: stop it first"
        except OSError:
            pass  # nobody listens
    if not replace and state.is_dir() and not all(map(_is_nobodys, os.listdir(state))):
        return f"{state} is not empty: take another by TOLLGATE_STATE_DIR, or put aside what is there by --replace"
    return None


def _is_nobodys(name: str) -> bool:
    return name in _NOTHING or name.startswith((ASIDE, BESIDE))


def _put_policies(moves: Moves, kept: Path, policies: Path, aside: str | None) -> Iterator[str]:
    """Without ``aside`` a folder that has files already stays as it is. Yields what there is to tell."""
    names = [file.relative_to(kept) for file in sorted(kept.rglob("*")) if file.is_file()]
    there = policies.is_dir() and any(policies.iterdir())
    odd = [name for name in names if not _is_same(kept / name, policies / name)]
    notes = []
    if there and aside is None and odd:
        listed = ", ".join(map(str, odd[:5])) + (" …" if len(odd) > 5 else "")
        notes.append(
            f"{policies} was left as it is. What the backup has otherwise, or alone: {listed}; --replace takes it."
        )
    elif odd:
        # What a link leads to is somebody else's: the link is put aside, and all below it put here.
        links = {link for name in odd if (link := _link_above(policies, name)) is not None}
        put = [name for name in names if name in odd or links & {*name.parents}]
        for away in (*sorted(links), *(name for name in put if not links & {*name.parents})):
            if aside is not None and os.path.lexists(policies / away):
                moves.move(policies / away, policies / aside / away)
        for name in put:
            moves.move(kept / name, policies / name)
        notes.append(f"Restored {policies}: {len(put)} files.")
    return iter(notes)


def _link_above(policies: Path, name: Path) -> Path | None:
    """The first folder on the way to a file that is a link."""
    return next((each for each in reversed(name.parents[:-1]) if (policies / each).is_symlink()), None)


def _is_same(one: Path, other: Path) -> bool:
    return other.is_file() and cmp(one, other, shallow=False)


def _told(manifest: Manifest) -> str:
    size = sum(file.size for file in manifest.files.values())
    return f"{len(manifest.files)} files, {size / 1e6:,.1f} MB, of {manifest.made}, by Tollgate {manifest.version}"


def _print_left_out(manifest: Manifest) -> None:
    print("Not in it:")
    for line in manifest.left_out:
        print(f"  {line}")


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror or error}"
    return str(error)


def _fail(command: str, message: str) -> int:
    print(f"tollgate {command}: {message}", file=sys.stderr)
    return 1
