"""``tollgate test``: unit tests of a policy, from the files beside it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from gateway.cli import init


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "test",
        help="run the tests of a policy",
        description="Run the tests of a policy: its folder's *.test.yaml. They send requests through the gateway's own "
        "pipeline to scripted backends, in virtual time; nothing is sent anywhere. Exits with 1 where one fails, and "
        "with 2 where there is none.",
    )
    parser.add_argument("policies", metavar="DIR", nargs="*", help="policy folders (policies)")
    parser.add_argument("--only", metavar="TEXT", help="the cases that have this in their names")
    parser.add_argument("--json", action="store_true", help="print JSON, with what came of each request")
    parser.add_argument("--junit", metavar="FILE", help="also write JUnit's XML there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    # A process of its own: time passes there as the tests say, and hashes come out the same each time.
    folders = arguments.policies or [init.folder(None, os.environ)]
    command = [sys.executable, "-m", "gateway.lab.policy_tests", *map(str, folders)]
    command += ["--json"] if arguments.json else []
    command += ["--junit", arguments.junit] if arguments.junit else []
    command += ["--only", arguments.only] if arguments.only else []
    sys.stdout.flush()
    return subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "0"}).returncode
