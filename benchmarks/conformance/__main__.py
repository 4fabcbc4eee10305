"""Outside suites judge the gateway: does it speak OpenAI's and Anthropic's APIs as those are published?

    python -m benchmarks.conformance [canary] [comply] [fuzz] [schemas] [--openai-spec FILE] [--anthropic-spec FILE]

Starts the scripted providers, a gateway and its engine on free ports, runs the suites named (all, if none is) and
prints one table. Exits with 1 if anything fails, with 0 otherwise. A suite that cannot be had here is said to be
skipped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from benchmarks.conformance import canary, comply, tools
from benchmarks.conformance.report import Outcome, table
from benchmarks.conformance.stack import Stack, running

SUITES: dict[str, Callable[[Stack], Iterator[Outcome]]] = {"canary": canary.run, "comply": comply.run}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; all, if none is named"
    )
    args = parser.parse_args()
    unknown = set(args.suites) - set(SUITES)
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    outcomes: list[Outcome] = []
    with running() as stack:
        for name in args.suites or SUITES:
            try:
                outcomes += SUITES[name](stack)
            except tools.Missing as missing:
                outcomes.append(Outcome(name, "", notes=(f"skipped: {missing}",)))
    print(table(outcomes))
    return int(any(one.is_bad for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
