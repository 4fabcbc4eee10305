"""``tollgate record``: recorded traffic, listed, exported, imported and deleted."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from gateway.cli import init
from gateway.cli.user import state_dir
from gateway.databases.database import Database, DatabaseError
from gateway.databases.opening import open_database
from gateway.files.blobs import BlobError
from gateway.policy.key_store import state_files
from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.schema import Policy, parse_duration
from gateway.policy.variables import Variables
from gateway.recording.archive import Archive
from gateway.recording.data_keys import KeyNotOurs
from gateway.recording.opening import open_recordings
from gateway.recording.operator_secret import SecretError
from gateway.recording.recorded_request import RecordedRequest

IMPORTED = "imported"
_PARTIAL = ".partial"


class _Odd(Exception):
    """What was asked cannot be done; the message says why."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "record",
        help="list, export, import and delete recorded traffic",
        description="List, export, import and delete the traffic that a policy's 'record' keeps. It may be done beside "
        "a running gateway, whose open segments are not seen yet.",
    )
    actions = parser.add_subparsers(metavar="list|export|import|delete", required=True)
    listing = actions.add_parser("list", help="what is recorded of whom")
    listing.add_argument("--json", action="store_true", help="print JSON rather than a table")
    listing.set_defaults(work=_list)
    export = actions.add_parser(
        "export",
        help="write recorded requests as JSON lines, decrypted",
        description="Write recorded requests as JSON lines, decrypted: what the lab's commands read as traffic.",
    )
    export.add_argument("--since", metavar="SPAN", help="how far back, as 12h or 30d (all)")
    export.add_argument("--out", metavar="FILE", default="-", help="compressed where it ends in .gz (stdout)")
    export.set_defaults(work=_export)
    adding = actions.add_parser(
        "import",
        help="add traffic from elsewhere to what is recorded",
        description="Add traffic to what is recorded: Azure's and Mooncake's traces, LiteLLM's spend logs, requests in "
        "OpenAI's form, one's own JSON lines, or the ledger. It keeps its times; 'record.retention' counts from now.",
    )
    adding.add_argument("files", metavar="FILE", nargs="*", help="a file or a folder of them, or - for stdin")
    adding.add_argument("--ledger", action="store_true", help="the policy's ledger, rather than files")
    adding.add_argument("--since", metavar="SPAN", help="of the ledger: how far back (all)")
    adding.add_argument("--model", metavar="NAME", help="of requests that name none")
    adding.set_defaults(work=_import)
    deleting = actions.add_parser(
        "delete",
        help="delete all that is recorded of a tenant",
        description="Delete all that is recorded of a tenant. Its data key goes first: no copy of a segment, such as a "
        "backup's, can be read from then on, unless that has the key, too.",
    )
    deleting.add_argument("--yes", action="store_true", help="do not ask")
    deleting.set_defaults(work=_delete)
    for action, many, what in (
        (listing, False, "of this one alone"),
        (export, True, "of these alone"),
        (adding, False, f"whose it is, where a request names nobody ({IMPORTED})"),
        (deleting, False, "whose"),
    ):
        given = {"nargs": "+"} if many else {"required": action is deleting}
        action.add_argument("--tenant", metavar="NAME", help=what, **given)
        action.add_argument("--policies", metavar="DIR", help="the policy folder (policies)")
        action.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exits with 0, 1 where it could not be done, 2 for a policy or options that are wrong."""
    try:
        loaded = load_policy(
            init.folder(arguments.policies, os.environ), Variables(), also=state_files(state_dir())
        )
        archive = Archive(open_recordings(loaded.policy, state_dir(), makes=arguments.work is _import))
    except PolicyError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        return int(arguments.work(arguments, archive, loaded.policy))
    except _Odd as error:
        print(f"tollgate record: {error}", file=sys.stderr)
        return 2
    except (DatabaseError, BlobError, SecretError, KeyNotOurs) as error:
        print(f"tollgate record: {error}", file=sys.stderr)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"tollgate record: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
    finally:
        archive.close()
    return 1


def _list(arguments: argparse.Namespace, archive: Archive, policy: Policy) -> int:
    found = archive.listed(arguments.tenant)
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return 0
    if not found:
        hint = "" if policy.record.enabled else ": the policy has no 'record: {enabled: true}'"
        whose = f" of tenant '{arguments.tenant}'" if arguments.tenant is not None else ""
        print(f"Nothing is recorded{whose}{hint}.")
        return 0
    lines = [
        ("TENANT", "REQUESTS", "SEGMENTS", "BYTES", "FIRST", "LAST"),
        *(
            (
                one.tenant,
                f"{one.requests:,}",
                f"{one.segments:,}",
                f"{one.bytes:,}",
                _moment(one.began),
                _moment(one.ended),
            )
            for one in found
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if 0 < number < 4 else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    return 0


def _export(arguments: argparse.Namespace, archive: Archive, policy: Policy) -> int:
    from gateway.lab.progress import Progress

    progress, written = Progress(), 0
    with _output(arguments.out) as out:
        for one in archive.read(arguments.tenant or (), since=_since(arguments.since)):
            out.write(one.to_json() + b"\n")
            written += 1
            progress.show(None, f"{written:,} requests")
    progress.wipe()
    print(f"{written:,} requests were exported.", file=sys.stderr)
    return 0


def _import(arguments: argparse.Namespace, archive: Archive, policy: Policy) -> int:
    from gateway.lab.progress import Progress
    from gateway.lab.traffic.ledger import read_ledger
    from gateway.lab.traffic.reading import TrafficError, read_traffic

    if arguments.ledger == bool(arguments.files):
        raise _Odd("import: name files, or --ledger")
    progress, tenant = Progress(), arguments.tenant or IMPORTED

    def requests() -> Iterator[RecordedRequest]:
        found = (
            read_ledger(_ledger(policy), _since(arguments.since))
            if arguments.ledger
            else (one for file in arguments.files for one in read_traffic(Path(file)))
        )
        for number, one in enumerate(found):
            progress.show(None, f"{number:,} requests")
            if not one.tenant or (arguments.model and not one.model):
                one = replace(one, tenant=one.tenant or tenant, model=one.model or arguments.model or "")
            yield one

    try:
        added = archive.add(requests())
    except TrafficError as error:
        raise _Odd(str(error)) from None
    finally:
        progress.wipe()
    print(f"{added:,} requests were imported.", file=sys.stderr)
    return 0


def _delete(arguments: argparse.Namespace, archive: Archive, policy: Policy) -> int:
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise _Odd("delete: add --yes where nobody can be asked")
        held = sum(one.requests for one in archive.listed(arguments.tenant))
        if input(f"Delete {held:,} recorded requests of '{arguments.tenant}'? [y/N] ").strip().lower() != "y":
            return 1
    found = archive.delete(arguments.tenant)
    print(
        f"{found:,} recorded requests of '{arguments.tenant}' are deleted, and its data key.", file=sys.stderr
    )
    return 0


def _ledger(policy: Policy) -> Database:
    return open_database(policy.ledger, state_dir())


def _since(span: str | None) -> float:
    if span is None:
        return 0.0
    try:
        return time.time() - parse_duration(span)
    except ValueError:
        raise _Odd(f"--since: {span!r} is no span; write one as 12h or 30d") from None


@contextmanager
def _output(name: str) -> Iterator[IO[bytes]]:
    """A file is there whole or not at all, and only its owner may read it."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    draft = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield file
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
