"""What the parts cost, and where each figure is from. ``python -m benchmarks.fleet measure`` measures them anew."""

from __future__ import annotations

from dataclasses import dataclass

MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one processor core, unless it says otherwise. *Measured* ones are of a shared 2-core virtual machine
    (2026-11-29, or docs/benchmarks.md): a fleet's machines are other ones, and ratios carry over better than figures.
    """

    request: float = 442 * MICRO
    """Measured (docs/benchmarks.md, "Redis store"): a request with four limits, its log, ledger and metrics."""
    looked_at: float = 2.5 * MICRO
    """Measured: what each replica that is looked at adds to a request,"""
    replica: float = 0.5 * MICRO
    """and each that might be asked after them."""
    chunk: float = 62 * MICRO
    """Measured (docs/benchmarks.md): a chunk of a stream that comes by itself, with 1,000 streams at once."""
    poll: float = 300 * MICRO
    """Measured: one look of a worker at an engine's state."""
    poll_interval: float = 0.5
    """Seconds between two looks (1 with ``telemetry: vllm``), of fewer engines than ``engine_poller.MANY``."""
    poll_at_engine: float = 80 * MICRO
    """Measured: what such a look takes of the engine's HTTP process."""
    stream_at_engine: float = 41 * MICRO
    """Measured: a token's event in the engine's HTTP process, 16 to 64 streams at once (one alone: 280)."""
    reservation: float = 86 * MICRO
    """Measured: of Redis, a request's reservation and settlement with four limits, 64 at once in shared round trips,"""
    receipt: float = 5 * MICRO
    """its receipt,"""
    round_trip: float = 6 * MICRO
    """what each round trip takes besides (``redis-benchmark -c 50 -P 1`` less ``-P 64``),"""
    wake: float = 40 * MICRO
    """and where Redis sleeps until it comes (400 a second; at 20 a second, between other programs, 150)."""
    receipts_together: float = 0.05
    """Seconds of a worker's receipts that are one round trip (``gateway/observe/batch_writer.py``)."""
    renewal: float = 27 * MICRO
    """Measured: of Redis, a worker's renewal, of each part of a cluster, where nothing has changed;"""
    told_counter: float = 0.12 * MICRO
    """for each budget (or limit by the day) that has, as another has read it;"""
    read_counter: float = 2.7 * MICRO
    """and reading it: 1,000 at most at once, by one worker of a gateway, and one within ``shared`` seconds."""
    most_renewed: int = 1000
    renew_every: float = 0.9
    shared: float = 0.1
    ledger_row: float = 28 * MICRO
    """Measured: of PostgreSQL (fsync off), a row and its part of the sums,"""
    ledger_batch: float = 920 * MICRO
    """and a transaction besides its rows: 1.5 ms of 20 rows, 29 ms of 1,000."""
    ledger_cores: float = 8.0
    """Assumed: of a PostgreSQL server."""
    ledger_bytes: float = 779.0
    """Measured (docs/benchmarks.md): bytes of a row, indexes and sums included."""
    commit: float = 2e-3
    """Assumed: seconds by the clock in which a transaction holds the row of a tenant's sum; a local SSD's."""
    worker_memory: float = 75e6
    """Measured (docs/benchmarks.md, Pss): bytes of a worker."""
    replica_memory: float = 0.1e6
    """Measured: and for each replica with its poller's connection."""
    connection_memory: float = 30e3
    """Assumed: bytes of a client's connection with its stream in flight."""


MEASURED = Costs()
BUSY = 0.7
"""Of a resource: more is no plan, as its queue grows by 1 / (1 - busy)."""
