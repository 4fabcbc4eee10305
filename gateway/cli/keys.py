"""``tollgate keys``: make, list, rotate and revoke API keys in a policy folder."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway.cli import init
from gateway.cli.user import state_dir, user
from gateway.control.changes import ChangeRefused
from gateway.control.client import change
from gateway.identity.api_keys import hash_key, make_key
from gateway.policy import yaml_tree
from gateway.policy.content import aliases_of
from gateway.policy.folder import Folder, find
from gateway.policy.key_store import FILE, ISSUED, KeyStore, KeyStoreError, entries, revoked_hashes
from gateway.policy.problems import PolicyError, suggestion
from gateway.policy.schema import DEFAULT_TIER, Key, parse_duration
from gateway.policy.variables import Variables
from gateway.policy.yaml_tree import Map, Scalar

_OPTIONS = {"allow_ips": "allow-ip"}
_NOT_SENT = "No running gateway was reached; one that reads this file applies the change within a second."


class UsageError(Exception):
    """An argument that cannot be used."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "keys",
        help="make, list, rotate and revoke API keys",
        description="Make, list, rotate and revoke API keys.",
    )
    shared = init.option()
    actions = parser.add_subparsers(metavar="create|list|rotate|revoke", required=True)
    create_ = actions.add_parser(
        "create",
        parents=[shared],
        help="make a key",
        description=f"Make a key, write its hash to {FILE} and print it, once, on standard output.",
    )
    create_.add_argument("--id", metavar="NAME", help="what the key is called in logs and here (made up)")
    create_.add_argument(
        "--tenant", metavar="NAME", default="default", help="the tenant that it belongs to (default)"
    )
    create_.add_argument(
        "--models",
        metavar="PATTERN",
        nargs="+",
        default=["*"],
        help="the models it may use, such as 'gpt-*' (*)",
    )
    create_.add_argument("--expires", metavar="WHEN", help="a day, as 2027-01-01, or a span, as 90d (never)")
    create_.add_argument("--tier", metavar="NAME", help="instead of its tenant's")
    create_.add_argument(
        "--allow-ip",
        metavar="NETWORK",
        action="append",
        help="an address or network it may be used from, as 10.0.0.0/8; may be given again (anywhere)",
    )
    create_.add_argument("--requests-per-minute", metavar="N", type=int, help="its limit (none)")
    create_.add_argument("--tokens-per-minute", metavar="N", type=int, help="its limit (none)")
    create_.add_argument("--usd-per-month", metavar="DOLLARS", type=float, help="its budget (none)")
    create_.add_argument(
        "--scopes",
        metavar="SCOPE",
        nargs="+",
        choices=("inference", "admin"),
        help="what it opens: inference, the models; admin, the page and the API at /admin (inference)",
    )
    create_.set_defaults(run=lambda arguments: _reported(create, arguments))
    list_ = actions.add_parser("list", parents=[shared], help="list the keys", description="List the keys.")
    list_.set_defaults(run=lambda arguments: _reported(list_keys, arguments))
    rotate_ = actions.add_parser(
        "rotate",
        parents=[shared],
        help="replace a key",
        description="Make another key under the same id, with the same limits, and print it, once, on standard "
        "output. The one before is accepted for a while longer.",
    )
    rotate_.add_argument("id", metavar="ID", help="the key's id, as 'tollgate keys list' shows it")
    rotate_.add_argument(
        "--overlap",
        metavar="SPAN",
        default="24h",
        help="how long the one before is accepted, as 12h or 7d (24h)",
    )
    rotate_.set_defaults(run=lambda arguments: _reported(rotate, arguments))
    revoke_ = actions.add_parser(
        "revoke", parents=[shared], help="revoke a key", description=f"Remove a key from {FILE}."
    )
    revoke_.add_argument("id", metavar="ID", help="the key's id, as 'tollgate keys list' shows it")
    revoke_.set_defaults(run=lambda arguments: _reported(revoke, arguments))


def create(arguments: argparse.Namespace) -> None:
    patterns = [pattern for word in arguments.models for pattern in word.split(",") if pattern]
    if not patterns:
        raise UsageError("--models: name at least one model or pattern; '*' is all of them")
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
        raise UsageError(f"--{option}: {first['msg'].removeprefix('Value error, ')}") from None
    result = _change(arguments, do="create", entry=entry)
    if "confirmed" not in result:
        _warn_of_mode(Path(result["file"]))
    for notice in _notices(arguments, patterns):
        print(f"tollgate keys: {notice}", file=sys.stderr)
    print(
        f"Key '{entry['id']}' is in {result['file']}. {_effect(result, 'accepts it')} It is shown this once:",
        file=sys.stderr,
    )
    print(key)
    _check_confirmed(result)


def rotate(arguments: argparse.Namespace) -> None:
    try:
        overlap = parse_duration(arguments.overlap)
    except ValueError:
        raise UsageError("--overlap: write a span, as 12h or 7d") from None
    key = make_key()
    result = _change(arguments, do="rotate", id=arguments.id, sha256=hash_key(key), overlap=overlap)
    print(
        f"Key '{arguments.id}' is another one now, in {result['file']}; the one before is accepted until "
        f"{result['until']}. {_effect(result, 'accepts it')} It is shown this once:",
        file=sys.stderr,
    )
    print(key)
    _check_confirmed(result)


def list_keys(arguments: argparse.Namespace) -> None:
    rows = [("ID", "TENANT", "TIER", "MODELS", "SCOPES", "LIMITS", "EXPIRES", "SHA256", "WHERE")]
    today = datetime.now(UTC).date().isoformat()
    folder = KeyStore(arguments.policies, state_dir() / ISSUED, Variables()).read_valid()
    revoked = revoked_hashes(folder)
    for entry in entries(folder):
        if entry.text("sha256").lower() in revoked:
            continue
        tenant = entry.text("tenant", "default")
        models = entry.content.get("models", ["*"])
        expires = entry.text("expires", "never")
        rows.append(
            (
                entry.text("id", "?"),
                tenant,
                entry.text("tier") or _tier_of_tenant(folder, tenant),
                " ".join(map(str, models)) if isinstance(models, list) else "?",
                _listed(entry.content.get("scopes", ["inference"])),
                _limits(entry.content),
                f"{expires} (expired)" if expires <= today else expires,
                entry.text("sha256")[:8] + "…",
                str(entry.location),
            )
        )
    if len(rows) == 1:
        print("No keys. 'tollgate serve' then makes a development key; 'tollgate keys create' makes others.")
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def revoke(arguments: argparse.Namespace) -> None:
    result = _change(arguments, do="revoke", id=arguments.id)
    if "confirmed" not in result:
        _warn_of_mode(Path(result["file"]))
    print(f"Key '{arguments.id}' is revoked, in {result['file']}. {_effect(result, 'refuses it')}")
    if result["problems"]:
        print(
            "The policy is invalid, though: a running gateway refuses this key, and applies no other change.\n"
            f"{result['problems']}",
            file=sys.stderr,
        )
    elif not result["left"]:
        print("No keys are left: the next 'tollgate serve' makes a development key.")
    _check_confirmed(result)


def _change(arguments: argparse.Namespace, **request: Any) -> dict[str, Any]:
    # Without a running gateway, its state folder is known only if the environment names it.
    named = bool(os.environ.get("TOLLGATE_STATE_DIR"))
    return change(
        {**request, "by": user().content()},
        policies=arguments.policies,
        state_dir=state_dir(),
        env=Variables(),
        kept=named,
    )


def _effect(result: dict[str, Any], does: str) -> str:
    if result.get("confirmed"):
        return f"The running gateway {does}."
    return "" if "confirmed" in result else _NOT_SENT


def _check_confirmed(result: dict[str, Any]) -> None:
    if not result.get("confirmed", True):
        raise KeyStoreError(f"written, but the running gateway has not applied it: {result['why']}")


def _warn_of_mode(file: Path) -> None:
    """A gateway that may not read its keys refuses them all."""
    beside = [path for path in file.parent.glob("*.y*ml") if path != file and not path.name.startswith(".")]
    if any(path.stat().st_mode & 0o044 & ~file.stat().st_mode for path in beside):
        print(
            f"{file} can be read by fewer users than the policy beside it. A gateway that runs as another user, in a "
            f"container for one, refuses all keys in it: chmod {0o600 | beside[0].stat().st_mode & 0o044:o} {file}",
            file=sys.stderr,
        )


def _reported(action: Any, arguments: argparse.Namespace) -> int:
    try:
        action(arguments)
    except UsageError as error:
        print(f"tollgate keys: {error}", file=sys.stderr)
        return 2
    except PolicyError as error:
        print(error, file=sys.stderr)
        return 1
    except (KeyStoreError, ChangeRefused) as error:
        print(f"tollgate keys: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"tollgate keys: {error.filename or arguments.policies}: {error.strerror or error}",
            file=sys.stderr,
        )
        return 1
    return 0


def _listed(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "?"


def _limits(entry: Mapping[str, Any]) -> str:
    """The key's own quotas and budget, as they are written; a dash where it has none."""
    shown = [
        f"{name}={value}"
        for section in ("quotas", "budget")
        for name, value in (entry.get(section) or {}).items()
        if isinstance(entry.get(section), dict)
    ]
    return " ".join(shown) or "-"


def _notices(arguments: argparse.Namespace, patterns: Sequence[str]) -> Iterator[str]:
    """What is probably not meant of a key that has been made: it stands all the same, as what it names may be added."""
    folder = KeyStore(arguments.policies, state_dir() / ISSUED, Variables()).read()
    tenants, models = find(folder.root, ("tenants",)), find(folder.root, ("models",))
    known = tuple(tenants.entries) if isinstance(tenants, Map) else ()
    if known and arguments.tenant not in known and arguments.tenant != "default":
        yield (
            f"--tenant: no tenant is named '{arguments.tenant}': the key has no tenant quotas and no tenant budget"
            f"{suggestion(arguments.tenant, known)}"
        )
    content = yaml_tree.data(models) if isinstance(models, Map) else {}
    names = (*content, *aliases_of(content))
    for pattern in patterns:
        if names and not any(fnmatchcase(name, pattern) for name in names):
            yield f"--models: no model matches '{pattern}'{suggestion(pattern, names)}"


def _tier_of_tenant(folder: Folder, tenant: str) -> str:
    tier = find(folder.root, ("tenants", tenant, "tier"))
    return tier.text if isinstance(tier, Scalar) else DEFAULT_TIER


def _restrictions(arguments: argparse.Namespace) -> dict[str, Any]:
    """The restrictions of a key, as they are written; those that were not given are left out."""
    quotas = {name: getattr(arguments, name) for name in ("requests_per_minute", "tokens_per_minute")}
    asked = {
        "tier": arguments.tier,
        "allow_ips": arguments.allow_ip,
        "scopes": arguments.scopes,
        "quotas": {name: number for name, number in quotas.items() if number is not None},
        "budget": {} if arguments.usd_per_month is None else {"usd_per_month": arguments.usd_per_month},
    }
    return {name: value for name, value in asked.items() if value}


def _expiry(text: str) -> date:
    now = datetime.now(UTC)
    try:
        day = date.fromisoformat(text)
    except ValueError:
        try:
            day = (now + timedelta(seconds=parse_duration(text))).date()
        except (ValueError, OverflowError):
            raise UsageError("--expires: write a day, as 2027-01-01, or a span, as 90d") from None
    if day <= now.date():
        raise UsageError(f"--expires: {day} is not in the future; the key would never work")
    return day
