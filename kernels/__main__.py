"""The command ``python -m kernels``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m kernels", description="Checks of Tollgate's Triton kernels."
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    report = commands.add_parser(
        "report",
        help="compile every kernel for every chip, here and without a GPU, and show what the code says",
        description="Exits 1 where there is a spill, a matrix product without matrix instructions, more shared "
        "memory than the chip has, or a kernel that does not compile.",
    )
    report.add_argument(
        "--arch", nargs="+", metavar="ARCH", help="of sm_80, sm_90, sm_100, gfx942 (default: all)"
    )
    report.add_argument("--only", nargs="+", metavar="OP", help="operations, such as rms_norm (default: all)")
    report.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    report.add_argument("--jobs", type=int, help="processes (default: one a core)")
    report.set_defaults(run=_report)
    return top


def _report(arguments: argparse.Namespace) -> int:
    # Before Triton is imported: kernels made for its interpreter cannot be compiled.
    os.environ.pop("TRITON_INTERPRET", None)
    from kernels import launch
    from kernels.report import operations, report, table

    if launch.triton is None:
        print("Kernels are compiled by triton, which is not installed: pip install triton.", file=sys.stderr)
        return 2
    archs = arguments.arch or launch.ARCHS
    if unknown := [arch for arch in archs if arch not in launch.ARCHS]:
        print(f"No such chip: {', '.join(unknown)}. There are {', '.join(launch.ARCHS)}.", file=sys.stderr)
        return 2
    ops = arguments.only or operations()
    if unknown := [op for op in ops if "." not in op and op not in operations()]:
        print(
            f"No such operation: {', '.join(unknown)}. There are {', '.join(operations())}.", file=sys.stderr
        )
        return 2
    rows = report(ops, archs, arguments.jobs)
    faulty = sum(bool(row.faults) for row in rows)
    print(table(rows))
    print(
        f"\n{len(rows)} compilations, {faulty} with faults, {sum(row.seconds for row in rows):.0f} s of work."
    )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 1 if faulty else 0


def main() -> int:
    arguments = parser().parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
