"""``tollgate check``: say what is wrong with a policy folder, one ``file:line: message`` a problem."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gateway.policy.loader import Loaded, load_policy
from gateway.policy.problems import PolicyError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "check",
        help="check a policy folder",
        description="Check a policy folder. Exits with 1 and one 'file:line: message' for each problem, or with 0.",
    )
    parser.add_argument(
        "policies",
        metavar="DIR",
        nargs="?",
        type=Path,
        default=Path(os.environ.get("TOLLGATE_POLICIES") or "policies"),
        help="the policy folder (policies)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        loaded = load_policy(arguments.policies, os.environ, with_files=True)
    except PolicyError as error:
        print(error)
        return 1
    for line in summary(loaded, arguments.policies):
        print(line)
    return 0


def summary(loaded: Loaded, directory: Path) -> list[str]:
    policy = loaded.policy
    counts = (
        _count(len(loaded.sources), "file"),
        _count(len(policy.backends), "backend"),
        _count(len(policy.models), "model"),
        _count(len(policy.keys), "key"),
    )
    idle = [
        f"model '{name}' has no backend that is enabled"
        for name, model in policy.models.items()
        if model.targets and all(target.backend in loaded.disabled for target in model.targets)
    ]
    disabled = [f"backend '{name}' is disabled: {reason}" for name, reason in loaded.disabled.items()]
    warnings = [f"{problem} (warning)" for problem in loaded.warnings]
    listed = [
        f"{name} costs what the catalogue says (read {one.read} from {one.source}); 'prices' goes before it"
        for name, one in loaded.listed.items()
    ]
    return [f"{directory}: good ({', '.join(counts)})", *disabled, *idle, *warnings, *listed]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
