"""Runs what a model wrote, as ``python -I sandbox.py``: a task as JSON comes in, ``true`` or ``false`` goes out.

A process of its own with little memory and processor time, which can write no file and sees an empty environment.
That is enough against mistakes; it is no wall against malice. Standard library alone.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import resource
import sqlite3
import sys
from collections.abc import Mapping
from typing import Any

SECONDS = 4
"""Of processor time."""
BYTES = 512 * 2**20


def passes(task: Mapping[str, Any]) -> bool:
    """Whether ``task['code']`` does what its check says. Raises what the code raises."""
    check, code = task["check"], task["code"]
    match check["how"]:
        case "calls":
            names: dict[str, Any] = {"__name__": "answer"}
            exec(code, names)
            function = names[check["name"]]
            return all(
                same(function(*copy.deepcopy(arguments)), wanted) for arguments, wanted in check["cases"]
            )
        case "expression":
            return all(same(eval(code, copy.deepcopy(names)), wanted) for names, wanted in check["cases"])
        case "regex":
            pattern = re.compile(code)
            return all(map(pattern.fullmatch, check["match"])) and not any(
                map(pattern.fullmatch, check["reject"])
            )
        case "sql":
            database = sqlite3.connect(":memory:")
            database.executescript(check["schema"])
            rows, wanted = [list(row) for row in database.execute(code)], check["rows"]
            if check.get("any_order"):
                rows, wanted = sorted(rows, key=repr), sorted(wanted, key=repr)
            return same(rows, wanted)
    raise ValueError(f"no check is called {check['how']!r}")


def same(found: Any, wanted: Any) -> bool:
    """Equal as JSON, where numbers may differ in their last digits and a boolean is no number."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        return found is wanted
    if isinstance(wanted, int | float):
        return isinstance(found, int | float) and math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(wanted, list):
        return isinstance(found, list | tuple) and len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return False
        named = {str(key): value for key, value in found.items()}
        return named.keys() == wanted.keys() and all(same(named[key], wanted[key]) for key in wanted)
    return bool(found == wanted)


def main() -> None:
    out = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    task = json.load(sys.stdin)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))  # the verdict may go to a file
    try:
        right = passes(task)
    except BaseException:  # what a model wrote may raise, or exit with, anything
        right = False
    os.write(out, json.dumps(right).encode())
    os._exit(0)  # threads it has left do not count


if __name__ == "__main__":
    main()
