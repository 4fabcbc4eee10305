"""``tollgate schema``: JSON Schema of a policy's files, for editors and CI."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "schema",
        help="print JSON Schema of a policy's files",
        description="Print JSON Schema (2020-12) of the files of a policy folder. An editor that knows it completes "
        "keys, explains them and marks mistakes: with yaml-language-server by a file's first line, "
        "'# yaml-language-server: $schema=policy.schema.json'.",
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="write it there, such as policies/policy.schema.json"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    text = written()
    out: Path | None = arguments.out
    if out is None:
        sys.stdout.write(text)
        return 0
    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        print(f"tollgate schema: {out} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"Wrote {out}. A policy file beside it begins with: # yaml-language-server: $schema={out.name}")
    return 0


def written() -> str:
    from gateway.lab.schema import policy_schema  # the lab is loaded by the commands that need it alone

    return _laid_out(policy_schema(), 4) + "\n"


def _laid_out(value: Any, levels: int, indent: str = "") -> str:
    """A line for each key of the policy, so that a change is seen as one."""
    if not levels or not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False)
    deeper = f"{indent} "
    entries = (
        f"{deeper}{json.dumps(name)}: {_laid_out(one, levels - 1, deeper)}" for name, one in value.items()
    )
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
