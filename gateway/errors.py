"""Every way a request can fail, as one tree. Each error knows its HTTP status, its code, and whether to try again.

    GatewayError
    ├── BadRequest             400  the request is wrong; names the field
    │   ├── NotFound           404  no such path or request
    │   │   └── UnknownModel   404  no such model, or not for this key
    │   ├── MethodNotAllowed   405
    │   ├── BodyTooLarge       413
    │   ├── UnsupportedCoding  415  a body compressed in a way that is not known here
    │   ├── Conflict           409  what is asked for cannot be done as things stand
    │   ├── Blocked            400  a guard of ours refused the content
    │   ├── TooManyAnswers     400  it asks for more answers at once than the backend has slots
    │   └── Rejected           4xx  the model's server refused the request; its message is passed on, scrubbed
    │       ├── ContentPolicy       it refused the content
    │       └── ContextTooLong      the prompt does not fit its model
    ├── Unauthenticated        401
    ├── Forbidden              403  a good key, in the wrong place
    ├── AuthUnavailable        503  what would prove a key or token cannot be read now
    ├── RateLimited            429  too many requests or tokens, here or upstream
    │   └── BudgetSpent        429  the money for the day or month is spent
    ├── GuardUnavailable       503  a guard could not judge the content, and lets nothing pass then
    │   └── AnswerUnjudged          the answer, of which nobody has been given anything
    ├── Overloaded             503  not admitted: it would wait too long
    ├── Upstream                    the model's server failed us
    │   ├── UpstreamFailed     502  it answered with an error, or with nonsense
    │   ├── UpstreamUnavailable 503 it cannot be reached, or says it is too busy
    │   │   ├── NotConnected   503  it let the time to connect pass in silence
    │   │   └── ModelUnavailable 503 none of the model's backends is in use: drained, or without its key
    │   └── UpstreamTimeout    504  it stayed silent past a timeout
    ├── NotCached              504  the caller wants an answer out of the cache, and there is none
    ├── DeadlineExceeded       504  the caller's own deadline passed before the answer was complete
    ├── ShuttingDown           503  the gateway was stopped before it could finish
    └── Internal               500  a bug of ours

In OpenAI's dialect the body is ``{"error": {"message", "type", "param", "code"}}``; others render their own from it
(https://platform.openai.com/docs/guides/error-codes).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class GatewayError(Exception):
    """Base of all errors that a caller may see. ``message`` is written for that caller."""

    status: int = 500
    type: str = "server_error"
    code: str | None = None
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after
        """Seconds after which another try makes sense."""
        self.headers = dict(headers or {})
        """Sent with the error."""
        self.upstream_status: int | None = None
        """The status of the model server's own response, where there was one."""
        self.unread: Sequence[Any] = ()
        """What had come of the answer (``gateway.types.Chunk``) and was given to nobody: it is paid for."""
        self.details: Mapping[str, Any] = {}
        """Further fields of the error, for callers who speak OpenAI's dialect."""
        self.logged = False
        """It has been logged."""
        if code is not None:
            self.code = code

    def body(self) -> dict[str, Any]:
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**fields, **self.details}}


class BadRequest(GatewayError):
    status = 400
    type = "invalid_request_error"

    @property
    def may_suit_another(self) -> bool:
        """Whether what is wrong is wrong with this model or backend, and another may take the request."""
        return self.status == 404 or self.code == "unsupported_parameter"


class NotFound(BadRequest):
    status = 404
    code = "not_found"


class UnknownModel(NotFound):
    code = "model_not_found"

    @classmethod
    def named(cls, name: str, instead: str = "") -> UnknownModel:
        """OpenAI's message, which clients recognise; the same for unknown models and forbidden ones. ``instead``: what
        there is."""
        return cls(
            f"The model `{name}` does not exist or you do not have access to it. GET /v1/models lists yours.{instead}",
            param="model",
        )


class MethodNotAllowed(BadRequest):
    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow
        """The methods that the path does take, as the ``allow`` header lists them."""


class BodyTooLarge(BadRequest):
    status = 413
    code = "request_too_large"


class UnsupportedCoding(BadRequest):
    status = 415
    code = "unsupported_content_encoding"


class Conflict(BadRequest):
    status = 409
    code = "conflict"


class Blocked(BadRequest):
    """Names the guard and the kind of finding, never the text."""

    code = "content_policy_violation"


class TooManyAnswers(BadRequest):
    """Of ``n``, ``best_of`` and prompts together; a backend with more slots may take them."""

    code = "too_many_answers"
    may_suit_another = True


class Rejected(BadRequest):
    """A client error that the model's server found; status, type and code are that server's."""

    def __init__(
        self, message: str, *, status: int, type: str | None, param: str | None, code: str | None
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self.type = type or "invalid_request_error"


class ContentPolicy(Rejected):
    """A provider's content policy refused the request: its decision stands, no other model is asked."""


class ContextTooLong(Rejected):
    """The same model cannot take it; one with a larger context might."""


class Unauthenticated(GatewayError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"
    public_message: str | None = None
    """Sent to the caller in place of ``message``, where it quotes what he sent and must not be logged."""

    def body(self) -> dict[str, Any]:
        body = super().body()
        if self.public_message is not None:
            body["error"]["message"] = self.public_message
        return body


class Forbidden(GatewayError):
    status = 403
    type = "permission_error"
    code = "forbidden"


class AuthUnavailable(GatewayError):
    """The key or token cannot be verified now; a later try may succeed."""

    status = 503
    code = "auth_unavailable"
    retryable = True


class RateLimited(GatewayError):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"
    retryable = True
    limit: str | None = None
    """The caller's limit at the gateway that was reached; None where a model's server refused."""


class BudgetSpent(RateLimited):
    type = "insufficient_quota"
    code = "insufficient_quota"
    retryable = False


class GuardUnavailable(GatewayError):
    status = 503
    code = "guard_unavailable"
    retryable = True


class AnswerUnjudged(GuardUnavailable):
    """It was computed, and would be again."""


class Overloaded(GatewayError):
    """Refused at the gate rather than kept waiting for nothing; ``retry_after`` is computed."""

    status = 503
    code = "overloaded"
    retryable = True


class Upstream(GatewayError):
    type = "upstream_error"
    incident: str | None = None
    """What the server names the same in the errors of all requests that one event has ended, such as a death of its
    process."""
    severed = False
    """The server broke the connection off without a word, as if it had died."""


class UpstreamFailed(Upstream):
    status = 502
    code = "upstream_error"
    retryable = True


class UpstreamUnavailable(Upstream):
    status = 503
    code = "upstream_unavailable"
    retryable = True


class UpstreamTimeout(Upstream):
    status = 504
    code = "upstream_timeout"
    retryable = True


class NotCached(GatewayError):
    """RFC 9111, section 5.2.1.7: ``only-if-cached``. It is no timeout, and another try would end alike."""

    status = 504
    type = "invalid_request_error"
    code = "not_cached"


class DeadlineExceeded(GatewayError):
    """Says nothing of the model's server: the caller may have asked for too much in too short a time."""

    status = 504
    code = "deadline_exceeded"


TOO_LATE = "The gateway is shutting down and could not finish this request."


class ShuttingDown(GatewayError):
    """The drain timeout passed with the request in flight; another replica, or a restart, can take it."""

    status = 503
    code = "shutting_down"
    retryable = True


class Internal(GatewayError):
    code = "internal_error"


class EstimatedWait(float):
    """Seconds that the gateway thinks fit, where the server did not name any."""


ENGINE_SOON = 2.0
"""Seconds in which a bundled engine that crashed is mostly there again."""


class NotConnected(UpstreamUnavailable):
    """The server let the time to connect pass in silence: it is not asked again at once."""


class ModelUnavailable(UpstreamUnavailable):
    """The model is there, but its backends are drained or disabled: it serves again once they are in use again."""

    code = "model_unavailable"

    @classmethod
    def named(cls, model: str, wait: float) -> ModelUnavailable:
        return cls(
            f"The model '{model}' is out of service for now: none of its backends is in use. "
            f"Try again in {wait:.0f} s.",
            param="model",
            retry_after=wait,
        )
