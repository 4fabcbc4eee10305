"""Attacks on a running gateway, and what comes of them.

    python -m benchmarks.attacks [NAME …] [--list]

Each attack (a file of this folder) has a gateway of its own, as ``tollgate serve`` runs it by default, and whatever
else it needs. Prints a table of what was tried and what happened; exits with 1 if an attack succeeded or could not be
run to its end, with 0 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable
from types import ModuleType

from benchmarks import attacks
from benchmarks.attacks.frame.attack import Attack, Outcome, found
from benchmarks.attacks.frame.report import table
from benchmarks.processes import ended_in_order


def main(arguments: list[str] | None = None, package: ModuleType = attacks) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.attacks", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="attacks, or points such as D.26; all of them"
    )
    parser.add_argument("--list", action="store_true", help="only say which attacks there are")
    args = parser.parse_args(arguments)
    all_ = list(found(package))
    chosen = [one for one in all_ if not args.names or one.name in args.names or one.point in args.names]
    if unknown := set(args.names) - {word for one in all_ for word in (one.name, one.point)}:
        parser.error(f"no such attack: {', '.join(sorted(unknown))}; --list shows them")
    if args.list:
        print("\n".join(f"{one.point:5} {one.name}: {one.tried}" for one in chosen))
        return 0
    with ended_in_order():
        outcomes = asyncio.run(_try(chosen))
    print(table(outcomes))
    bad = sum(one.is_bad for one in outcomes)
    print(f"\n{len(outcomes)} attacks, {bad} succeeded or could not be run to their end", file=sys.stderr)
    return int(bad > 0)


async def _try(chosen: Iterable[Attack]) -> list[Outcome]:
    """One after the other: they load the machine, and would disturb each other."""
    outcomes = []
    for one in chosen:
        print(f"{one.point} {one.name} …", end=" ", file=sys.stderr, flush=True)
        outcomes.append(outcome := await one.outcome())
        print(f"{outcome.verdict}: {outcome.happened} ({outcome.seconds:.1f} s)", file=sys.stderr, flush=True)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
