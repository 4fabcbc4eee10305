"""Every way the engine can fail, as one tree. Each error that a client may see knows its HTTP status and code.

    EngineError
    ├── InvalidRequest               400  invalid_value          a field is invalid; names it
    │   ├── UnsupportedParameter     400  unsupported_parameter  understood, but not something this engine does
    │   ├── ContextLengthExceeded    400  context_length_exceeded
    │   ├── InputTooLong             400  context_length_exceeded  the same, of what becomes a vector or a score
    │   ├── GrammarFailed            400  grammar_failed         an answer's grammar takes too much time
    │   ├── Unauthorized             401  invalid_api_key        the path takes a token that the caller lacks
    │   ├── Forbidden                403  not_allowed            this engine was not started for it
    │   ├── ModelNotFound            404  model_not_found
    │   ├── PathNotFound             404  not_found
    │   ├── MethodNotAllowed         405  method_not_allowed
    │   └── BodyTooLarge             413  request_too_large
    ├── Unavailable                  503  may be retried, here or elsewhere
    │   ├── QueueFull                503  queue_full
    │   ├── DeadlineUnreachable      503  deadline_unreachable   too much to do before the caller's deadline
    │   ├── EngineDied               503  engine_died            the engine process has exited; it will be restarted
    │   ├── OutOfMemory              503  out_of_memory          a step needs more memory than the device has
    │   ├── EngineStalled            503  engine_stalled         the engine process has stopped decoding
    │   ├── AdapterUnreadable        503  adapter_unreadable     its files are gone, or have changed
    │   ├── Asleep                   503  asleep                 it was put to sleep, or is asked to while it works
    │   ├── ModelLoading             503  model_loading          the model would be loaded too late
    │   ├── ModelNotLoaded           503  model_not_loaded       its load failed, more than once
    │   ├── ModelNeverFits           503  model_never_fits       it is larger than what memory others leave it
    │   ├── ShuttingDown             503  shutting_down
    │   └── StorageFull              507  insufficient_storage   a file cannot be written
    ├── InternalError                500  internal_error         a bug of ours
    └── StartupError                      never on the wire: the reason why the process would not start
        ├── ModelUnavailable              no such folder, no such repository, or no network
        └── UnsupportedModel              read, but not something this engine can run

The body is OpenAI's: ``{"error": {"message", "type", "param", "code"}}``
(https://platform.openai.com/docs/guides/error-codes).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, ClassVar


class EngineError(Exception):
    """Base of all errors. ``message`` is written for the person who must act on it."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        return {}


class InvalidRequest(EngineError):
    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class UnsupportedParameter(InvalidRequest):
    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(
        self,
        prompt_tokens: int,
        max_tokens: int | None,
        *,
        limit: int,
        param: str | None = None,
        prompt: str = "messages",
    ) -> None:
        """``prompt``: the field that has the prompt."""
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.limit = limit
        if max_tokens:
            asked = (
                f"you requested {prompt_tokens + max_tokens} tokens ({prompt_tokens} in the {prompt}, "
                f"{max_tokens} in the completion). Please reduce the length of the {prompt} or completion."
            )
        else:
            asked = (
                f"your {prompt} resulted in {prompt_tokens} tokens, which leaves no room for an answer. "
                f"Please reduce the length of the {prompt}."
            )
        # OpenAI's wording: clients recognize this error by it.
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, {asked}", param=param
        )


class InputTooLong(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(self, tokens: int, *, limit: int, param: str) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, '{param}' has {tokens} tokens. Please "
            "reduce its length, or let it be cut by 'truncate_prompt_tokens': -1.",
            param=param,
        )


class GrammarFailed(InvalidRequest):
    code = "grammar_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The answer's form could not be kept to: {reason.rstrip('.')}. "
            "Ask for a simpler schema, expression or grammar."
        )


class Unauthorized(InvalidRequest):
    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class Forbidden(InvalidRequest):
    status = 403
    type = "permission_error"
    code = "not_allowed"


class ModelNotFound(InvalidRequest):
    status = 404
    code = "model_not_found"


class PathNotFound(InvalidRequest):
    status = 404
    code = "not_found"


class MethodNotAllowed(InvalidRequest):
    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow
        """The methods that the path does take, as the ``allow`` header lists them."""

    def headers(self) -> dict[str, str]:
        return {"allow": self.allow}


class BodyTooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"


class Unavailable(EngineError):
    status = 503
    type = "service_unavailable_error"
    code = "unavailable"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which another try makes sense."""

    def headers(self) -> dict[str, str]:
        return {"retry-after": str(max(1, round(self.retry_after)))}


class QueueFull(Unavailable):
    code = "queue_full"

    def __init__(self, waiting: int, *, retry_after: float = 1.0) -> None:
        super().__init__(
            f"The engine is busy: {waiting} requests are already waiting. Try again in {retry_after:.0f} s.",
            retry_after=retry_after,
        )
        self.waiting = waiting


class DeadlineUnreachable(Unavailable):
    code = "deadline_unreachable"

    def __init__(self, needed: float, allowed: float) -> None:
        """Both in seconds. What is too much now has become less after the difference, if others end meanwhile."""
        retry_after = min(60.0, max(1.0, needed - allowed))
        super().__init__(
            f"The answer is expected to take {needed:.1f} s, and the deadline is "
            f"{f'in {allowed:.1f} s' if allowed > 0 else 'past'}. "
            f"Try again in {retry_after:.0f} s, ask for fewer tokens or allow more time.",
            retry_after=retry_after,
        )
        self.needed = needed
        self.allowed = allowed


class EngineDied(Unavailable):
    code = "engine_died"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message, retry_after=retry_after)
        self.incident = secrets.token_hex(8)
        """The same in the errors of all requests that one death has ended, by which a gateway counts it once."""

    def body(self) -> dict[str, Any]:
        body = super().body()
        body["error"]["incident"] = self.incident
        return body


class OutOfMemory(Unavailable):
    code = "out_of_memory"

    def __init__(self, reason: str) -> None:
        """``reason``: an allocator's message, whose first sentence is shown."""
        super().__init__(
            "The engine's device has too little memory left for this request "
            f"({reason.strip().partition('. ')[0].rstrip('.') or 'out of memory'}). "
            "Send a shorter prompt or ask for fewer choices, or try again when it is less busy."
        )
        self.reason = reason


class StorageFull(Unavailable):
    status = 507
    code = "insufficient_storage"


class EngineStalled(Unavailable):
    code = "engine_stalled"


class AdapterUnreadable(Unavailable):
    code = "adapter_unreadable"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The adapter could not be read from the disk again: {reason}")


class Asleep(Unavailable):
    code = "asleep"


class ModelLoading(Unavailable):
    code = "model_loading"

    def __init__(self, model: str, state: str, wait: float) -> None:
        """``state``: the model's; ``wait``: seconds until it serves, as expected."""
        super().__init__(
            f"The model '{model}' is {state}, and is expected to serve in {wait:.0f} s, later than this request can "
            f"wait. Try again in {wait:.0f} s, or ask another model.",
            retry_after=wait,
        )


class ModelNotLoaded(Unavailable):
    code = "model_not_loaded"

    def __init__(self, model: str, why: str, retry_after: float) -> None:
        super().__init__(
            f"The model '{model}' could not be loaded: {why.rstrip('.')}. It is tried again in {retry_after:.0f} s.",
            retry_after=retry_after,
        )


class ModelNeverFits(Unavailable):
    code = "model_never_fits"

    def __init__(self, model: str, need: int, budget: int, pinned: Sequence[str] = ()) -> None:
        """``need`` and ``budget`` in bytes; ``pinned``: models that are never put out for it."""
        beside = f" beside {', '.join(pinned)}, which never give way" if pinned else ""
        super().__init__(
            f"The model '{model}' takes about {need / 2**20:,.0f} MiB, and does not fit into {budget / 2**20:,.0f} MiB"
            f"{beside}: raise --memory, lower its --kv-cache-memory or --max-num-seqs, quantize it"
            f"{', or pin fewer models' if pinned else ''}.",
            retry_after=60.0,
        )


class ShuttingDown(Unavailable):
    code = "shutting_down"


class InternalError(EngineError):
    pass


class StartupError(EngineError):
    code = "startup_error"


class ModelUnavailable(StartupError):
    pass


class UnsupportedModel(StartupError):
    pass
