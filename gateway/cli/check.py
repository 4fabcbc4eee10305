"""``tollgate check``: say what is wrong with a policy folder, one ``file:line: message`` a problem."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gateway.cli.check_formats import FORMATS, Report
from gateway.policy.loader import Loaded, load_policy
from gateway.policy.problems import PolicyError
from gateway.policy.variables import Variables


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
    parser.add_argument(
        "--format",
        choices=("text", *FORMATS),
        default="text",
        help="text; json; sarif, for code scanning; github, annotations of GitHub Actions (text)",
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="as --format json")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.policies
    written = FORMATS.get(arguments.format)
    try:
        variables = Variables()
        loaded = load_policy(folder, variables, with_files=True)
    except PolicyError as error:
        print(error if written is None else written(Report(folder, error.problems)))
        return 1
    if written is not None:
        print(written(Report(folder, (), loaded.warnings, loaded.disabled, _idle(loaded))))
        return 0
    for line in summary(loaded, folder):
        print(line)
    for notice in variables.notices():
        print(f"{notice} (warning)")
    return 0


def summary(loaded: Loaded, directory: Path) -> list[str]:
    policy = loaded.policy
    counts = (
        _count(len(loaded.sources), "file"),
        _count(len(policy.backends), "backend"),
        _count(len(policy.models), "model"),
        _count(len(policy.keys), "key"),
    )
    idle = [f"model '{name}' has no backend that is enabled" for name in _idle(loaded)]
    disabled = [f"backend '{name}' is disabled: {reason}" for name, reason in loaded.disabled.items()]
    warnings = [f"{problem} (warning)" for problem in loaded.warnings]
    listed = [
        f"{name} costs what the catalogue says (read {one.read} from {one.source}); 'prices' goes before it"
        for name, one in loaded.listed.items()
    ]
    return [f"{directory}: good ({', '.join(counts)})", *disabled, *idle, *warnings, *listed]


def _idle(loaded: Loaded) -> list[str]:
    return [
        name
        for name, model in loaded.policy.models.items()
        if model.targets and all(target.backend in loaded.disabled for target in model.targets)
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
