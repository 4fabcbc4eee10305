"""The process that runs tests of a policy: its clocks are replaced before the gateway is imported."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from gateway.lab.policy_tests.virtual_time import VirtualTime


def main() -> int:
    parser = argparse.ArgumentParser(prog="tollgate test")
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--junit", type=Path)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    clock = VirtualTime()
    clock.begin()
    from gateway.lab.policy_tests import report
    from gateway.lab.policy_tests.reader import test_files
    from gateway.lab.policy_tests.run import run_all

    found: dict[Path, list[Path]] = {}
    for directory in arguments.directories:
        try:
            found[directory] = test_files(directory)
        except OSError as error:
            return _complain(f"{directory}: {error.strerror or error}")
        if not found[directory]:
            return _complain(f"{directory} holds no tests: write them into gateway.test.yaml there")
    logging.disable(logging.CRITICAL)  # what is logged of failures is what the tests ask for
    results = [
        result
        for directory, paths in found.items()
        for result in run_all(directory, paths, clock, arguments.only)
    ]
    told = report.as_json(results) if arguments.json else "\n".join(report.lines(results))
    sys.stdout.write(f"{told}\n")
    if arguments.junit is not None:
        report.write_junit(results, arguments.junit)
    return 1 if any(result.failed for result in results) else 0


def _complain(message: str) -> int:
    sys.stderr.write(f"tollgate: {message}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
