"""What the gateway counts and times, in Prometheus's form."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, disable_created_metrics

from gateway.observe.prometheus import buckets
from gateway.observe.prometheus.families import Families
from gateway.observe.prometheus.files import FOLDER
from gateway.observe.prometheus.model_labels import ModelLabels
from gateway.observe.prometheus.rendering import render_shared, slices
from gateway.observe.prometheus.tenant_labels import TenantLabels

LAG_INTERVAL = 0.02
"""Seconds between two samples of the event loop's lag."""
SCORES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Bounds of a judge's scores: one to five points."""
FLUSH_EVERY = 10
"""Samples of it between two flushes: a fifth of a second."""


class Metrics:
    """One worker's metrics. With ``PROMETHEUS_MULTIPROC_DIR`` set they are also in a folder, with those of all
    workers."""

    def __init__(self, *, tenants: bool = False) -> None:
        """``tenants``: label metrics with tenants' names, unless the policy says otherwise."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # half the lines; resets are found without them
        self.tenants = TenantLabels(by_default=tenants)
        self.models = ModelLabels()
        self._registry = CollectorRegistry()
        make = Families(self._registry, self.models)
        self.http = make.counter(
            "tollgate_http_requests_total",
            "HTTP requests by route and status.",
            ["route", "status"],
        )
        self.requests = make.counter(
            "tollgate_requests_total",
            "Model requests by public model name, backend and outcome (an HTTP status; 499 is a client that left).",
            ["model", "backend", "status"],
        )
        self.seconds = make.histogram(
            "tollgate_request_seconds",
            "From arrival to the end of the answer.",
            ["model"],
            buckets.WHOLE,
        )
        self.first_token = make.histogram(
            "tollgate_time_to_first_token_seconds",
            "From arrival to the first chunk, of answers that no cache gave.",
            ["model"],
            buckets.FIRST_TOKEN,
        )
        self.inter_token = make.histogram(
            "tollgate_inter_token_seconds",
            "Between the chunks of one answer that no cache gave; those that came together count as one.",
            ["model"],
            buckets.INTER_TOKEN,
        )
        self.dispatch_seconds = make.histogram(
            "tollgate_dispatch_seconds",
            "From arrival until the request was sent to a backend: guards, queue and failed attempts included.",
            ["model"],
            buckets.WAIT,
        )
        self.queue_seconds = make.histogram(
            "tollgate_queue_seconds",
            "Wait in a backend's queue, 0 where there was a free slot; those that gave up waiting included.",
            ["backend", "tier"],
            buckets.WAIT,
        )
        self.tokens = make.counter(
            "tollgate_tokens_total",
            "Tokens that were spent, by what for: as the backends counted them, or the gateway where they did not.",
            ["model", "direction", "purpose"],
        )
        self.units = make.counter(
            "tollgate_units_total",
            "What is not counted in tokens: seconds heard, characters spoken, images drawn, searches; by what for.",
            ["model", "unit", "purpose"],
        )
        self.in_flight = make.gauge(
            "tollgate_requests_in_flight",
            "Requests in progress: waiting for their first chunk, or running since.",
            ["model", "state"],
        )
        self.shed = make.counter(
            "tollgate_shed_total",
            "Requests that were not admitted, by the caller's tier and the reason.",
            ["tier", "reason"],
        )
        self.pool_in_flight = make.gauge(
            "tollgate_backend_requests_in_flight",
            "Requests in flight at a backend.",
            ["backend"],
        )
        self.pool_waiting = make.gauge(
            "tollgate_backend_requests_waiting",
            "Requests waiting in a backend's queue.",
            ["backend"],
        )
        self.attempts = make.counter(
            "tollgate_attempts_total",
            "Tries of a backend, by how they ended: ok, or an error's code.",
            ["backend", "outcome"],
        )
        self.upstream_errors = make.counter(
            "tollgate_upstream_errors_total",
            "Failures of a backend by class: 4xx, 5xx, timeout, unreachable, or broken (cut, empty, garbled).",
            ["backend", "class"],
        )
        self.breaker_open = make.gauge(
            "tollgate_breaker_open",
            "Breakers that are open: of each worker, model, and key, tenant or everybody.",
            ["backend"],
        )
        self.credentials_refused = make.gauge(
            "tollgate_credentials_refused",
            "Workers whose last request to some model of a backend ended in 401, 402 or 403.",
            ["backend"],
        )
        self.refused = make.counter(
            "tollgate_refused_requests_total",
            "Requests that the gateway refused before it asked a model, by tenant (where it is a label) and reason.",
            ["tenant", "reason"],
        )
        self.shadow = make.counter(
            "tollgate_shadow_requests_total",
            "Copies sent to a shadow model, by outcome (an HTTP status).",
            ["model", "status"],
        )
        self.batch_lines_ended = make.counter(
            "tollgate_batch_line_runs_total",
            "Runs of lines of batches: completed, failed, reclaimed (gave way to a request), or repeated (for want of "
            "capacity, or as a server failed).",
            ["outcome"],
        )
        self.batch_lines = make.sampled(
            "tollgate_batch_lines",
            "Lines of the batches that a worker runs, by state: pending, running.",
            ["state"],
            mode="livesum",
            absent=0.0,
        )
        self.batches = make.sampled(
            "tollgate_batches",
            "Batches that are worked on, by state.",
            ["status"],
            mode="livesum",
            absent=0.0,
        )
        self.cost = make.counter(
            "tollgate_cost_dollars_total",
            "US dollars by the price table, by what for.",
            ["tenant", "model", "purpose"],
        )
        self._loop_lag = make.plain_histogram(
            "tollgate_event_loop_lag_seconds",
            "By how much a timer of a worker's event loop came late.",
            buckets.LAG,
        )
        self._samples = 0
        self.cache = make.counter(
            "tollgate_cache_requests_total",
            "What each cache (exact, semantic) did for a request: hit, miss, bypass, shared …; kept, or why not.",
            ["cache", "result"],
        )
        self.cache_saved_tokens = make.counter(
            "tollgate_cache_saved_tokens_total",
            "Tokens of answers that a cache gave, which no backend had to read or write.",
            ["cache", "model"],
        )
        self.cache_saved_dollars = make.counter(
            "tollgate_cache_saved_dollars_total",
            "US dollars that these tokens would have cost, by the price table.",
            ["cache", "model"],
        )
        self.cache_seconds = make.histogram(
            "tollgate_cache_seconds",
            "To look for an answer, in the exact or the semantic cache.",
            ["cache"],
            buckets.LOOK,
        )
        self.guard_scans = make.counter(
            "tollgate_guard_scans_total",
            "Scans of texts: clean, found, open (left to the next check), or unscanned.",
            ["guard", "check", "outcome"],
        )
        self.guard_seconds = make.histogram(
            "tollgate_guard_scan_seconds",
            "How long a scan took.",
            ["guard", "check"],
            buckets.SCAN,
        )
        self.guard_hits = make.counter(
            "tollgate_guard_hits_total",
            "What guards found and acted on.",
            ["guard", "direction", "action"],
        )
        self.guard_unscanned = make.counter(
            "tollgate_guard_unscanned_total",
            "Texts that could not be judged.",
            ["guard", "direction"],
        )
        self.guard_reviews = make.counter(
            "tollgate_guard_reviews_total",
            "Findings of guards that only flag, for review: written, skipped (by request, not sampled), or lost.",
            ["guard", "outcome"],
        )
        self.guard_streams = make.counter(
            "tollgate_guard_answers_total",
            "Answers that a guard looked after; with the cuts, the abort rate.",
            ["guard"],
        )
        self.guard_cuts = make.counter(
            "tollgate_guard_cuts_total",
            "Answers that a guard cut.",
            ["guard"],
        )
        self.guard_time_to_cut = make.histogram(
            "tollgate_guard_time_to_cut_seconds",
            "From the arrival of the first unsafe character to the cut.",
            ["guard"],
            buckets.INTER_TOKEN,
        )
        self.guard_leaked = make.counter(
            "tollgate_guard_leaked_characters_total",
            "Characters that had been sent, from the first unsafe one on, when an answer was cut.",
            ["guard"],
        )
        self.rollouts_unreadable = make.plain_gauge(
            "tollgate_rollouts_unreadable",
            "Roll-outs whose common state is there and cannot be read, by which they stay where they are.",
            mode="livemax",
        )
        self.callbacks = make.counter(
            "tollgate_callbacks_total",
            "Messages to the policy's callbacks: delivered, retried (each further attempt), failed, limited, lost.",
            ["event", "outcome"],
        )
        self.policy_generation = make.plain_gauge(
            "tollgate_policy_generation",
            "The number of the policy in force, as `tollgate policy history` has it; it grows with each good edit.",
            mode="livemin",
        )
        self.policy_errors = make.plain_counter(
            "tollgate_policy_errors_total",
            "Policy edits that were refused; the last good one stays.",
        )
        self.policy_rejected = make.plain_gauge(
            "tollgate_policy_rejected",
            "1 while the policy folder as it is now is refused, and an older policy is in force.",
            mode="livemax",
        )
        self.breaker_state = make.sampled(
            "tollgate_breaker_state",
            "Of a target (model: as the backend names it): 0 closed, 1 open for some keys or tenants, 2 for everybody.",
            ["backend", "model"],
            mode="livemax",
            absent=0.0,
        )
        self.replica_share = make.sampled(
            "tollgate_replica_share",
            "A replica's part of its share, 0 to 1: less than 1 while it comes into service, 0 if ejected or gone.",
            ["backend", "replica"],
            mode="livemin",
            absent=0.0,
        )
        self.saturation = make.sampled(
            "tollgate_backend_saturation",
            "How full a backend is, 0 to 1: its slots, its tokens in flight, or its own figure, whichever is fullest.",
            ["backend"],
            mode="livemax",
            absent=0.0,
        )
        self.cached_prompts = make.sampled(
            "tollgate_backend_cached_prompts",
            "The share of all prompts' tokens since its start that a server found in its KV cache, as it says itself.",
            ["backend"],
            mode="livemax",
            absent=0.0,
        )
        self.prefill_speed = make.sampled(
            "tollgate_replica_prefill_tokens_per_second",
            "Of a backend that models with `select: score` ask, as learned from first tokens: what it is expected by.",
            ["backend"],
            mode="livemin",
            absent=0.0,
        )
        self.figures_trust = make.sampled(
            "tollgate_replica_figures_trust",
            "0 to 1: how much of the waits that such a backend told of there really was.",
            ["backend"],
            mode="livemin",
            absent=0.0,
        )
        self.kv_events = make.counter(
            "tollgate_kv_events_total",
            "KV cache events of model servers that were read.",
            ["backend"],
        )
        self.kv_event_gaps = make.counter(
            "tollgate_kv_event_gaps_total",
            "How often events were missed that nobody repeated, or could not be read: what was held is proven anew.",
            ["backend"],
        )
        self.kv_blocks = make.sampled(
            "tollgate_kv_blocks_held",
            "Blocks that a server is known to hold by its events.",
            ["backend"],
            mode="livemax",
            absent=0.0,
        )
        self.kv_events_connected = make.sampled(
            "tollgate_kv_events_connected",
            "1 where a server's events come, 0 where they do not.",
            ["backend"],
            mode="livemax",
            absent=0.0,
        )
        self.kv_table_age = make.plain_gauge(
            "tollgate_kv_table_age_seconds",
            "How long ago the worker that follows events last said so to the others; above 5 nothing is believed.",
            mode="livemax",
        )
        self.prompt_ids = make.counter(
            "tollgate_prompt_ids_total",
            "Prompts whose token ids were wanted: told, kept from before, late, failed, or skipped (media, no server).",
            ["outcome"],
        )
        self.model_state = make.sampled(
            "tollgate_model_state",
            "1 for the state that a model of an engine with several is in, such as loaded, loading or sleeping.",
            ["backend", "model", "state"],
            mode="livemax",
            absent=0.0,
        )
        self.store_up = make.sampled(
            "tollgate_store_up",
            (
                "Whether Redis answers (1), by what is kept there: quotas, receipts (and cached answers), responses. "
                "Of a cluster the share that does."
            ),
            ["store"],
            mode="livemin",
            absent=1.0,
        )
        self.store_losses = make.plain_counter(
            "tollgate_store_losses_total",
            "Times a worker found that the Redis of its quotas had lost its data, or that another had taken its place.",
        )
        self.sidecar_up = make.sampled(
            "tollgate_sidecar_up",
            "Whether the process with the small models answers a worker (1); absent where the policy needs none.",
            ["worker"],
            mode="livemin",
            absent=1.0,
        )
        self.budget_used = make.sampled(
            "tollgate_budget_used_ratio",
            "Used share of a tenant's budget; of the fullest where tenants are not told apart.",
            ["tenant", "window"],
            mode="livemax",
            absent=0.0,
        )
        self.over_budget = make.sampled(
            "tollgate_tenants_over_budget",
            "Tenants whose budget of a day or a month is used up.",
            ["window"],
            mode="livemax",
            absent=0.0,
        )
        self.ledger_lost = make.plain_counter(
            "tollgate_ledger_rows_lost_total", "Rows that could not be written to the ledger."
        )
        self.ledger_waiting = make.plain_gauge(
            "tollgate_ledger_rows_waiting", "Rows that wait to be written to the ledger.", mode="livesum"
        )
        self.adapters_held = make.sampled(
            "tollgate_adapters_held",
            "Adapters that a server is known to have loaded.",
            ["backend"],
            mode="livemax",
            absent=0.0,
        )
        self.adapters_listed = make.sampled(
            "tollgate_adapters_listed",
            "Adapters that a server lists of itself, and that can be asked.",
            ["backend"],
            mode="livemax",
            absent=0.0,
        )
        self.adapter_loads = make.counter(
            "tollgate_adapter_loads_total",
            "Loads of adapters into a server, by how they ended: ok, failed, timeout.",
            ["backend", "outcome"],
        )
        self.adapter_load_seconds = make.histogram(
            "tollgate_adapter_load_seconds",
            "What loading an adapter into a server took.",
            ["backend"],
            buckets.WAIT,
        )
        self.adapter_evictions = make.counter(
            "tollgate_adapter_evictions_total",
            "Adapters that made room for another.",
            ["backend"],
        )
        self.drifts = make.sampled(
            "tollgate_drifts",
            "1 for each measure of a model and route that differs from the same hour of earlier weeks.",
            ["model", "route", "measure"],
            mode="livemax",
            absent=0.0,
        )
        self.model_refusals = make.counter(
            "tollgate_model_refusals_total",
            "Requests that the model or its provider declined, by the model; counted where the ledger is written.",
            ["model"],
        )
        self.feedback_score = make.histogram(
            "tollgate_feedback_score",
            "What callers think of answers, from 0 to 1, by the model that gave them.",
            ["model"],
            buckets.SCORE,
        )
        self.recorded = make.counter(
            "tollgate_recorded_requests_total",
            "Requests to be recorded: written, or lost; of the written, those without the text that was to be kept.",
            ["outcome"],
        )
        self.recordings_waiting = make.plain_gauge(
            "tollgate_recordings_waiting",
            "Closed segments of recorded requests that wait to be put away.",
            mode="livesum",
        )
        self.evaluations = make.counter(
            "tollgate_evaluation_answers_total",
            "Answers to be judged, by the model that gave them: scored, or why not (dropped: the queue was full; "
            "waited: no idle capacity; gave_way; over_budget; unreadable; failed; no_text; too_long).",
            ["model", "outcome"],
        )
        self.evaluation_score = make.histogram(
            "tollgate_evaluation_score",
            "Scores from 0 to 1 that the judge gave to answers, by the model that gave them.",
            ["model"],
            SCORES,
        )
        self.evaluation_pairs = make.counter(
            "tollgate_evaluation_pairs_total",
            "Answers compared with a shadow model's: whose the judge prefers in both orders (answer, shadow, neither).",
            ["model", "shadow", "preferred"],
        )
        self.evaluations_waiting = make.plain_gauge(
            "tollgate_evaluation_waiting",
            "Answers that wait to be judged.",
            mode="livesum",
        )
        self.tenant_requests = make.counter(
            "tollgate_tenant_requests_total",
            "Model requests by tenant and outcome; only where tenants are told apart.",
            ["tenant", "status"],
        )
        self.tenant_tokens = make.counter(
            "tollgate_tenant_tokens_total",
            "Tokens by tenant; only where tenants are told apart.",
            ["tenant", "direction"],
        )
        self.tenant_first_token = make.histogram(
            "tollgate_tenant_time_to_first_token_seconds",
            "As tollgate_time_to_first_token_seconds, by tenant; only where tenants are told apart.",
            ["tenant"],
            buckets.FIRST_TOKEN,
        )
        self._made = make.made
        self._buffered = make.buffered

    async def watch_lag(self) -> None:
        """Observe by how much a timer is late, until cancelled: while one request computes, all others wait."""
        while True:
            due = time.perf_counter() + LAG_INTERVAL
            await asyncio.sleep(LAG_INTERVAL)
            self.observe_lag(max(0.0, time.perf_counter() - due))

    def observe_lag(self, late: float) -> None:
        """A timer of the event loop was ``late`` by so many seconds. Flushes all metrics now and then."""
        self._loop_lag.observe(late)
        self._samples += 1
        if not self._samples % FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        for one in self._buffered:
            one.flush()

    def tenant(self, name: str) -> str:
        """The value of the label ``tenant``: empty, unless the operator has tenants told apart."""
        return self.tenants.of(name)

    @property
    def folder(self) -> Path | None:
        """The folder of all workers' metrics; None where there is only one."""
        folder = os.environ.get(FOLDER)
        return Path(folder) if folder else None

    def render(self) -> bytes:
        """All metrics as text. Those of other workers are as of their last flush."""
        if self.folder is None:
            return b"".join(self.slices())
        self.flush()
        return render_shared(self.folder)

    def slices(self) -> Iterator[bytes]:
        """This worker's metrics as text, in parts that each take about a millisecond to render."""
        self.flush()
        for metric in self._made:
            yield from slices(metric)
