"""Messages between the HTTP process and an engine process that serves an embedding model or a reranker."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.messages import Refusal

# HTTP process → engine process; the first is ``engine.messages.Start``, and ``Abort`` is that of ``engine.messages``


@dataclass(frozen=True, slots=True)
class SubmitTexts:
    request_id: int
    rows: list[list[int]]
    """Token ids of each text."""
    firsts: list[int]
    """Tokens of each that are of a pair's first text; all of them where there is no second."""
    submitted: float
    """``time.monotonic()``, whose clock both processes share."""
    priority: int = 0
    """Higher goes first."""
    deadline: float | None = None
    """As ``submitted``."""
    size: int | None = None
    """Dimensions of the vectors; ``None``: all."""


# Engine process → HTTP process


@dataclass(frozen=True, slots=True)
class PoolingReady:
    """The model is loaded and warm."""

    max_model_len: int
    vocab_size: int
    width: int
    """Numbers that a text becomes."""
    max_num_seqs: int
    max_batched_tokens: int
    max_waiting: int
    device: str
    dtype: str
    gpus: tuple[str, ...] = ()
    """As ``engine.messages.Ready`` has it, and so are the next two."""
    startup: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PooledText:
    request_id: int
    index: int
    values: bytes
    """Little-endian float32."""


@dataclass(frozen=True, slots=True)
class PoolingStep:
    """What one batch cost, and the queue after it."""

    seconds: float
    sequences: int
    tokens: int
    running: int
    """Requests of which some texts are done and others not."""
    waiting: int
    """Requests of which none is."""
    queued: list[float]
    """Seconds that each request waited of which this batch had the first text."""
    out_of_memory: int = 0
    """Batches since the start that were abandoned for lack of memory."""


@dataclass(frozen=True, slots=True)
class PoolingOutputs:
    """Everything since the last message."""

    texts: list[PooledText]
    refusals: list[Refusal]
    step: PoolingStep
