"""The command ``python -m kernels``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.bench.case import Case


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m kernels", description="Checks of Tollgate's Triton kernels."
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    report = commands.add_parser(
        "report",
        help="compile every kernel for every chip, without a GPU, and report registers, spills and instructions",
        description="Exits 1 where there is a spill, a matrix product without matrix instructions, more shared "
        "memory than the chip has, or a kernel that does not compile.",
    )
    report.add_argument(
        "--arch", nargs="+", metavar="ARCH", help="of sm_80, sm_90, sm_100, gfx942 (default: all)"
    )
    report.add_argument("--only", nargs="+", metavar="OP", help="operations, such as rms_norm (default: all)")
    report.add_argument("--limit", type=int, metavar="N", help="of each operation the first N (default: all)")
    report.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    report.add_argument("--jobs", type=int, help="processes (default: one a core)")
    report.set_defaults(run=_report)
    bench = commands.add_parser(
        "bench",
        help="check and time every kernel on this machine's GPU, and compare it with what the chip can do",
        description="Exits 1 where a kernel's result is wrong, 2 where there is no GPU.",
    )
    bench.add_argument("--only", nargs="+", metavar="OP", help="operations, such as rms_norm (default: all)")
    bench.add_argument("--quick", action="store_true", help="check all, but time only what has a target")
    bench.add_argument(
        "--dry-run", action="store_true", help="on the CPU: tiny shapes, interpreted, nothing timed"
    )
    bench.add_argument("--seconds", type=float, default=420, help="begin no case after these (default: 420)")
    bench.add_argument(
        "--checks", type=int, default=50, help="fresh inputs that each case is checked with (default: 50)"
    )
    bench.add_argument(
        "--jobs", type=int, help="processes that compile and check (default: one a core, as memory allows)"
    )
    bench.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the results there after each case; what stands there already, of the same kernels, chip, torch and "
        "triton, is not done again",
    )
    bench.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the table there after each case as well"
    )
    bench.set_defaults(run=_bench)
    return top


def _report(arguments: argparse.Namespace) -> int:
    # Before Triton is imported: kernels created for its interpreter cannot be compiled.
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
    if arguments.limit is not None and arguments.limit < 1:
        print(f"--limit is how many variants to compile, at least 1, not {arguments.limit}.", file=sys.stderr)
        return 2
    rows = report(ops, archs, arguments.jobs, arguments.limit)
    faulty = sum(bool(row.faults) for row in rows)
    print(table(rows))
    print(
        f"\n{len(rows)} compilations, {faulty} with faults, {sum(row.seconds for row in rows):.0f} s of a processor."
    )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 1 if faulty else 0


def _bench(arguments: argparse.Namespace) -> int:
    began = time.time()
    # Before Triton is imported, also in the processes started from here.
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TOLLGATE_KERNELS"] = "triton"
    if arguments.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from kernels import launch

    missing = None
    if launch.triton is None:
        missing = "triton is not installed: pip install triton"
    elif not arguments.dry_run and not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        missing = "no GPU is visible" if built else f"torch {torch.__version__} is built for CPUs alone"
    if missing:
        print(f"Kernels are timed on a GPU: {missing}. --dry-run tries the script on a CPU.", file=sys.stderr)
        return 2
    from kernels.bench import table
    from kernels.bench.cases import all_cases
    from kernels.bench.journal import Journal, fingerprint
    from kernels.bench.run import Options, Result, pick_jobs, run

    cases = all_cases(arguments.dry_run)
    known = dict.fromkeys(case.op for case in cases)
    if unknown := [op for op in arguments.only or () if op not in known]:
        print(f"No such operation: {', '.join(unknown)}. There are {', '.join(known)}.", file=sys.stderr)
        return 2
    wanted = {"ceiling", *(arguments.only or known)}
    numbers = [number for number, case in enumerate(cases) if case.op in wanted]
    chosen = [cases[number] for number in numbers]
    about = table.machine()
    print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
    results_by_name = {(case.op, case.name): Result(case.op, case.name) for case in chosen}
    holds = {key: about[key] for key in ("chip", "torch", "triton")}
    holds |= {"code": fingerprint(Path(__file__).parent), "tiny": str(arguments.dry_run)}
    journal = Journal(
        arguments.json, holds, render=lambda: table.as_json(about, chosen, list(results_by_name.values()))
    )
    results_by_name |= {key: Result(**kept) for key in results_by_name if (kept := journal.get(*key))}
    if journal.steps:
        print(f"{journal.steps} steps are done, by {arguments.json}", flush=True)

    def on_result(case: Case, result: Result) -> None:
        results_by_name[case.op, case.name] = result
        print(table.line(case, result), flush=True)
        if arguments.markdown:
            arguments.markdown.write_text(table.markdown(about, chosen, list(results_by_name.values())))

    jobs = arguments.jobs or pick_jobs(len(os.sched_getaffinity(0)))
    options = Options(
        arguments.dry_run, arguments.quick, began + arguments.seconds, arguments.checks, jobs=jobs
    )
    results = run(all_cases, numbers, options, on_result, journal)
    results_by_name.update(((result.op, result.name), result) for result in results)
    journal.write()
    cases = chosen
    print("", table.text(cases, results, about["chip"]), "", *table.summary(cases, results), sep="\n")
    print(f"{time.time() - began:.0f} s")
    if arguments.markdown:
        arguments.markdown.write_text(table.markdown(about, cases, results))
    return int(
        any(result.fault for case, result in zip(cases, results, strict=True) if case.reference is not None)
    )


def main() -> int:
    arguments = parser().parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
