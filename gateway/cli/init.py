"""``tollgate init``: write a policy to begin with. And where the policy is when nobody says so."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.cli import schema
from gateway.policy.files import policy_files
from gateway.policy.problems import PolicyError

USUAL = Path("policies")
BUILTIN = Path(__file__).resolve().parents[1] / "policy" / "builtin"
"""The default policy as it is shipped: the source's policies/gateway.yaml."""
_FILE, _SCHEMA = "gateway.yaml", "policy.schema.json"


def folder(given: str | os.PathLike[str] | None, env: Mapping[str, str]) -> Path:
    """The policy folder: the one given, else TOLLGATE_POLICIES, else ``policies``; where that is not there, the
    built-in one."""
    if named := given or env.get("TOLLGATE_POLICIES"):
        return Path(named)
    return USUAL if USUAL.exists() else BUILTIN


def option() -> argparse.ArgumentParser:
    """``--policies``, for commands that change what is there."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--policies",
        metavar="DIR",
        type=Path,
        default=Path(os.environ.get("TOLLGATE_POLICIES") or USUAL),
        help="the policy folder (policies)",
    )
    return shared


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "init",
        help="write a policy to begin with",
        description=f"Write the default policy, with comments, to DIR/{_FILE}, and its schema for editors beside it. "
        "A policy that is there already is left alone.",
    )
    parser.add_argument(
        "policies",
        metavar="DIR",
        nargs="?",
        type=Path,
        default=Path(os.environ.get("TOLLGATE_POLICIES") or USUAL),
        help="the policy folder, made if need be (policies)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    directory: Path = arguments.policies
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if there := policy_in(directory):
            return _complain(f"{there} is there already: nothing was written")
        with (directory / _FILE).open("x", encoding="utf-8") as file:
            file.write((BUILTIN / _FILE).read_text("utf-8"))
        (directory / _SCHEMA).write_text(schema.written(), "utf-8")
    except OSError as error:
        return _complain(f"{directory / _FILE} cannot be written: {error.strerror or error}")
    option = "" if directory == USUAL else f" --policies {directory}"
    print(
        f"Wrote {directory / _FILE}. Edit it, check it with: tollgate check{'' if not option else f' {directory}'}"
    )
    print(f"Serve it with: tollgate serve{option}")
    return 0


def policy_in(directory: Path) -> Path | None:
    """A file of the policy that is there."""
    try:
        return policy_files(directory)[0]
    except PolicyError:
        return None


def _complain(message: str) -> int:
    print(f"tollgate: {message}", file=sys.stderr)
    return 1
