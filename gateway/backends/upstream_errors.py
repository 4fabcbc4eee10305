"""What went wrong at a model's server, told as the gateway's own errors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpx
import orjson

from gateway.errors import (
    GatewayError,
    RateLimited,
    Rejected,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.types import Json

MAX_RETRY_AFTER = 3600.0


class Outage:
    """How long a server has been failing us, and so when to try again: the longer it lasts, the longer the wait."""

    def __init__(self) -> None:
        self._since: float | None = None

    def over(self) -> None:
        self._since = None

    def wait(self) -> float:
        """Seconds after which another try makes sense: as long as the outage has lasted, within 1 and 30."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return min(max(1.0, now - self._since), 30.0)


def from_transport(backend: str, error: httpx.TransportError, outage: Outage) -> GatewayError:
    """The error for a request that got no answer at all."""
    if isinstance(error, httpx.UnsupportedProtocol):
        return UpstreamFailed(f"Backend '{backend}' has a base_url that cannot be used: {error}.")
    wait = outage.wait()
    unreachable = isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.ProxyError)
    what = "cannot be reached" if unreachable else "dropped the connection"
    return UpstreamUnavailable(f"Backend '{backend}' {what}. Try again in {wait:.0f} s.", retry_after=wait)


def from_response(
    backend: str, status: int, headers: Mapping[str, str], body: bytes, outage: Outage
) -> GatewayError:
    """The error for an upstream answer other than 200."""
    told = _told(body)
    reason = told.get("message")
    said = f": {reason}" if reason else "."
    match status:
        case 401 | 403:
            return UpstreamFailed(
                f"Backend '{backend}' refused the gateway's own credentials; its api_key needs the operator's care.",
                code="upstream_auth",
            )
        case 408 | 504:
            return UpstreamTimeout(f"Backend '{backend}' timed out{said}")
        case 429 | 503 | 529:
            wait = retry_after(headers.get("retry-after"))
            wait = outage.wait() if wait is None else wait
            if status == 429:
                return RateLimited(f"Backend '{backend}' is rate limited{said}", retry_after=wait)
            return UpstreamUnavailable(f"Backend '{backend}' is not available{said}", retry_after=wait)
        case _ if 400 <= status < 500 and reason:
            return Rejected(
                reason, status=status, type=told.get("type"), param=told.get("param"), code=told.get("code")
            )
        case _:
            return UpstreamFailed(f"Backend '{backend}' answered with HTTP status {status}{said}")


def from_event(backend: str, error: Json) -> GatewayError:
    """The error for one that an upstream put into its stream, or into the body of a 200."""
    told = _shape(error)
    return UpstreamFailed(
        f"Backend '{backend}' failed in the middle of its answer: {told.get('message') or 'it gave no reason'}",
        code=told.get("code") or "upstream_error",
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


def _told(body: bytes) -> dict[str, str]:
    """What an error body says, in OpenAI's shape or one of the other common ones."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(raw, dict):
        return {}
    return _shape(raw.get("error") or raw.get("detail") or raw)


def _shape(error: Json) -> dict[str, str]:
    if isinstance(error, str):
        return {"message": error}
    if not isinstance(error, dict):
        return {"message": orjson.dumps(error).decode()} if error else {}
    return {
        name: str(error[name])
        for name in ("message", "type", "param", "code")
        if error.get(name) is not None and not isinstance(error[name], dict | list)
    }
