"""Why a request is refused, across the socket: an exception to a ``Refusal`` and back."""

from __future__ import annotations

from engine.errors import (
    AdapterUnreadable,
    ContextLengthExceeded,
    DeadlineUnreachable,
    EngineError,
    GrammarFailed,
    ModelNotFound,
    OutOfMemory,
    QueueFull,
)
from engine.messages import Refusal


def to_refusal(request_id: int, error: QueueFull | ContextLengthExceeded | DeadlineUnreachable) -> Refusal:
    """In the engine process."""
    match error:
        case QueueFull():
            figures: tuple[int, ...] = (error.waiting,)
        case ContextLengthExceeded():
            figures = (error.prompt_tokens, error.max_tokens or 0, error.limit)
        case DeadlineUnreachable():
            figures = (round(error.needed * 1000), round(error.allowed * 1000))
    return Refusal(request_id, type(error).__name__, figures)


def to_error(refusal: Refusal, *, retry_after: float) -> EngineError:
    """In the HTTP process. ``retry_after``: seconds that a caller should wait whom a full queue refuses."""
    match refusal.error:
        case "ContextLengthExceeded":
            prompt_tokens, max_tokens, limit = refusal.figures
            return ContextLengthExceeded(prompt_tokens, max_tokens, limit=limit)
        case "DeadlineUnreachable":
            needed, allowed = refusal.figures
            return DeadlineUnreachable(needed / 1000, allowed / 1000)
        case "GrammarFailed":
            return GrammarFailed(refusal.reason)
        case "OutOfMemory":
            return OutOfMemory(refusal.reason)
        case "AdapterUnreadable":
            return AdapterUnreadable(refusal.reason)
        case "ModelNotFound":
            return ModelNotFound("The adapter was unloaded before the request began.", param="model")
        case "QueueFull":
            return QueueFull(refusal.figures[0], retry_after=retry_after)
    raise ValueError(f"{refusal.error!r} is not an error that refuses a request")
