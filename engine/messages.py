"""Messages between the HTTP process and the engine process; ``engine/channel.py`` transports them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from engine.config import EngineConfig
from engine.core.adapter_slots import AdapterState
from engine.core.plan import RequestOutput
from engine.core.request import Sibling
from engine.core.sampling_params import SamplingParams
from engine.core.tiers.remote import HandoverState
from engine.core.tiers.tiered_cache import TierState

# HTTP process → engine process


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: load the model."""

    config: EngineConfig


@dataclass(frozen=True, slots=True)
class Submit:
    request_id: int
    prompt: list[int]
    params: SamplingParams
    submitted: float
    """``time.monotonic()``, whose clock both processes share."""
    priority: int = 0
    """Higher goes first."""
    deadline: float | None = None
    """As ``submitted``."""
    weight: float = 1.0
    """How much longer than one of weight 1 its prefix is kept."""
    adapter: str | None = None
    siblings: list[Sibling] = field(default_factory=list)
    """Further choices of the same prompt."""
    tenant: str = ""
    """Tenants get equal shares, by weight."""
    salt: bytes = b""
    """Only requests of the same salt find each other's blocks in the prefix cache,"""
    shared: int = 0
    """except those that the prompt's first so many tokens fill."""
    pin: float = 0.0
    """Seconds after its end for which its prompt is to be kept."""
    prefill_at: str = ""
    """The address of an engine that can be asked for its prompt's blocks."""


@dataclass(frozen=True, slots=True)
class Abort:
    request_ids: list[int]


@dataclass(frozen=True, slots=True)
class Park:
    """Nobody reads these requests' tokens: nothing more is computed for them until they are unparked."""

    request_ids: list[int]


@dataclass(frozen=True, slots=True)
class Unpark:
    request_ids: list[int]


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    key: str
    """Never used by an adapter before."""
    folder: Path


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    key: str
    """No new request uses it. It is unloaded when the open ones have ended."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Give memory back; nothing but ``Wake`` is sent until then."""

    level: int
    """1: weights that are mapped go back to the page cache; 2: everything that was loaded is dropped."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Be as after the start."""


ToEngineCore = Start | Submit | Abort | Park | Unpark | LoadAdapter | UnloadAdapter | Sleep | Wake

# Engine process → HTTP process


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and warm."""

    max_model_len: int
    """Tokens of prompt and answer together, for which there are blocks."""
    vocab_size: int
    block_size: int
    blocks: int
    max_num_seqs: int
    max_waiting: int
    device: str
    dtype: str
    context_caps: tuple[tuple[int, int], ...] = ()
    """(priority, tokens), in ascending order."""
    kv_cache_dtype: str = "auto"
    prefix_caching: bool = True
    host_blocks: int = 0
    """Copies of KV blocks for which there is host memory,"""
    disk_blocks: int = 0
    """and a file."""
    max_adapters: int = 0
    """Slots for LoRA adapters; 0: none."""
    max_cpu_adapters: int = 0
    """LoRA adapters that host memory can have."""
    adapters: dict[str, str] = field(default_factory=dict)
    """Those of the start: key, and the digest of the files."""
    role: str = ""
    """``--role``,"""
    handover_address: str = ""
    """and where other engines ask for blocks; empty: they cannot."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it computes on, by rank."""
    startup: dict[str, float] = field(default_factory=dict)
    """Seconds that each part of the start took."""
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes: ``weights_predicted`` from the files' headers, ``weights`` measured, ``kv_cache`` at most,
    ``states`` of layers that keep one of each request, ``host_kv`` copies of blocks, ``process`` in all."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The model cannot be loaded; the process exits after this."""

    message: str


@dataclass(frozen=True, slots=True)
class Refusal:
    request_id: int
    error: str
    """The class of ``engine.errors``: ``QueueFull``, ``ContextLengthExceeded``, ``DeadlineUnreachable``,
    ``GrammarFailed``, ``OutOfMemory``, ``AdapterUnreadable`` or, where the adapter was unloaded meanwhile,
    ``ModelNotFound``."""
    figures: tuple[int, ...] = ()
    """The error's own arguments; times are in milliseconds."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step cost, and the engine's state after it."""

    seconds: float
    sequences: int
    prefill_tokens: int
    decode_tokens: int
    preempted: int
    running: int
    waiting: int
    waiting_by_priority: dict[int, int]
    blocks_free: int
    blocks_cached: int
    queued: list[tuple[int, float]]
    """(request id, seconds): how long each request scheduled for the first time had waited."""
    parked: int = 0
    """Sequences whose clients do not read their tokens."""
    hit_tokens: int = 0
    """Prompt tokens of requests admitted in this step that the prefix cache had."""
    prefix_queries: int = 0
    """Prompt tokens of requests scheduled for the first time that were looked up in the prefix cache,"""
    prefix_hits: int = 0
    """and those of them that it had."""
    proposed: int = 0
    """Draft tokens verified since the start."""
    accepted: int = 0
    """Draft tokens accepted since the start."""
    compilations: int = 0
    """Kernels compiled since the warm-up: each paused all requests."""
    out_of_memory: int = 0
    """Steps since the start that were abandoned for lack of memory."""
    blocks_pinned: int = 0
    """Kept for prompts that asked for it, held or not."""
    loading: int = 0
    """Sequences that wait for KV blocks from another tier of memory."""
    adapters: AdapterState | None = None
    """Where there are slots for them."""
    tiers: TierState | None = None
    """Of KV memory beyond the device's, where there is some."""
    handover: HandoverState | None = None
    """Of an engine with a role."""
    prefixes: list[tuple[int, int, str]] | None = None
    """(key, tokens, tier) of cached prefixes, as ``PrefixCache.digest`` and ``TieredCache.digest`` return them, with no
    tier for the device's; ``None``: unchanged."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Everything since the last message: one message a step, however many requests it serves."""

    requests: list[RequestOutput]
    refusals: list[Refusal]
    step: Step


@dataclass(frozen=True, slots=True)
class AdapterDone:
    """An adapter was loaded or unloaded, or could not be."""

    key: str
    error: str | None = None
    """Why it cannot be used."""
    digest: str = ""
    """Of the files of one that was loaded."""


@dataclass(frozen=True, slots=True)
class SleepDone:
    """It sleeps, or is awake again, or could not."""

    error: str | None = None


ToServer = Ready | Failed | Outputs | AdapterDone | SleepDone
