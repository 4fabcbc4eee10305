"""What the HTTP process and the engine process say to each other. One line each; ``engine/channel.py`` carries them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from engine.config import EngineConfig
from engine.core.plan import RequestOutput
from engine.core.request import Sibling
from engine.core.sampling_params import SamplingParams

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
    """Who asks: tenants get equal shares, by weight."""
    salt: bytes = b""
    """Only requests of the same salt find each other's blocks,"""
    shared: int = 0
    """but for those that the first so many tokens of the prompt fill."""


@dataclass(frozen=True, slots=True)
class Abort:
    request_ids: list[int]


@dataclass(frozen=True, slots=True)
class Park:
    """Nobody takes these requests' tokens: nothing more is to be computed for them until they are unparked."""

    request_ids: list[int]


@dataclass(frozen=True, slots=True)
class Unpark:
    request_ids: list[int]


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    key: str
    """Unlike that of any adapter before."""
    folder: Path


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    key: str
    """No request asks for it any more. It goes when those that run have ended."""


ToEngineCore = Start | Submit | Abort | Park | Unpark | LoadAdapter | UnloadAdapter

# Engine process → HTTP process


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and warm."""

    max_model_len: int
    vocab_size: int
    block_size: int
    blocks: int
    max_num_seqs: int
    max_waiting: int
    device: str
    dtype: str
    context_caps: tuple[tuple[int, int], ...] = ()
    """(priority, tokens), in ascending order."""
    startup: dict[str, float] = field(default_factory=dict)
    """Seconds that each part of the start took."""
    memory: dict[str, int] = field(default_factory=dict)
    """Bytes: ``weights_predicted`` from the files' headers, ``weights`` as they came to be, ``kv_cache`` at most,
    ``process`` in all."""

    @property
    def longest(self) -> int:
        """Tokens of prompt and answer that fit: all but the last token generated have to be in the KV cache."""
        return min(self.max_model_len, self.blocks * self.block_size + 1)


@dataclass(frozen=True, slots=True)
class Failed:
    """The model cannot be loaded; the process ends after this."""

    message: str


@dataclass(frozen=True, slots=True)
class Refusal:
    request_id: int
    error: str
    """The class of ``engine.errors``: ``QueueFull``, ``ContextLengthExceeded``, ``DeadlineUnreachable``,
    ``GrammarFailed``, ``OutOfMemory`` or ``ModelNotFound``, where the adapter was unloaded meanwhile."""
    figures: tuple[int, ...] = ()
    """The error's own arguments; times are in milliseconds."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step cost, and how things stand after it."""

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
    queued: list[float]
    """Seconds that each request scheduled for the first time had waited."""
    parked: int = 0
    """Sequences that wait for their readers."""
    hit_tokens: int = 0
    """Tokens that requests of this step need not compute: the prefix cache had them."""
    proposed: int = 0
    """Guesses since the start that were checked."""
    accepted: int = 0
    """Guesses since the start that were right."""
    compilations: int = 0
    """Kernels compiled since the warm-up: each was a pause."""
    out_of_memory: int = 0
    """Steps since the start that were given up for lack of memory."""
    prefixes: list[tuple[int, int]] | None = None
    """(key, tokens) of cached prefixes, as ``PrefixCache.digest`` tells; ``None``: as last told."""


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
    """What is wrong with it."""


ToServer = Ready | Failed | Outputs | AdapterDone
