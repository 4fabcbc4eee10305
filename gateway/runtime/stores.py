"""What a runtime keeps things in: each is that of the runtime before, where its settings are the same."""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module

from gateway.batches.batch_table import BATCHES, BatchTable
from gateway.databases.opening import open_database, open_tables
from gateway.evaluation.table import EVALUATIONS, EvaluationTable
from gateway.feedback.table import FEEDBACK, FeedbackTable
from gateway.files.blobs import Blobs
from gateway.files.file_table import FILES, FileTable
from gateway.files.folder import FolderBlobs
from gateway.files.s3 import S3Blobs
from gateway.files.stored_files import Bounds, StoredFiles
from gateway.observe.cache_days import FILE as CACHE_DAYS
from gateway.observe.cache_days import CacheDays
from gateway.observe.json_lines import JsonLines
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.receipts import IN_MEMORY, Receipts
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.packages import no_otel
from gateway.policy import schema
from gateway.policy.limited import has_limits
from gateway.quota.quotas import Quotas
from gateway.recording.data_keys import DataKeys
from gateway.recording.opening import open_recordings
from gateway.recording.recordings import Recordings
from gateway.recording.shipping import Shipping
from gateway.runtime.runtime import Runtime
from gateway.runtime.worker_state import WorkerState
from gateway.stores.memory import MemoryStore
from gateway.stores.redis import RedisStore
from gateway.stores.response_store import ResponseStore
from gateway.stores.store import Store
from gateway.stores.workers_memory import WorkersMemory

log = logging.getLogger(__name__)


def quotas(policy: schema.Policy, state: WorkerState, before: Runtime | None) -> Quotas:
    same = before is not None and before.policy.store == policy.store
    quotas = before.quotas if before and same else Quotas.open(policy, estimator=state.estimator)
    if has_limits(policy):
        quotas.watch()
    return quotas


def receipts(policy: schema.Policy, state: WorkerState, before: Runtime | None) -> Receipts:
    url = policy.where_caches_are
    if before is not None and before.policy.where_caches_are == url:
        return before.receipts
    # A Redis server is first connected to when it is first needed: its absence must not keep the gateway down.
    store: Store = MemoryStore(max_bytes=IN_MEMORY) if url == "memory" else RedisStore(url)
    return Receipts(store, state.peers)


def responses(policy: schema.Policy, state: WorkerState, before: Runtime | None) -> ResponseStore | None:
    config = policy.responses
    if not config.enabled:
        return None
    store: Store
    if before is not None and before.responses is not None and before.policy.store == policy.store:
        store = before.responses.store
    elif policy.store == "memory":
        own = MemoryStore(max_bytes=config.max_bytes)
        store = own if state.peers.alone else WorkersMemory(own, state.peers, "responses")
    else:
        store = RedisStore(policy.store, name="responses")
    flags = store.own if isinstance(store, WorkersMemory) else store
    if isinstance(flags, MemoryStore):
        flags.resize(config.max_bytes)
    return ResponseStore(store, ttl=config.ttl, max_entry=config.max_entry, flags=flags)


def files(policy: schema.Policy, state: WorkerState, before: Runtime | None) -> StoredFiles | None:
    config = policy.files
    if not config.enabled:
        return None
    if before is not None and (before.policy.files, before.policy.ledger) == (config, policy.ledger):
        return before.files
    table = FileTable(open_tables(FILES, policy.ledger, state.state_dir))
    bounds = Bounds(config.max_bytes, config.max_tenant_bytes, config.max_tenant_files, config.max_age)
    blobs: Blobs = FolderBlobs(state.state_dir / config.path)
    if config.bucket is not None:
        blobs = S3Blobs(*config.bucket, config.s3)
    files = StoredFiles(table, blobs, bounds)
    if state.worker == 1:
        files.start_sweeping()
    return files


def batches(config: schema.LedgerSettings, state: WorkerState, before: Runtime | None) -> BatchTable:
    if before is not None and before.policy.ledger == config:
        return before.batches
    return BatchTable(open_tables(BATCHES, config, state.state_dir))


def feedback(config: schema.LedgerSettings, state: WorkerState, before: Runtime | None) -> FeedbackTable:
    if before is not None and before.policy.ledger == config:
        return before.feedback
    return FeedbackTable(open_tables(FEEDBACK, config, state.state_dir))


def evaluations(config: schema.LedgerSettings, state: WorkerState, before: Runtime | None) -> EvaluationTable:
    if before is not None and before.policy.ledger == config:
        return before.evaluations
    return EvaluationTable(open_tables(EVALUATIONS, config, state.state_dir))


def recordings(policy: schema.Policy, state: WorkerState, before: Runtime | None) -> Recordings | None:
    config = policy.record
    if not config.enabled:
        return None
    if before is not None and (before.policy.files, before.policy.ledger, before.policy.record) == (
        policy.files,
        policy.ledger,
        config,
    ):
        return before.recordings
    places = open_recordings(policy, state.state_dir)
    shipping = Shipping(
        places.spool,
        places.table,
        places.blobs,
        retention=config.retention,
        max_bytes=config.max_bytes,
        sweeps=state.worker == 1,
    )
    keys = DataKeys(places.table, places.secret)
    return Recordings(places.spool, keys, shipping, state.metrics, rotate=config.rotate)


def ledger(config: schema.LedgerSettings, state: WorkerState, before: Runtime | None) -> Ledger | None:
    if not config.enabled:
        return None
    if before is not None and before.policy.ledger == config:
        return before.ledger
    return Ledger(open_database(config, state.state_dir))


def cache_days(policy: schema.Policy, state: WorkerState, before: Runtime | None) -> CacheDays | None:
    semantic = policy.caches.semantic
    if semantic is None or semantic.mode == "off" or not policy.ledger.enabled:
        return None
    kept = before.cache_days if before is not None else None
    return kept or CacheDays(state.state_dir / CACHE_DAYS)


def findings(config: schema.ReviewSettings, state: WorkerState, before: Runtime | None) -> JsonLines | None:
    if not config.enabled:
        return None
    if before is not None and before.policy.review == config:
        return before.findings
    return JsonLines(state.state_dir / config.path, config.max_bytes)


async def telemetry(config: schema.Telemetry, before: Runtime | None) -> Telemetry | None:
    if not config.endpoint:
        return None
    if before is not None and before.telemetry is not None and before.telemetry.config == config:
        return before.telemetry
    try:
        # Some hundred modules, which a policy without telemetry does without.
        otlp = await asyncio.to_thread(import_module, "gateway.observe.telemetry.otlp")
        return await asyncio.to_thread(Telemetry, config, otlp.OtlpExporter)
    except ImportError as error:
        log.error("no traces are sent to '%s': %s; %s", config.endpoint, error, no_otel())
        return None
