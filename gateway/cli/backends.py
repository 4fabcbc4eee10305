"""``tollgate backends list``: each backend and its replicas as a running gateway has them, by its admin API."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import orjson

KEY = "TOLLGATE_API_KEY"
URL = "http://127.0.0.1:8000"
PATIENCE = 10.0
"""Seconds for each of two answers."""
HEADER = ("BACKEND", "STATE", "BREAKER", "IN FLIGHT", "WAITING", "RUNS", "KV", "PROBLEM")

Json = Any


class Unanswered(Exception):
    """What the operator is told in place of a table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", metavar="NAME", nargs="?", help="only this one, with its replicas")
    parser.add_argument("--url", default=URL, help=f"the gateway ({URL})")
    parser.add_argument(
        "--key-env",
        metavar="VARIABLE",
        default=KEY,
        help=f"the environment variable with a key of scope admin or viewer ({KEY})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exits with 0, 1 where the gateway does not answer or has no such backend, 2 for options that are wrong."""
    url, key = arguments.url.rstrip("/").removesuffix("/v1"), os.environ.get(arguments.key_env, "").strip()
    if not url.startswith(("http://", "https://")):
        print(f"tollgate backends: --url: {arguments.url!r}: write it as {URL}", file=sys.stderr)
        return 2
    if not key:
        print(
            f"tollgate backends: the variable {arguments.key_env} is empty; give it an API key of scope admin or "
            "viewer",
            file=sys.stderr,
        )
        return 2
    if not (key.isascii() and key.isprintable()):  # an error of the HTTP client would have it in its text
        print(f"tollgate backends: the variable {arguments.key_env} has no API key", file=sys.stderr)
        return 2
    try:
        backends, snapshot = _asked(url, key)
        found = [*rows(backends, snapshot)]
        lines = table(found)
    except Unanswered as error:
        print(f"tollgate backends: {_printable(str(error))}", file=sys.stderr)
        return 1
    except (KeyError, TypeError, AttributeError, ValueError):
        print(
            f"tollgate backends: {url} does not answer as Tollgate's admin API of this version",
            file=sys.stderr,
        )
        return 1
    wanted = arguments.backend
    if wanted is not None:
        found = [one for one in found if wanted in (one["name"], one.get("replica_of"))]
        if not found:
            print(f"tollgate backends: no backend is named '{wanted}'", file=sys.stderr)
            return 1
        lines = table(found)
    print(json.dumps({"backends": found}, indent=2) if arguments.json else lines)
    return 0


def rows(backends: list[Json], snapshot: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """What the API says of each, replicas behind the backend that they are of, with its figures and open breakers."""
    breakers: dict[str, list[Json]] = {}
    for one in snapshot["breakers"]:
        breakers.setdefault(one["backend"], []).append({name: one[name] for name in one if name != "backend"})
    replicas: dict[str, list[Json]] = {}
    for one in backends:
        if one.get("replica_of") is not None:
            replicas.setdefault(one["replica_of"], []).append(one)
    for backend in backends:
        if backend.get("replica_of") is None:
            for one in (backend, *replicas.get(backend["name"], ())):
                figures = dict(snapshot["backends"].get(one["name"], {}))
                figures.pop("queue", None)
                its = {"breakers": breakers.get(one["name"], []), "figures": figures}
                yield {**one, **its, "replicas": len(replicas.get(one["name"], ()))}


def table(found: list[dict[str, Json]]) -> str:
    lines = [HEADER, *map(_line, found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _line(one: Mapping[str, Json]) -> tuple[str, ...]:
    figures = one["figures"]
    engine = figures.get("engine", {})
    slots = f"/{figures['slots']}" if figures.get("slots") is not None else ""
    runs = f"{engine['running']}+{engine['waiting']}" if engine else "-"
    cells = (
        f"  {one['name']}" if one.get("replica_of") is not None else one["name"],
        _state(one),
        _breaker(one["breakers"]),
        f"{figures['in_flight']}{slots}" if figures else "-",
        str(figures["waiting"]) if figures else "-",
        runs,
        f"{engine['kv_usage']:.0%}" if engine else "-",
        one.get("disabled") or one.get("trouble") or "",
    )
    return tuple(_printable(cell)[:120] for cell in cells)


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _state(one: Mapping[str, Json]) -> str:
    share = one.get("share")
    if one["drained"]:
        return "drained"
    if not one["enabled"]:
        return "out of use"
    if one["replicas"]:
        return f"{one['replicas']} replicas"
    if share is not None and share < 1.0:
        return "ejected" if not share else f"{share:.0%} share"
    return "in use"


def _breaker(breakers: list[Json]) -> str:
    """Of several that are open the one that stays so longest. A tenant's or key's own is told as that."""
    if not breakers:
        return "closed"
    last = max(breakers, key=lambda one: float(one["seconds"]))
    whose = next((f" for {one}" for one in (last.get("key"), last.get("tenant")) if one), "")
    more = f", {len(breakers) - 1} more" if len(breakers) > 1 else ""
    return f"open {last['seconds']:.0f} s: {last['model']}{whose}{more}"


def _asked(url: str, key: str) -> tuple[list[Json], dict[str, Json]]:
    headers = {"authorization": f"Bearer {key}", "user-agent": "tollgate"}
    with httpx.Client(headers=headers, timeout=PATIENCE, trust_env=False) as http:
        backends = _answer(http, f"{url}/admin/api/backends")
        snapshot = _answer(http, f"{url}/admin/api/snapshot")
    try:
        return [*backends["backends"]], {name: snapshot[name] for name in ("backends", "breakers")}
    except (KeyError, TypeError):
        raise Unanswered(f"{url} is no gateway: its answer is none of Tollgate's admin API") from None


def _answer(http: httpx.Client, url: str) -> dict[str, Json]:
    try:
        answer = http.get(url)
        content = orjson.loads(answer.content)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unanswered(f"{url} cannot be asked: {error or type(error).__name__}") from None
    except ValueError:
        raise Unanswered(f"{url} is no gateway: it answers with HTTP status {answer.status_code}") from None
    if answer.status_code != 200:
        said = content.get("error", {}) if isinstance(content, dict) else {}
        message = said.get("message") if isinstance(said, dict) else None
        raise Unanswered(
            f"the gateway answers with HTTP status {answer.status_code}: {message or 'no reason'}"
        )
    return dict(content) if isinstance(content, dict) else {}
