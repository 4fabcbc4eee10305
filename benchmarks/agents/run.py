"""Let agent frameworks do ten tasks with a model behind a gateway, over chat completions and responses.

    python -m benchmarks.agents.run --model NAME [--guarded NAME] [--set small] [--base-url URL] [TASK ...]

The key is in TOLLGATE_KEY; the frameworks are those of the Python that runs it. TASK is a part of a task's name. Each
runs three times, one after the other, at a temperature of 0. Exits with 0 however many are wrong.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from benchmarks.agents import agents_sdk, pydantic_agents, small_agents_sdk, small_pydantic
from benchmarks.agents.table import table
from benchmarks.agents.task import CHAT, RESPONSES

SETS = {
    "hard": agents_sdk.TASKS + pydantic_agents.TASKS,
    "small": small_agents_sdk.TASKS + small_pydantic.TASKS,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agents.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument(
        "--set",
        choices=SETS,
        default="hard",
        help="small: tasks as one writes them for a small model (default: hard)",
    )
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--guarded", metavar="NAME", help="the same model, masked by a guard; left out without it"
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api", nargs="+", choices=(CHAT, RESPONSES), default=[CHAT, RESPONSES])
    parser.add_argument("--side-by-side", type=int, default=4, metavar="N", help="cells at a time")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--wire", type=Path, metavar="FILE", help="requests and answers, a JSON object a line"
    )
    args = parser.parse_args()
    chosen = [
        task for task in SETS[args.set] if not args.tasks or any(part in task.name for part in args.tasks)
    ]
    asyncio.run(table(args, [task for task in chosen if args.guarded or not task.guarded]))


if __name__ == "__main__":
    main()
