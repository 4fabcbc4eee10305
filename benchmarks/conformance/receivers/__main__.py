"""Send scores and an evaluation to what the tools publish: a server of Phoenix, and the types of the other two.

    python -m benchmarks.conformance.receivers install      fetch their packages (pip, 1.2 GB)
    python -m benchmarks.conformance.receivers [check]      run it; what is not installed is installed

Prints a table, and exits with 1 if anything is not taken.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.conformance import tools
from benchmarks.conformance.receivers.tried import TOOLS
from benchmarks.conformance.report import Outcome, table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conformance.receivers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", nargs="?", default="check", choices=("install", "check"))
    action = parser.parse_args().action
    outcomes: list[Outcome] = []
    for tool in TOOLS:
        print(f"{tool.package} …", file=sys.stderr, flush=True)
        try:
            python = tools.from_pypi(tool.package)
        except tools.Missing as missing:
            outcomes.append(Outcome(tool.package, "", notes=(f"skipped: {missing}",)))
            continue
        if action == "check":
            outcomes.append(tool.check(python))
    print(table(outcomes))
    return int(any(one.is_bad for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
