"""``tollgate import``: another gateway's configuration as a policy folder."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli import schema
from gateway.cli.init import policy_in
from gateway.policy.loader import load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.variables import Variables

if TYPE_CHECKING:
    from gateway.lab.migration.draft import PolicyDraft


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "import",
        help="make a policy of another gateway's configuration",
        description="Make a policy folder of another gateway's configuration, with a report of what did not carry over "
        "and what to do. What it writes passes 'tollgate check'.",
    )
    kinds = parser.add_subparsers(metavar="litellm|portkey|bifrost|agentgateway", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("config", metavar="CONFIG", type=Path, help="the file to read")
    shared.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("policies"), help="where to write it (policies)"
    )
    shared.add_argument("--json", action="store_true", help="tell what was done as JSON")
    wildcards = argparse.ArgumentParser(add_help=False)
    wildcards.add_argument(
        "--models",
        metavar="NAME",
        nargs="+",
        default=[],
        help="models that callers use by a wildcard, as openai/gpt-4o",
    )
    litellm = kinds.add_parser(
        "litellm",
        parents=[shared, wildcards],
        help="of LiteLLM's proxy",
        description="Read the config.yaml of LiteLLM's proxy, and a dump of its database for keys and teams.",
    )
    litellm.add_argument(
        "--keys",
        metavar="DUMP",
        type=Path,
        action="append",
        default=[],
        help="rows of LiteLLM_VerificationToken and LiteLLM_TeamTable: SQL (pg_dump), CSV or JSON; may be given again",
    )
    litellm.set_defaults(run=lambda arguments: _reported(_litellm, arguments))
    portkey = kinds.add_parser(
        "portkey",
        parents=[shared],
        help="a config of Portkey's",
        description="Read a config of Portkey's gateway, as JSON.",
    )
    portkey.add_argument("--name", metavar="MODEL", default="chat", help="what callers ask for (chat)")
    portkey.set_defaults(run=lambda arguments: _reported(_portkey, arguments))
    bifrost = kinds.add_parser(
        "bifrost",
        parents=[shared, wildcards],
        help="of Bifrost",
        description="Read Bifrost's config.json: providers, virtual keys, teams, budgets, limits, routing rules.",
    )
    bifrost.set_defaults(run=lambda arguments: _reported(_bifrost, arguments))
    agentgateway = kinds.add_parser(
        "agentgateway",
        parents=[shared, wildcards],
        help="of agentgateway, outside Kubernetes",
        description="Read agentgateway's configuration: models under llm, or routes to backends of kind ai, and keys.",
    )
    agentgateway.set_defaults(run=lambda arguments: _reported(_agentgateway, arguments))


class _Problem(Exception):
    """It cannot be imported; the message says why."""


def _litellm(arguments: argparse.Namespace) -> PolicyDraft:
    from gateway.lab.migration import dumps, litellm
    from gateway.lab.migration.draft import ConfigError

    rows: list[dict[str, Any]] = []
    try:
        for file in arguments.keys:
            rows += dumps.rows(file.read_text("utf-8-sig"))
    except OSError as error:
        raise _Problem(f"{file} cannot be read: {error.strerror or error}") from None
    except (dumps.DumpError, UnicodeDecodeError) as error:
        raise _Problem(f"{file} {error}") from None
    try:
        return litellm.imported(
            litellm.read(arguments.config),
            source=arguments.config.name,
            env=os.environ,
            rows=rows,
            wanted=arguments.models,
            today=datetime.now(UTC).date(),
        )
    except ConfigError as error:
        raise _Problem(str(error)) from None


def _portkey(arguments: argparse.Namespace) -> PolicyDraft:
    from gateway.lab.migration import portkey
    from gateway.lab.migration.draft import ConfigError

    try:
        return portkey.imported(
            portkey.read(arguments.config), source=arguments.config.name, name=arguments.name
        )
    except ConfigError as error:
        raise _Problem(str(error)) from None


def _bifrost(arguments: argparse.Namespace) -> PolicyDraft:
    from gateway.lab.migration import bifrost
    from gateway.lab.migration.draft import ConfigError

    try:
        config = bifrost.read(arguments.config)
        return bifrost.imported(config, source=arguments.config.name, env=os.environ, wanted=arguments.models)
    except ConfigError as error:
        raise _Problem(str(error)) from None


def _agentgateway(arguments: argparse.Namespace) -> PolicyDraft:
    from gateway.lab.migration import agentgateway
    from gateway.lab.migration.draft import ConfigError

    try:
        config = agentgateway.read(arguments.config)
        return agentgateway.imported(
            config, source=arguments.config.name, env=os.environ, wanted=arguments.models
        )
    except ConfigError as error:
        raise _Problem(str(error)) from None


def _reported(action: Any, arguments: argparse.Namespace) -> int:
    folder: Path = arguments.out
    try:
        if there := policy_in(folder):
            raise _Problem(f"{there} is there already: name another folder with --out")
        draft = action(arguments)
        if not draft.models:
            for line in draft.report.lines():
                print(line, file=sys.stderr)
            raise _Problem(f"{arguments.config} has no model that can be imported: nothing was written")
        written = draft.write(folder)
        (folder / "policy.schema.json").write_text(schema.written(), "utf-8")
    except _Problem as error:
        print(f"tollgate import: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"tollgate import: {error.filename or folder}: {error.strerror or error}", file=sys.stderr)
        return 1
    problems = _problems(draft, folder)
    draft.write_report(folder)
    if arguments.json:
        print(json.dumps(_content(draft, written, problems), indent=2, ensure_ascii=False))
    else:
        print("\n".join(draft.told()))
        print(f"Wrote {', '.join(map(str, written))}.")
        _say(problems, folder)
    return 1 if problems else 0


def _say(problems: list[str], folder: Path) -> None:
    if problems:
        print("The policy needs your hand before it is valid:")
        print("\n".join(problems))
    else:
        print(
            f"It is valid. Look at it with: tollgate check {folder}; serve it with: tollgate serve --policies {folder}"
        )


def _problems(draft: PolicyDraft, folder: Path) -> list[str]:
    """What ``tollgate check`` finds, as if each variable that it reads were set. Targets without a price are noted."""
    from gateway.lab.migration.unpriced import tell_unpriced

    stand_ins: Mapping[str, str] = {name: _stand_in(name) for name in draft.needed}
    try:
        loaded = load_policy(folder, {**stand_ins, **draft.secrets, **Variables()})
    except PolicyError as error:
        return [str(problem) for problem in error.problems]
    tell_unpriced(loaded.policy, draft)
    return []


def _stand_in(name: str) -> str:
    if name.endswith("PORT"):
        return "6379"
    return "https://stand-in.invalid" if name.endswith(("_BASE", "_URL", "ENDPOINT", "_API")) else "stand-in"


def _content(draft: PolicyDraft, written: list[Path], problems: list[str]) -> dict[str, Any]:
    return {
        "files": [str(path) for path in written],
        "backends": [*draft.backends],
        "models": [*draft.models],
        "keys": [key["id"] for key in draft.keys],
        "variables": draft.needed,
        "notes": [note._asdict() for note in draft.report.notes],
        "problems": problems,
    }
