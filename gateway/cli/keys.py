"""``tollgate keys``: make, list and revoke API keys in a policy folder."""

from __future__ import annotations

import argparse
import fcntl
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.policy import yaml_tree
from gateway.policy.checks import aliases_of
from gateway.policy.folder import Folder, find, read_folder
from gateway.policy.keyfile import NEW_FILE, CannotEdit, added, removed
from gateway.policy.keys import DEFAULT_TIER, hash_key, make_key
from gateway.policy.problems import Place, PolicyError, suggestion
from gateway.policy.schema import Key, parse_duration
from gateway.policy.yaml_tree import Map, Scalar, Sequence

FILE = "keys.yaml"
_OPTIONS = {"allow_ips": "allow-ip"}
_TAKEN_UP = "A running gateway takes that up within a second."


class Usage(Exception):
    """An argument that cannot be used."""


class Failed(Exception):
    """What was asked cannot be done; the message says why."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry as it is written, whether it is sound or not."""

    place: Place
    position: int
    """Its index in its own file's list."""
    content: dict[str, Any]

    def text(self, key: str, default: str = "") -> str:
        value = self.content.get(key)
        return default if value is None else str(value)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "keys", help="make, list and revoke API keys", description="Make, list and revoke API keys."
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--policies",
        metavar="DIR",
        type=Path,
        default=Path(os.environ.get("TOLLGATE_POLICIES") or "policies"),
        help="the policy folder (policies)",
    )
    actions = parser.add_subparsers(metavar="create|list|revoke", required=True)
    create_ = actions.add_parser(
        "create",
        parents=[shared],
        help="make a key",
        description=f"Make a key, write its hash to {FILE} and print it, once, on standard output.",
    )
    create_.add_argument("--id", metavar="NAME", help="what the key is called in logs and here (made up)")
    create_.add_argument("--tenant", metavar="NAME", default="default", help="whom it belongs to (default)")
    create_.add_argument(
        "--models",
        metavar="PATTERN",
        nargs="+",
        default=["*"],
        help="the models it may use, such as 'gpt-*' (*)",
    )
    create_.add_argument("--expires", metavar="WHEN", help="a day, as 2027-01-01, or a span, as 90d (never)")
    create_.add_argument("--tier", metavar="NAME", help="in place of its tenant's")
    create_.add_argument(
        "--allow-ip",
        metavar="NETWORK",
        action="append",
        help="an address or network it may be used from, as 10.0.0.0/8; may be given again (anywhere)",
    )
    create_.add_argument("--requests-per-minute", metavar="N", type=int, help="its limit (none)")
    create_.add_argument("--tokens-per-minute", metavar="N", type=int, help="its limit (none)")
    create_.add_argument("--usd-per-month", metavar="DOLLARS", type=float, help="its budget (none)")
    create_.set_defaults(run=lambda arguments: _reported(create, arguments))
    list_ = actions.add_parser("list", parents=[shared], help="list the keys", description="List the keys.")
    list_.set_defaults(run=lambda arguments: _reported(list_keys, arguments))
    revoke_ = actions.add_parser(
        "revoke", parents=[shared], help="revoke a key", description=f"Remove a key from {FILE}."
    )
    revoke_.add_argument("id", metavar="ID", help="the key's id, as 'tollgate keys list' shows it")
    revoke_.set_defaults(run=lambda arguments: _reported(revoke, arguments))


def create(arguments: argparse.Namespace) -> None:
    patterns = [pattern for word in arguments.models for pattern in word.split(",") if pattern]
    if not patterns:
        raise Usage("--models: name at least one model or pattern; '*' is all of them")
    entry: dict[str, Any] = {"id": arguments.id or f"key-{secrets.token_hex(3)}"}
    key = make_key()
    entry |= {"sha256": hash_key(key), "tenant": arguments.tenant, "models": patterns}
    if arguments.expires:
        entry["expires"] = _expiry(arguments.expires).isoformat()
    entry |= _restrictions(arguments)
    try:
        Key.model_validate(entry)
    except ValidationError as error:
        first = error.errors()[0]
        option = _OPTIONS.get(str(first["loc"][0])) or str(first["loc"][-1]).replace("_", "-")
        raise Usage(f"--{option}: {first['msg'].removeprefix('Value error, ')}") from None
    with _locked(arguments.policies):
        folder = _folder(arguments.policies)
        for known in _entries(folder):
            if known.text("id") == entry["id"]:
                raise Failed(f"{known.place}: there is a key with the id '{entry['id']}' already")
        _check_patterns(patterns, folder)
        _check_tier(arguments.tier, folder)
        file = arguments.policies / FILE
        text = file.read_text("utf-8-sig") if file.exists() else NEW_FILE
        try:
            _write(file, added(text, entry))
        except CannotEdit:
            raise Failed(
                f"{file}: its 'keys' are written in a way that cannot be added to; nothing was done"
            ) from None
    print(f"Key '{entry['id']}' is in {file}. {_TAKEN_UP} It is shown this once:", file=sys.stderr)
    print(key)


def list_keys(arguments: argparse.Namespace) -> None:
    rows = [("ID", "TENANT", "TIER", "MODELS", "EXPIRES", "SHA256", "WHERE")]
    today = datetime.now(UTC).date().isoformat()
    folder = _folder(arguments.policies)
    for entry in _entries(folder):
        tenant = entry.text("tenant", "default")
        models = entry.content.get("models", ["*"])
        expires = entry.text("expires", "never")
        rows.append(
            (
                entry.text("id", "?"),
                tenant,
                entry.text("tier") or _tier_of_tenant(folder, tenant),
                " ".join(map(str, models)) if isinstance(models, list) else "?",
                f"{expires} (expired)" if expires <= today else expires,
                entry.text("sha256")[:8] + "…",
                str(entry.place),
            )
        )
    if len(rows) == 1:
        print("No keys. 'tollgate serve' then makes a development key; 'tollgate keys create' makes others.")
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def revoke(arguments: argparse.Namespace) -> None:
    with _locked(arguments.policies):
        folder = read_folder(arguments.policies, os.environ)
        entries = list(_entries(folder))
        named = [entry for entry in entries if entry.text("id") == arguments.id]
        if not named:
            if folder.problems:
                raise PolicyError(folder.problems)
            ids = [entry.text("id") for entry in entries]
            raise Failed(f"no key has the id '{arguments.id}'{suggestion(arguments.id, ids)}")
        entry = named[0]
        by_hand = Failed(f"{entry.place}: remove this entry by hand; 'tollgate keys' only changes {FILE}")
        if entry.place.file.name != FILE:
            raise by_hand
        try:
            text = removed(entry.place.file.read_text("utf-8-sig"), entry.position)
        except CannotEdit:
            raise by_hand from None
        _write(entry.place.file, text)
    print(f"Key '{arguments.id}' is revoked. {_TAKEN_UP}")
    if folder.problems:
        print(
            "The policy folder is broken, though: a running gateway refuses this key, and takes up nothing else.\n"
            f"{PolicyError(folder.problems)}",
            file=sys.stderr,
        )
    elif len(entries) == 1:
        print("No keys are left: the next 'tollgate serve' makes a development key.")


def _reported(action: Any, arguments: argparse.Namespace) -> int:
    try:
        action(arguments)
    except Usage as error:
        print(f"tollgate keys: {error}", file=sys.stderr)
        return 2
    except PolicyError as error:
        print(error, file=sys.stderr)
        return 1
    except Failed as error:
        print(f"tollgate keys: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"tollgate keys: {error.filename or arguments.policies}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _folder(directory: Path) -> Folder:
    folder = read_folder(directory, os.environ)
    if folder.problems:
        raise PolicyError(folder.problems)
    return folder


def _entries(folder: Folder) -> Iterator[Listed]:
    keys = find(folder.root, ("keys",))
    positions: dict[Path, int] = {}
    for item in keys.items if isinstance(keys, Sequence) else ():
        position = positions.get(item.place.file, 0)
        positions[item.place.file] = position + 1
        if isinstance(item, Map):
            yield Listed(item.place, position, yaml_tree.data(item))


def _tier_of_tenant(folder: Folder, tenant: str) -> str:
    tier = find(folder.root, ("tenants", tenant, "tier"))
    return tier.text if isinstance(tier, Scalar) else DEFAULT_TIER


def _restrictions(arguments: argparse.Namespace) -> dict[str, Any]:
    """What narrows a key, as it is written; what was not asked for is left out."""
    quotas = {name: getattr(arguments, name) for name in ("requests_per_minute", "tokens_per_minute")}
    asked = {
        "tier": arguments.tier,
        "allow_ips": arguments.allow_ip,
        "quotas": {name: number for name, number in quotas.items() if number is not None},
        "budget": {} if arguments.usd_per_month is None else {"usd_per_month": arguments.usd_per_month},
    }
    return {name: value for name, value in asked.items() if value}


def _check_tier(tier: str | None, folder: Folder) -> None:
    tiers = find(folder.root, ("tiers",))
    names = tuple(tiers.entries) if isinstance(tiers, Map) else ()
    if tier is not None and names and tier not in (*names, DEFAULT_TIER):
        raise Failed(f"--tier: no tier is named '{tier}'{suggestion(tier, names)}")


def _check_patterns(patterns: list[str], folder: Folder) -> None:
    models = find(folder.root, ("models",))
    content = yaml_tree.data(models) if isinstance(models, Map) else {}
    names = (*content, *aliases_of(content))
    for pattern in patterns:
        if not set("*?[") & set(pattern) and pattern not in names:
            raise Failed(f"--models: no model is named '{pattern}'{suggestion(pattern, names)}")


def _expiry(text: str) -> date:
    now = datetime.now(UTC)
    try:
        day = date.fromisoformat(text)
    except ValueError:
        try:
            day = (now + timedelta(seconds=parse_duration(text))).date()
        except (ValueError, OverflowError):
            raise Usage("--expires: write a day, as 2027-01-01, or a span, as 90d") from None
    if day <= now.date():
        raise Usage(f"--expires: {day} is not in the future; the key would never work")
    return day


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One change at a time: two that are made at once must not lose each other."""
    if not directory.is_dir():
        yield  # reading it will say what is wrong
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(file: Path, text: str) -> None:
    """Replace a file by rename, so that nobody reads half of it; only its owner may read it."""
    file = file.resolve()
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
