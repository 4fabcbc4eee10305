"""Where LiteLLM keeps what its replicas share: a Redis server, a cluster, or one behind Sentinels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from gateway.lab.migration.draft import PolicyDraft
from gateway.lab.migration.source import Source, is_variable, listed, policy_text

_HOST = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]|\$\{\w+\}")
_PORT = re.compile(r"[1-9][0-9]{0,4}|\$\{\w+(?::-[0-9]*)?\}")
_PASSWORD = "REDIS_PASSWORD"
_IAM = ("gcp_service_account", "gcp_ssl_ca_certs", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ca_certs")


def add_store(place: Source, prefix: str, draft: PolicyDraft) -> None:
    """``prefix``: what the names of its settings begin with (``redis`` in ``redis_host``)."""
    mark = f"{prefix}_" if prefix else ""
    url, host = place.text(f"{mark}url"), place.text(f"{mark}host")
    port, password, number = place.text(f"{mark}port"), place.text(f"{mark}password"), place.text(f"{mark}db")
    username, tls = place.text(f"{mark}username"), bool(place.get("ssl"))
    _tell_of_certificates(place, draft)
    many = place.get("redis_startup_nodes") or place.get("startup_nodes")
    sentinels, service = place.get("sentinel_nodes"), place.text("service_name")
    _secret(place.text("sentinel_password"), "REDIS_SENTINEL_PASSWORD", draft)
    if many or sentinels:
        _tell_of_many(place, many, sentinels, service, draft)
        return
    if url is not None:
        draft.content.setdefault(
            "store", url if "@" not in url or is_variable(url) else draft.secret(url, "REDIS_URL")
        )
        return
    if host is None:
        return
    if not _HOST.fullmatch(host) or not _PORT.fullmatch(port or "6379"):
        draft.report.dropped(
            place.at(f"{mark}host"),
            f"'{host}' with port '{port or 6379}' is no address of a server",
            "write `store: redis://HOST:PORT/0` into the policy",
        )
        return
    login = _login(username, password, draft)
    draft.content.setdefault(
        "store", f"redis{'s' if tls else ''}://{login}{host}:{port or 6379}/{number or 0}"
    )


def _login(username: str | None, password: str | None, draft: PolicyDraft) -> str:
    if not password:
        return ""
    name = username if username and is_variable(username) else quote(username or "", safe="")
    return f"{name}:{_secret(password, _PASSWORD, draft)}@"


def _secret(value: str | None, name: str, draft: PolicyDraft) -> str | None:
    return value if not value or is_variable(value) else draft.secret(value, name)


def _tell_of_many(place: Source, many: Any, sentinels: Any, service: str | None, draft: PolicyDraft) -> None:
    nodes = ",".join(_addresses(many or sentinels)) or "HOST:PORT,HOST:PORT"
    url = f"redis+cluster://{nodes}" if many else f"redis+sentinel://{nodes}/{service or 'mymaster'}/0"
    draft.report.dropped(
        place.at("redis_startup_nodes" if many else "sentinel_nodes"),
        f"a Redis {'cluster' if many else 'server behind Sentinels'} has a URL of its own here; until it stands there "
        "limits and caches are each gateway's own",
        f"write `store: {url}` into the policy, with a login before the first host where there is one",
    )


def _addresses(nodes: Any) -> Iterator[str]:
    """Of ``[{host: h, port: p}]`` or ``[[h, p]]``."""
    for node in listed(nodes):
        pair = (node.get("host"), node.get("port")) if isinstance(node, dict) else node
        if isinstance(pair, list | tuple) and len(pair) == 2:
            host, port = (policy_text(str(one)) for one in pair)
            if _HOST.fullmatch(host) and _PORT.fullmatch(port):
                yield f"{host}:{port}"


def _tell_of_certificates(place: Source, draft: PolicyDraft) -> None:
    for key in _IAM:
        if place.has(key):
            draft.report.dropped(
                place.at(key),
                "the store is reached by its URL alone, with certificates that the system trusts",
                "write `rediss://` with a password, or run a proxy beside the gateway that signs in",
            )
            place.skip(key)
