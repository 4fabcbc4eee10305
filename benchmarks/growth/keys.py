"""Keys in ``keys.jsonl``: processor time of a start, of a change of one key, and of ``keys create``

A *start* is what a process spends on the policy before it serves, a *change* what it spends until one more key is
accepted. The longest *stall* is that of a timer of the event loop during changes, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.growth.timing import process_seconds
from gateway.identity.api_keys import KeyRing
from gateway.policy.files import TABLE
from gateway.policy.key_store import KeyStore
from gateway.policy.loader import Loaded
from gateway.policy.reload import PolicyWatcher

COLUMNS = ("keys", "start, s", "change, s", "longest stall, ms", "keys create, s")

SIZES = (1_000, 20_000, 100_000)
CHANGES = 3
POLICY = """\
version: 1
backends: {one: {kind: fake, script: [{reply: hi}]}}
models: {m: {targets: [{backend: one, model: x}]}}
"""


def rows() -> Iterator[Sequence[object]]:
    for size in SIZES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "gateway.yaml").write_text(POLICY)
            with (folder / TABLE).open("w") as file:
                file.writelines(_line(number) for number in range(size))
            create = process_seconds(lambda folder=folder, size=size: _create(folder, size))  # type: ignore[misc]
            start, change, stall = asyncio.run(_reload(folder, size + 1))
            yield size, start, change, stall, create


async def _reload(folder: Path, size: int) -> tuple[float, float, float]:
    """Seconds of a start and of a change, and milliseconds of the longest stall."""
    ring: list[KeyRing] = []

    async def apply(loaded: Loaded) -> None:
        before = ring[-1] if ring else None
        keys = loaded.policy.keys_in_force
        ring[:] = [await asyncio.to_thread(KeyRing, keys, tenants=loaded.policy.tenants, before=before)]

    watcher = PolicyWatcher(folder, apply, env={})
    began = time.process_time()
    await watcher.start()
    start = time.process_time() - began
    await asyncio.sleep(2)  # the files in force are parsed for revocations
    stall, changes = [0.0], []
    lag = asyncio.create_task(_lag(stall))
    for number in range(size, size + CHANGES):
        began = time.process_time()
        with (folder / TABLE).open("a") as file:
            file.write(_line(number))
        while not watcher.accepts(f"{number:064x}"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        changes.append(time.process_time() - began)
    lag.cancel()
    await watcher.stop()
    return start, sorted(changes)[CHANGES // 2], 1000 * stall[0]


async def _lag(longest: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(0.02)
        longest[0] = max(longest[0], time.perf_counter() - began - 0.02)


def _create(folder: Path, number: int) -> None:
    KeyStore(folder, None, {}).add(json.loads(_line(number)))


def _line(number: int) -> str:
    key = {"id": f"k{number}", "sha256": f"{number:064x}", "tenant": f"t{number % 1000}", "models": ["*"]}
    return json.dumps(key) + "\n"
