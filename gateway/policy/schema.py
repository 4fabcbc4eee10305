"""What an operator may write in a policy folder, as frozen types. ``policies/README.md`` is its reference.

Unknown keys are errors everywhere. A key is added here together with the code that gives it effect, never before.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(value: object) -> float:
    """Seconds in ``250ms``, ``2s``, ``5m``, ``1h`` or ``1d``; raises ValueError on anything else."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a duration as a number with its unit: 250ms, 2s, 5m, 1h or 1d")
    return float(match[1]) * _SECONDS[match[2]]


Duration = Annotated[float, BeforeValidator(parse_duration)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", max_length=128)]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/]+(/\S*)?$")]


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineBackend(Frozen):
    """The bundled engine. With ``launch`` the gateway starts it as a child at ``base_url``'s port."""

    kind: Literal["engine"]
    base_url: HttpUrl = "http://127.0.0.1:8100"
    launch: bool = False
    model: str = "demo"
    """What the launched engine serves: ``demo``, a local folder, or a hub id."""
    args: tuple[str, ...] = ()
    """More options for the launched engine's command line, as ``python -m engine serve --help`` lists them."""


class OpenAIBackend(Frozen):
    """Any server that speaks OpenAI's API. ``base_url`` ends where ``/chat/completions`` would follow."""

    kind: Literal["openai"]
    base_url: HttpUrl
    api_key: SecretStr | None = None


class FakeReply(Frozen):
    """One scripted answer; the first whose ``match`` occurs in the last user message is given."""

    match: str = ""
    reply: str = ""
    status: Annotated[int, Field(ge=200, le=599)] = 200
    """400 and up: answer with this HTTP error instead of ``reply``."""
    cut_after: Annotated[int, Field(ge=0)] | None = None
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
    model: str
    weight: Annotated[float, Field(gt=0)] = 1.0


class Timeouts(Frozen):
    """Seconds to connect, to the first token, between chunks, and for the whole answer."""

    connect: Duration = 2.0
    first_token: Duration = 60.0
    idle: Duration = 30.0
    total: Duration = 600.0


class Model(Frozen):
    """A public model name. Traffic is split over ``targets`` by weight."""

    targets: Annotated[tuple[Target, ...], Field(min_length=1)]
    timeouts: Timeouts = Timeouts()


class Key(Frozen):
    """An API key, known only by the SHA-256 of its text."""

    id: Name
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tenant: Name = "default"
    models: tuple[str, ...] = ("*",)
    """Glob patterns of the public model names it may use."""
    expires: date | None = None
    """Valid through the day before this one, in UTC."""


class Policy(Frozen):
    """A whole policy folder, parsed."""

    version: Literal[1]
    backends: dict[Name, Backend]
    models: dict[Name, Model]
    keys: tuple[Key, ...] = ()
    store: Annotated[str, Field(pattern=r"^(memory|rediss?://\S+)$")] = "memory"
    """Where workers and replicas share state: ``memory`` is this process alone."""
