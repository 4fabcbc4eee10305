"""The address of a Redis: one server, a cluster, or a set that Sentinel watches; with TLS and logins."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

Kind = Literal["server", "cluster", "sentinel"]
Host = tuple[str, int]

_SCHEMES: Mapping[str, tuple[Kind, bool]] = MappingProxyType(
    {
        "redis": ("server", False),
        "rediss": ("server", True),
        "redis+cluster": ("cluster", False),
        "rediss+cluster": ("cluster", True),
        "redis+sentinel": ("sentinel", False),
        "rediss+sentinel": ("sentinel", True),
    }
)
FORM = r"rediss?(\+(cluster|sentinel))?://\S+"
"""What such a URL looks like, for a JSON schema."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/\s]+)(?::(\d{1,5}))?", re.ASCII)
_MASTER = re.compile(r"/([A-Za-z0-9._-]+)(?:/(\d{0,5}))?/?", re.ASCII)
_DATABASE = re.compile(r"/?(\d{0,5})", re.ASCII)
_BOOLS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _bool(text: str) -> bool:
    return _BOOLS[text.lower()]


def _number(text: str) -> int:
    """Raises ``ValueError`` as ``int`` does, and below 0."""
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _verification(text: str) -> str:
    return {"none": "none", "optional": "optional", "required": "required"}[text.lower()]


_TLS: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "ssl_ca_certs": str,
        "ssl_ca_path": str,
        "ssl_certfile": str,
        "ssl_keyfile": str,
        "ssl_password": str,
        "ssl_cert_reqs": _verification,
        "ssl_check_hostname": _bool,
    }
)
_ANY: Mapping[str, Callable[[str], object]] = MappingProxyType(
    {
        "db": _number,
        "username": str,
        "password": str,
        "protocol": lambda text: {"2": 2, "3": 3}[text],
        "client_name": str,
        "socket_keepalive": _bool,
        "health_check_interval": _number,
    }
)
_SENTINEL = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """``hosts`` are the server; or some of a cluster's; or the Sentinels that know where ``master`` is.

    ``options`` are keyword arguments of the client library's connections, logins among them: not for a log.
    """

    kind: Kind
    tls: bool
    hosts: tuple[Host, ...]
    master: str = ""
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    sentinel_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """Instead, for the Sentinels themselves."""

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """``redis[s]://[user:password@]host[:port]/[db]``, ``redis[s]+cluster://host:port,host:port``,
        ``redis[s]+sentinel://host:port,host:port/master/[db]``, each with options as ``?name=value&…``.

        Raises ``ValueError``, whose words repeat nothing that may be a password.
        """
        scheme, found, _ = url.partition("://")
        if not found or scheme not in _SCHEMES or re.search(r"\s", url):
            raise ValueError(f"should begin with one of {', '.join(f'{name}://' for name in _SCHEMES)}")
        kind, tls = _SCHEMES[scheme]
        try:
            parts = urlsplit(url)
            login, _, places = parts.netloc.rpartition("@")
        except ValueError:
            raise ValueError(f"cannot be read; {_ESCAPE}") from None
        if parts.fragment or "#" in url:
            raise ValueError(f"cannot be read; {_ESCAPE}")
        hosts = tuple(_host(text, 26379 if kind == "sentinel" else 6379) for text in places.split(","))
        if kind == "server" and len(hosts) > 1:
            raise ValueError(
                "names several hosts: write 'redis+cluster://…' for a cluster, or 'redis+sentinel://…/MASTER/0' for "
                "what Sentinel watches"
            )
        options: dict[str, object] = {}
        user, _, password = login.partition(":")
        if user:
            options["username"] = unquote(user)
        if password:
            options["password"] = unquote(password)
        given = _query(parts.query, kind, tls)
        sentinel = {name.removeprefix("sentinel_"): given.pop(name) for name in _SENTINEL if name in given}
        options |= given
        master = ""
        if kind == "sentinel":
            path = _MASTER.fullmatch(parts.path)
            if path is None:
                raise ValueError("names no master: write 'redis+sentinel://HOST:26379,HOST:26379/MASTER/0'")
            master, number = path[1], path[2]
        else:
            path = _DATABASE.fullmatch(parts.path)
            if path is None:
                raise ValueError("should end with the number of a database, such as redis://127.0.0.1:6379/0")
            number = path[1]
        if number:
            options["db"] = int(number)
        if kind == "cluster" and options.get("db"):
            raise ValueError("names a database, and a cluster has none but 0")
        shared = {name: value for name, value in options.items() if name in _TLS}
        return cls(kind, tls, hosts, master, options, shared | sentinel)


_ESCAPE = "write special characters of a user or password as %XX ('/' as %2F, '@' as %40, '#' as %23)"


def _host(text: str, usual: int) -> Host:
    found = _HOST.fullmatch(text)
    if found is None or (found[2] is not None and not 0 < int(found[2]) < 65536):
        # Not the text itself: a password with a '/' or '@' in it ends up here.
        raise ValueError(f"names no host, or one that cannot be read; {_ESCAPE}")
    return found[1].strip("[]"), int(found[2] or usual)


def _query(text: str, kind: Kind, tls: bool) -> dict[str, object]:
    known: dict[str, Callable[[str], object]] = {**_ANY}
    if tls:
        known |= _TLS
    if kind == "sentinel":
        known |= dict.fromkeys(_SENTINEL, str)
    found: dict[str, object] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in known:
            if name in _TLS:
                raise ValueError(f"has '{name}', which is for TLS: write 'rediss' for 'redis'")
            raise ValueError(f"has an option that is not known here; there are {', '.join(known)}")
        try:
            found[name] = known[name](value)
        except (ValueError, KeyError):
            raise ValueError(f"has a value of '{name}' that cannot be read") from None
    return found
