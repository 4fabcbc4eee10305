"""The values an operator writes, each with the complaint that helps: durations, names, URLs, hashes, days, prices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from ipaddress import ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?) ?(B|KiB|MiB|GiB|KB|MB|GB)", re.ASCII)
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def parse_duration(value: object) -> float:
    """Seconds in ``250ms``, ``2s``, ``5m``, ``1h`` or ``1d``; raises ValueError on anything else."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a duration as a number with its unit: 250ms, 2s, 5m, 1h or 1d")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(value: object) -> int:
    """Bytes in ``512KiB``, ``256MiB`` or ``1GiB``; raises ValueError on anything else."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or (size := round(float(match[1]) * _UNITS[match[2]])) < 1:
        raise ValueError("write a size as a number with its unit: 512KiB, 256MiB or 1GiB")
    return size


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


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("should not be empty")
    return text


def http_url(text: str) -> str:
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


def sha256_digits(text: str) -> str:
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


def _moment(value: object) -> datetime:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError("write a date and time, such as 2027-01-01T12:00:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _network(text: str) -> str:
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(f"write an IP address or network, such as 10.0.0.0/8: {error}") from None


@dataclass(frozen=True, slots=True)
class Form:
    """How a value is written in a policy's files, as a pattern (ECMA-262): whatever its validator takes matches it."""

    pattern: str


def _written(pattern: str) -> WithJsonSchema:
    """How a value is written, for documents of an API, whose readers make values of it: each that matches is taken."""
    return WithJsonSchema({"type": "string", "pattern": f"^(?:{pattern})$"})


# The schema's patterns are ECMA-262's, and in them a class is spelt out.
_DURATION_FORM = r"[0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h|d)"
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    _written(_DURATION_FORM),
    Form(f"^{_DURATION_FORM}$"),
]
Timeout = Annotated[
    Duration,
    AfterValidator(_positive),
    _written(r"[0-9]{0,8}[1-9](\.[0-9]{1,9})?(ms|s|m|h|d)"),
    Form(f"^(?=[0-9.]*[1-9]){_DURATION_FORM}$"),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Form(r"^(?=[0-9.]*[1-9])[0-9]{1,9}(\.[0-9]{1,3})? ?(B|KiB|MiB|GiB|KB|MB|GB)$"),
]
Name = Annotated[str, AfterValidator(_name), _written(_NAME.pattern), Form(f"^{_NAME.pattern}$")]
Text = Annotated[str, AfterValidator(_filled), _written(r"[^\s][^\n]*"), Form(r"\S")]
HttpUrl = Annotated[str, AfterValidator(http_url), Form(r"^[Hh][Tt][Tt][Pp][Ss]?://\S+$")]
Sha256 = Annotated[str, AfterValidator(sha256_digits), Form("^[0-9a-fA-F]{64}$")]
_OCTET = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_NETWORK = {
    "description": "An IP address, or a network such as 10.0.0.0/8 or 2001:db8::/32.",
    "anyOf": [
        {"type": "string", "format": "ipv6"},
        {"type": "string", "pattern": rf"^{_OCTET}(\.{_OCTET}){{3}}(/32)?$"},
        {"type": "string", "pattern": rf"^{_OCTET}(\.{_OCTET}){{2}}\.0/24$"},
        {"type": "string", "pattern": rf"^{_OCTET}\.{_OCTET}\.0\.0/16$"},
        {"type": "string", "pattern": rf"^{_OCTET}\.0\.0\.0/8$"},
    ],
}
"""Of networks only the usual ones: no pattern says that all bits past the prefix are zero."""
Network = Annotated[
    str,
    AfterValidator(_network),
    WithJsonSchema(_NETWORK),
    Form(r"^(?=.*[.:])[0-9A-Fa-f:.]+(%[^/\s]+)?(/[0-9.]+)?$"),
]
Day = Annotated[
    date,
    BeforeValidator(_day),
    WithJsonSchema({"type": "string", "format": "date"}),
    Form("^[0-9]{4}-[0-9]{2}-[0-9]{2}$"),
]
Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    WithJsonSchema({"type": "string", "format": "date-time"}),
    Form("^[0-9]{4}(-[0-9W]|[0-9]{4}|W)"),
]
"""In UTC where it names no offset."""
Count = Annotated[int, Field(strict=True, ge=1, le=10**12)]
Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(strict=True, gt=0, le=1e6, allow_inf_nan=False)]
Dollars = Annotated[float, Field(strict=True, ge=0, le=1e9, allow_inf_nan=False)]


class Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
