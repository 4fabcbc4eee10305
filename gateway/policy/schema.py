"""What an operator may write in a policy folder, as frozen types. ``policies/README.md`` is its reference.

Unknown keys are errors everywhere. A key is added here together with the code that gives it effect, never before.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def parse_duration(value: object) -> float:
    """Seconds in ``250ms``, ``2s``, ``5m``, ``1h`` or ``1d``; raises ValueError on anything else."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a duration as a number with its unit: 250ms, 2s, 5m, 1h or 1d")
    return float(match[1]) * _SECONDS[match[2]]


def _positive(seconds: float) -> float:
    if seconds <= 0:
        raise ValueError("should be longer than nothing, such as 2s")
    return seconds


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            f"'{text[:40]}' is not a name; use letters, digits and ._:/@+- and begin with a letter or digit"
        )
    return text


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("should not be empty")
    return text


def _http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s", text):
        raise ValueError("should be a URL such as https://host/v1 or http://127.0.0.1:8100")
    if parts.query or parts.fragment:
        raise ValueError("should end with its path, without '?' and '#'")
    if parts.username is not None or parts.password is not None:
        raise ValueError("should hold no user or password; a key belongs in api_key")
    return text.rstrip("/")


def _openai_base(url: str) -> str:
    for ending in ("/chat/completions", "/completions", "/models"):
        if url.endswith(ending):
            raise ValueError(f"should end before '{ending}', such as {url.removesuffix(ending)}")
    return url


def _engine_base(url: str) -> str:
    if urlsplit(url).path:
        raise ValueError(
            f"should name host and port only, without a path, such as http://{urlsplit(url).netloc}"
        )
    return url


def _sha256(text: str) -> str:
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise ValueError(
            "should be 64 hex digits, the key's SHA-256; 'tollgate keys create' writes such entries"
        )
    return text.lower()


def _day(value: object) -> date:
    if isinstance(value, date):
        return value
    if not isinstance(value, str) or not _DAY.fullmatch(value):
        raise ValueError("write a day as year-month-day, such as 2027-01-01")
    try:
        return date.fromisoformat(value)
    except ValueError as error:
        raise ValueError(f"{value} is no day: {error}") from None


def _store(text: str) -> str:
    if text != "memory" and not re.fullmatch(r"rediss?://\S+", text):
        raise ValueError("should be 'memory' or the URL of a Redis server, such as redis://127.0.0.1:6379/0")
    return text


Duration = Annotated[float, BeforeValidator(parse_duration)]
Timeout = Annotated[Duration, AfterValidator(_positive)]
Name = Annotated[str, AfterValidator(_name)]
Text = Annotated[str, AfterValidator(_filled)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineBackend(Frozen):
    """The bundled engine. With ``launch`` the gateway starts it as a child at ``base_url``'s port."""

    kind: Literal["engine"]
    base_url: Annotated[HttpUrl, AfterValidator(_engine_base)] = "http://127.0.0.1:8100"
    launch: bool = False
    model: Text = "demo"
    """What the launched engine serves: ``demo``, a local folder, or a hub id."""
    args: tuple[str, ...] = ()
    """More options for the launched engine's command line, as ``python -m engine serve --help`` lists them."""


class OpenAIBackend(Frozen):
    """Any server that speaks OpenAI's API. ``base_url`` ends where ``/chat/completions`` would follow."""

    kind: Literal["openai"]
    base_url: Annotated[HttpUrl, AfterValidator(_openai_base)]
    api_key: SecretStr | None = None


class FakeReply(Frozen):
    """One scripted answer; the first whose ``match`` occurs in the last user message is given."""

    match: str = ""
    reply: str = ""
    status: Annotated[int, Field(strict=True, ge=200, le=599)] = 200
    """400 and up: answer with this HTTP error instead of ``reply``."""
    cut_after: Annotated[int, Field(strict=True, ge=0)] | None = None
    """Break off, as a dropped connection would, after this many chunks."""


class FakeBackend(Frozen):
    """A scripted backend in the gateway's own process, for tests and demos."""

    kind: Literal["fake"]
    script: Annotated[tuple[FakeReply, ...], Field(min_length=1)]
    first_token_delay: Duration = 0.0
    token_delay: Duration = 0.0


Backend = Annotated[EngineBackend | OpenAIBackend | FakeBackend, Field(discriminator="kind")]


class Target(Frozen):
    """A backend, and the name by which it knows the model."""

    backend: Name
    model: Text
    weight: Annotated[float, Field(strict=True, gt=0, le=1e6, allow_inf_nan=False)] = 1.0


class Timeouts(Frozen):
    """Seconds to connect, to the first token, between chunks, and for the whole answer."""

    connect: Timeout = 2.0
    first_token: Timeout = 60.0
    idle: Timeout = 30.0
    total: Timeout = 600.0


class Model(Frozen):
    """A public model name. Traffic is split over ``targets`` by weight."""

    targets: Annotated[tuple[Target, ...], Field(min_length=1)]
    timeouts: Timeouts = Timeouts()


class Key(Frozen):
    """An API key, known only by the SHA-256 of its text."""

    id: Name
    sha256: Annotated[str, AfterValidator(_sha256)]
    tenant: Name = "default"
    models: tuple[Text, ...] = ("*",)
    """Glob patterns of the public model names it may use."""
    expires: Annotated[date, BeforeValidator(_day)] | None = None
    """Valid through the day before this one, in UTC."""


class Policy(Frozen):
    """A whole policy folder, parsed."""

    version: Literal[1]
    backends: Annotated[dict[Name, Backend], Field(min_length=1)]
    models: Annotated[dict[Name, Model], Field(min_length=1)]
    keys: tuple[Key, ...] = ()
    store: Annotated[str, AfterValidator(_store)] = "memory"
    """Where workers and replicas share state: ``memory`` is this process alone."""
