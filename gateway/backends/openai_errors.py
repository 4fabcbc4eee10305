"""A model server's failures as the gateway's errors."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpx
import orjson

from gateway.errors import (
    ContentPolicy,
    ContextTooLong,
    EstimatedWait,
    GatewayError,
    NotConnected,
    Overloaded,
    RateLimited,
    Rejected,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.types import Json
from gateway.wire.verdict import is_verdict

MAX_RETRY_AFTER = 3600.0

# Codes and types where the server gives them; messages where it does not.
_POLICY = frozenset(
    {
        "content_filter",
        "content_policy_violation",
        "content_policy_violation_error",
        "moderation_blocked",
        "ResponsibleAIPolicyViolation",
    }
)
"""OpenAI and Azure (https://learn.microsoft.com/azure/ai-services/openai/concepts/content-filter)."""
_POLICY_WORDS = re.compile(
    r"content management policy|content policy|content filter|usage polic|safety system|flagged as potentially"
    r"|input was flagged",
    re.IGNORECASE,
)
_TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})
"""OpenAI and the bundled engine; llama.cpp."""
_TOO_LONG_WORDS = re.compile(
    r"maximum (context|prompt) length"  # OpenAI, vLLM, Mistral, xAI
    r"|longer than the (model's context length|maximum model length)"  # SGLang, vLLM
    r"|maximum allowed length"  # SGLang
    r"|prompt( is)? too long"  # Anthropic's own, Ollama
    r"|context (window|size)"  # llama.cpp, many others
    r"|exceeds? the( model's)?( maximum)? context"  # Ollama
    r"|token count.{0,40}exceeds the maximum number of tokens"  # Gemini
    r"|max_new_tokens` must be <=",  # TGI
    re.IGNORECASE,
)

ADAPTER_UNREADABLE = "adapter_unreadable"
"""The bundled engine's code where the files of an adapter, which it reads again, are gone from its disk."""
_NOT_ADMITTED = frozenset({"deadline_unreachable", "queue_full", "model_loading"})
"""The bundled engine's codes for a request that it does not admit, though it works."""


class Outage:
    """How long a server has been failing us, and so when to try again: the longer it lasts, the longer the wait."""

    def __init__(self, most: float = 30.0) -> None:
        """``most`` seconds are the longest wait."""
        self._most = most
        self._since: float | None = None

    def over(self) -> None:
        self._since = None

    def wait(self) -> EstimatedWait:
        """Seconds after which another try makes sense: as long as the outage has lasted, 1 at least."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return EstimatedWait(min(max(1.0, now - self._since), self._most))


def from_transport(backend: str, error: httpx.TransportError, outage: Outage) -> GatewayError:
    """The error for a request that got no answer at all."""
    if isinstance(error, httpx.UnsupportedProtocol):
        return UpstreamFailed(f"Backend '{backend}' has a base_url that cannot be used: {error}.")
    wait = outage.wait()
    unreachable = isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.ProxyError)
    what = "cannot be reached" if unreachable else "dropped the connection"
    kind = NotConnected if isinstance(error, httpx.ConnectTimeout) else UpstreamUnavailable
    failed = kind(f"Backend '{backend}' {what}. Try again in {wait:.0f} s.", retry_after=wait)
    failed.severed = not unreachable
    return failed


def from_response(
    backend: str, status: int, headers: Mapping[str, str], body: bytes, outage: Outage
) -> GatewayError:
    """The error for an upstream answer other than 200."""
    raw = _error_value(body)
    fields = _shape(raw)
    reason = fields.get("message")
    detail = f": {reason}" if reason else "."
    match status:
        case 403 if reason and _is_policy(fields):  # OpenRouter's moderation
            return _rejected(status, fields)
        case 401 | 403:
            return UpstreamFailed(
                f"Backend '{backend}' refused the gateway's own credentials; its api_key needs the operator's care.",
                code="upstream_auth",
            )
        case 402 | 429 if status == 402 or "insufficient_quota" in (
            fields.get("code"),
            fields.get("type"),
        ):
            return UpstreamFailed(
                f"Backend '{backend}' wants to be paid; the account behind its api_key needs the operator's care.",
                code="upstream_billing",
            )
        case 408 | 504:
            return UpstreamTimeout(f"Backend '{backend}' timed out{detail}")
        case 429 | 503 | 529:
            wait = retry_after(headers.get("retry-after"))
            if fields.get("code") in _NOT_ADMITTED:
                return Overloaded(
                    f"Backend '{backend}' did not admit the request{detail}",
                    code=fields["code"],
                    retry_after=wait,
                )
            wait = outage.wait() if wait is None else wait
            if status == 429:
                return RateLimited(f"Rate limit reached for backend '{backend}'{detail}", retry_after=wait)
            unavailable = UpstreamUnavailable(
                f"Backend '{backend}' is not available{detail}", retry_after=wait
            )
            unavailable.incident = fields.get("incident")
            if fields.get("code") == ADAPTER_UNREADABLE:
                unavailable.code = ADAPTER_UNREADABLE
            return unavailable
        case _ if 400 <= status < 500 and reason:
            rejected = _rejected(status, fields)
            rejected.details = _verdicts(raw) if isinstance(rejected, ContentPolicy) else {}
            return rejected
        case 400 | 413 | 414 | 422 | 431:  # the request's fault, by its HTTP status
            fields["message"] = (
                f"Backend '{backend}' refused the request with HTTP status {status} and gave no reason."
            )
            return _rejected(status, fields)
        case _:
            code = "upstream_refused" if 400 <= status < 500 else "upstream_error"
            return UpstreamFailed(
                f"Backend '{backend}' answered with HTTP status {status}{detail}", code=code
            )


def from_event(backend: str, error: Json) -> GatewayError:
    """The error for one that an upstream put into its stream, or into the body of a 200."""
    fields = _shape(error)
    if fields.get("message"):
        # vLLM and SGLang answer 200 and refuse in the first event, with the status as the code.
        code = fields.get("code", "")
        status = int(code) if code in ("400", "404", "409", "413", "422") else None
        if status is not None or _is_policy(fields) or _is_too_long(fields):
            return _rejected(status or 400, fields)
    failed = UpstreamFailed(
        f"Backend '{backend}' failed in the middle of its answer: {fields.get('message') or 'it gave no reason'}",
        code=fields.get("code") or "upstream_error",
    )
    failed.incident = fields.get("incident")
    return failed


def _rejected(status: int, fields: Mapping[str, str]) -> Rejected:
    kind = ContextTooLong if _is_too_long(fields) else ContentPolicy if _is_policy(fields) else Rejected
    return kind(
        fields["message"],
        status=status,
        type=fields.get("type"),
        param=fields.get("param"),
        code=fields.get("code"),
    )


def _is_policy(fields: Mapping[str, str]) -> bool:
    if {fields.get("code"), fields.get("type"), fields.get("reason")} & _POLICY:
        return True
    # "invalid_prompt" is what OpenAI's reasoning models say of a prompt that breaks its usage policies.
    return fields.get("code") in (None, "400", "403", "invalid_prompt") and bool(
        _POLICY_WORDS.search(fields["message"])
    )


def _is_too_long(fields: Mapping[str, str]) -> bool:
    return bool(
        {fields.get("code"), fields.get("type")} & _TOO_LONG or _TOO_LONG_WORDS.search(fields["message"])
    )


def retry_after(value: str | None) -> float | None:
    """Seconds in a Retry-After header, which holds a number or a date (RFC 9110, section 10.2.3)."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER) if seconds == seconds else None


def _error_value(body: bytes) -> Json:
    """What an error body says, in OpenAI's shape or one of the other common ones."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(raw, dict):
        return {}
    return raw.get("error") or raw.get("detail") or raw


def _verdicts(error: Json) -> dict[str, Json]:
    """What Azure's filters found in a prompt, by category. Only verdicts: nothing of the server's own may leave."""
    match error:
        case {"innererror": {"content_filter_result": dict(found), **inner}}:
            verdicts = {
                name: {key: said for key, said in verdict.items() if is_verdict(said)}
                for name, verdict in found.items()
                if is_verdict(name) and isinstance(verdict, dict)
            }
            code = {"code": inner["code"]} if is_verdict(inner.get("code")) else {}
            return {"innererror": {**code, "content_filter_result": verdicts}}
    return {}


def _shape(error: Json) -> dict[str, str]:
    if isinstance(error, str):
        return {"message": error}
    if not isinstance(error, dict):
        return {"message": _faults(error) or orjson.dumps(error).decode()} if error else {}
    fields = {
        name: str(error[name])
        for name in ("message", "type", "param", "code", "incident")
        if error.get(name) is not None and not isinstance(error[name], dict | list)
    }
    if "message" not in fields and (faults := _faults(error.get("message"))):
        fields["message"] = faults
    inner = error.get("innererror")
    if isinstance(inner, dict) and isinstance(inner.get("code"), str):
        fields["reason"] = inner["code"]  # Azure's
    return fields


def _faults(message: Json) -> str:
    """The faults that a server's validation found, as pydantic lists them: Mistral's are below ``message``."""
    found = message.get("detail") if isinstance(message, dict) else message
    if not isinstance(found, list):
        return found if isinstance(found, str) else ""
    told = [fault for fault in found[:_MOST_FAULTS] if isinstance(fault, dict)]
    return "; ".join(
        f"{_place(fault.get('loc'))}{fault['msg']}" for fault in told if isinstance(fault.get("msg"), str)
    )


_MOST_FAULTS = 4


def _place(loc: Json) -> str:
    where = ".".join(str(part) for part in loc if part != "body") if isinstance(loc, list) else ""
    return f"{where}: " if where else ""
