"""Prints the tables that are named, or all."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from collections.abc import Iterable, Sequence

import benchmarks.growth

HELPERS = frozenset({"__main__", "timing"})


def tables() -> list[str]:
    """The names of all tables."""
    found = (module.name for module in pkgutil.iter_modules(benchmarks.growth.__path__))
    return sorted(name for name in found if name not in HELPERS)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A Markdown table, row by row as they come."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(map(_cell, row))} |", flush=True)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.growth", description=benchmarks.growth.__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(tables())} (all)")
    for name in parser.parse_args().names or tables():
        module = importlib.import_module(f"benchmarks.growth.{name}")
        show((module.__doc__ or name).splitlines()[0], module.COLUMNS, module.rows())


if __name__ == "__main__":
    main()
