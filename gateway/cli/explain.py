"""``tollgate explain``: what would happen to a request, by which lines of the policy."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli import init
from gateway.cli.user import state_dir
from gateway.policy.key_store import state_files
from gateway.policy.loader import Loaded, load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.variables import Variables

if TYPE_CHECKING:
    from gateway.adapters.adapter import Adapter

MODEL = "the first that the key may ask for"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "explain",
        help="say what would happen to a request, and by which lines of the policy",
        description="Say what would happen to a request: limits, guards, caches, route, fallbacks and cost, each with "
        "the line of the policy that decides it. Nothing is sent. A running gateway says it with its own state at "
        "POST /admin/api/explain. Exits with 0 where the request would go through, with 1 where it would be refused.",
    )
    parser.add_argument(
        "request", metavar="REQUEST", nargs="?", help="a JSON file with its body, or - for stdin"
    )
    parser.add_argument(
        "--key", metavar="ID", required=True, help="an API key's id in the policy, or the key itself"
    )
    parser.add_argument("--model", metavar="NAME", help=f"ask this model, whatever REQUEST says ({MODEL})")
    parser.add_argument("--path", metavar="PATH", help="its path (by its body: /v1/chat/completions, …)")
    parser.add_argument(
        "--header", metavar="NAME: VALUE", action="append", default=[], help="a header of the request"
    )
    parser.add_argument("--policies", metavar="DIR", help="the policy folder (policies)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    folder = init.folder(arguments.policies, os.environ)
    try:
        loaded = load_policy(folder, Variables(), also=state_files(state_dir()))
        body = _body(arguments, loaded)
        headers = dict(_header(one) for one in arguments.header)
    except PolicyError as error:
        print(error, file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"tollgate: {error}", file=sys.stderr)
        return 2
    return asyncio.run(_explain(arguments, loaded, folder, body, headers))


async def _explain(
    arguments: argparse.Namespace, loaded: Loaded, folder: Path, body: bytes, headers: dict[str, str]
) -> int:
    # The lab is loaded where it is used: 'tollgate serve' comes by here, too.
    from gateway.lab.explain.at_rest import at_rest
    from gateway.lab.explain.explain import explain
    from gateway.lab.explain.paths import path_of
    from gateway.lab.explain.question import Question
    from gateway.lab.policy_lines import PolicyLines

    path = arguments.path or path_of(body)
    question = Question(arguments.key, body, path, {"content-type": "application/json", **headers})
    asked = _asked_model(body)
    async with at_rest(loaded, folder, await asyncio.to_thread(_uploads, loaded), asked) as dry:
        explanation = await explain(dry, question, loaded, PolicyLines(loaded, Variables()))
    if arguments.json:
        print(json.dumps(explanation.data(), indent=2))
    else:
        print("\n".join(explanation.lines()))
    return 1 if explanation.outcome.error is not None else 0


def _asked_model(body: bytes) -> str:
    try:
        asked = json.loads(body)
    except ValueError:  # the gateway says so
        return ""
    return str(asked.get("model", "")) if isinstance(asked, dict) else ""


def _uploads(loaded: Loaded) -> Sequence[Adapter]:
    """The adapters that tenants have uploaded to the gateway of this state folder."""
    from gateway.adapters.derived import loads_adapters
    from gateway.adapters.table import ADAPTERS, AdapterTable
    from gateway.databases.database import DatabaseError
    from gateway.databases.opening import open_tables

    if not loads_adapters(loaded.policy):
        return ()
    table = AdapterTable(open_tables(ADAPTERS, loaded.policy.ledger, state_dir()))
    try:
        return table.all()[1] if table.exists else ()
    except DatabaseError as error:
        print(f"tollgate: adapters cannot be read, as if there were none: {error}", file=sys.stderr)
        return ()


def _body(arguments: argparse.Namespace, loaded: Loaded) -> bytes:
    if arguments.request is None:
        model = arguments.model or _first_model(arguments.key, loaded)
        asked = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
        return json.dumps(asked).encode()
    body = sys.stdin.buffer.read() if arguments.request == "-" else Path(arguments.request).read_bytes()
    if arguments.model is None:
        return body
    asked = json.loads(body)
    if not isinstance(asked, dict):
        raise ValueError(f"{arguments.request}: should be a JSON object, the body of a request")
    return json.dumps({**asked, "model": arguments.model}).encode()


def _first_model(key_id: str, loaded: Loaded) -> str:
    from gateway.types import Principal

    mine = next((key for key in loaded.policy.keys if key.id == key_id), None)
    who = Principal(key_id, "default", models=mine.models if mine is not None else ("*",))
    return next(
        (name for name in loaded.policy.models if who.may_use(name)), next(iter(loaded.policy.models))
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"--header '{text}' should be a name and a value: 'cache-control: no-cache'")
    return name.strip().lower(), value.strip()
