"""Where LiteLLM keeps what its replicas share: a Redis server, a cluster, or one behind Sentinels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from gateway.lab.migration.draft import PolicyDraft
from gateway.lab.migration.source import Source, is_variable, listed, policy_text
from gateway.policy.schema.storage import Store

_HOST = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]|\$\{\w+\}")
_PORT = re.compile(r"[1-9][0-9]{0,4}|\$\{\w+(?::-[0-9]*)?\}")
_VARIABLE = re.compile(r"\$\{\w+(?::-[^}]*)?\}")
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_IAM = ("gcp_service_account", "gcp_ssl_ca_certs")


def add_store(place: Source, prefix: str, draft: PolicyDraft) -> None:
    """``prefix``: what the names of its settings begin with (``redis`` in ``redis_host``)."""
    mark = f"{prefix}_" if prefix else ""
    url, host = place.text(f"{mark}url"), place.text(f"{mark}host")
    port, number = place.text(f"{mark}port"), place.text(f"{mark}db")
    login = _login(place.text(f"{mark}username"), place.text(f"{mark}password"), draft)
    scheme = "rediss" if place.get("ssl") else "redis"
    options = {name: text for name in _TLS if (text := _option(place, name)) is not None}
    many = place.get("redis_startup_nodes") or place.get("startup_nodes")
    sentinels, service = place.get("sentinel_nodes"), place.text("service_name")
    password = _secret(place.text("sentinel_password"), "REDIS_SENTINEL_PASSWORD", draft)
    _tell_of_accounts(place, draft)
    if many:
        nodes = ",".join(_addresses(many)) or "HOST:PORT"
        _set(f"{scheme}+cluster://{login}{nodes}{_query(options)}", place.at("redis_startup_nodes"), draft)
    elif sentinels:
        options |= {"sentinel_password": password} if password else {}
        path = f"/{service or 'mymaster'}/{number or 0}"
        nodes = ",".join(_addresses(sentinels)) or "HOST:PORT"
        _set(f"{scheme}+sentinel://{login}{nodes}{path}{_query(options)}", place.at("sentinel_nodes"), draft)
    elif url is not None:
        secret = "@" in url and not is_variable(url)
        _keep(draft.secret(url, "REDIS_URL") if secret else url, place.at(f"{mark}url"), draft)
    elif host is not None and not (_HOST.fullmatch(host) and _PORT.fullmatch(port or "6379")):
        draft.report.dropped(
            place.at(f"{mark}host"),
            f"'{host}' with port '{port or 6379}' is no address of a server",
            "write `store: redis://HOST:PORT/0` into the policy",
        )
    elif host is not None:
        address = f"{scheme}://{login}{host}:{port or 6379}/{number or 0}"
        _set(f"{address}{_query(options)}", place.at(f"{mark}host"), draft)


def _set(url: str, where: str, draft: PolicyDraft) -> None:
    """The policy's own rule says whether it can be the store."""
    try:
        TypeAdapter(Store).validate_python(_VARIABLE.sub("1", url))
    except ValidationError:
        draft.report.dropped(
            where,
            "this Redis cannot be the store as it is written; without one each gateway has its own limits and caches",
            f"write its URL into the policy: `store: {url}`, or that of one server",
        )
    else:
        _keep(url, where, draft)


def _keep(url: str, where: str, draft: PolicyDraft) -> None:
    kept = draft.content.setdefault("store", url)
    if kept != url:
        draft.report.dropped(
            where,
            f"limits, caches and breakers are in one store, which is '{kept}' by what stands elsewhere",
            f"write `store: {url}` into the policy if it is to be that one",
        )


def _login(username: str | None, password: str | None, draft: PolicyDraft) -> str:
    if not password:
        return ""
    name = username if username and is_variable(username) else quote(username or "", safe="")
    return f"{name}:{_secret(password, 'REDIS_PASSWORD', draft)}@"


def _secret(value: str | None, name: str, draft: PolicyDraft) -> str | None:
    return value if not value or is_variable(value) else draft.secret(value, name)


def _option(place: Source, name: str) -> str | None:
    """``ssl_cert_reqs: null`` means none."""
    found = place.get(name)
    if found is None:
        return "none" if name == "ssl_cert_reqs" and place.names(name) else None
    return str(found).lower() if isinstance(found, bool) else policy_text(str(found))


def _query(options: Mapping[str, str]) -> str:
    shown = (
        f"{name}={text if is_variable(text) else quote(text, safe='/.')}" for name, text in options.items()
    )
    return f"?{'&'.join(shown)}" if options else ""


def _addresses(nodes: Any) -> Iterator[str]:
    """Of ``[{host: h, port: p}]`` or ``[[h, p]]``."""
    for node in listed(nodes):
        pair = (node.get("host"), node.get("port")) if isinstance(node, dict) else node
        if isinstance(pair, list | tuple) and len(pair) == 2:
            host, port = (policy_text(str(one)) for one in pair)
            if _HOST.fullmatch(host) and _PORT.fullmatch(port):
                yield f"{host}:{port}"


def _tell_of_accounts(place: Source, draft: PolicyDraft) -> None:
    for key in _IAM:
        if place.has(key):
            draft.report.dropped(
                place.at(key),
                "the store is reached by a password, not by an account of the cloud's",
                "write a login into its URL, or run a proxy beside the gateway that signs in",
            )
            place.skip(key)
