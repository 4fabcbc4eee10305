"""Outside suites judge the gateway: does it speak OpenAI's and Anthropic's APIs as those are published?

    python -m benchmarks.conformance [shapes] [canary] [comply] [fuzz] [--openai-spec FILE] [--anthropic-spec FILE]

Starts the scripted providers, a gateway and its engine on free ports, runs the suites named (all, if none is) and
prints one table. Exits with 1 if anything fails, with 0 otherwise. A suite that cannot be had here is said to be
skipped; ``shapes`` needs no network.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.conformance import canary, comply, shapes, tools
from benchmarks.conformance.fuzz import Fuzz
from benchmarks.conformance.report import Outcome, table
from benchmarks.conformance.stack import Stack, running


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.conformance", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help="shapes, canary, comply, fuzz; all, if none is named"
    )
    parser.add_argument(
        "--openai-spec", type=Path, metavar="FILE", help="OpenAI's OpenAPI document (YAML or JSON)"
    )
    parser.add_argument("--anthropic-spec", type=Path, metavar="FILE", help="Anthropic's OpenAPI document")
    parser.add_argument(
        "--examples",
        type=int,
        default=100,
        metavar="N",
        help="requests that fuzz makes up for each operation",
    )
    parser.add_argument("--quiet", action="store_true", help="no remarks below the table, failures only")
    args = parser.parse_args()
    suites: dict[str, Callable[[Stack], Iterator[Outcome]]] = {
        "shapes": shapes.run,
        "canary": canary.run,
        "comply": comply.run,
        "fuzz": Fuzz(args.openai_spec, args.anthropic_spec, args.examples).run,
    }
    if unknown := set(args.suites) - set(suites):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    outcomes: list[Outcome] = []
    with running() as stack:
        for name in args.suites or suites:
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                outcomes += suites[name](stack)
            except tools.Missing as missing:
                outcomes.append(Outcome(name, "", notes=(f"skipped: {missing}",)))
    print(table(outcomes, remarks=not args.quiet))
    return int(any(one.is_bad for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
