"""How good the guards are, and what they cost.

    python -m benchmarks.guards [--data DIR] [--only NAME …] [--json FILE]

``--data`` is a folder with the files of ``../shared/data``. Rows that say *cross-validated* or *unseen* are of texts
that the weights were not trained on; the others are of the shipped weights on the folder given, which is training data
unless it is another half of the sets.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from benchmarks.guards import cost, injection, judge, pii, toxicity
from benchmarks.guards.report import Row, table

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
PARTS: Mapping[str, Callable[[Path], list[Row]]] = {
    "pii": pii.rows,
    "injection": injection.rows,
    "toxicity": toxicity.rows,
    "judge": judge.rows,
    "cost": lambda data: cost.rows(),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {}
    for name in given.only:
        found[name] = list(PARTS[name](given.data))
        print(table(name, found[name]), end="\n\n", flush=True)
    if given.json:
        given.json.write_text(
            json.dumps({name: [*map(asdict, rows)] for name, rows in found.items()}, indent=1)
        )


if __name__ == "__main__":
    main()
