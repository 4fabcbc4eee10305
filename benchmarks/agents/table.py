"""The table: how often each task was right, over each API."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence

from benchmarks.agents.task import Bench, Task
from benchmarks.agents.wire import client


async def attempt(task: Task, bench: Bench) -> str:
    """Why it failed; empty if it did not."""
    try:
        await task.do(bench)
    except Exception as error:  # of whatever kind the framework has for what a model does
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""


async def run(task: Task, api: str, number: int, args: argparse.Namespace) -> bool:
    """Whether it was right. What went wrong is printed."""
    started = time.monotonic()
    label = f"{task.name}, {api}, {number}"
    async with client(args.base_url, os.environ["TOLLGATE_KEY"], args.wire, label) as openai:
        why = await attempt(task, Bench(openai, args.guarded if task.guarded else args.model, api))
    print(f"{label}: {time.monotonic() - started:.0f} s: {why or 'right'}", file=sys.stderr, flush=True)
    return not why


async def table(args: argparse.Namespace, tasks: Sequence[Task]) -> None:
    """All once, then all once more. Raises ``KeyError`` without a key."""
    free = asyncio.Semaphore(args.side_by_side)

    async def one(task: Task, api: str, number: int) -> bool:
        async with free:
            return await run(task, api, number, args)

    cells = [(task, api) for task in tasks for api in args.api]
    rounds = range(1, args.repeats + 1)
    found = await asyncio.gather(*(one(*cell, number) for number in rounds for cell in cells))
    right = {cell: sum(found[place :: len(cells)]) for place, cell in enumerate(cells)}
    print(f"| task | framework | {' | '.join(args.api)} |\n|---|---|{'---|' * len(args.api)}")
    for task in tasks:
        counts = [f"{right[task, api]}/{args.repeats}" for api in args.api]
        print(f"| {task.name} | {task.framework} | {' | '.join(counts)} |")
