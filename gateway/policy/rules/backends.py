"""``backends``: engines that would not start, and scripts that are never read to their end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from gateway.policy.content import mapping_at, mappings_at
from gateway.policy.engine_options import start_error
from gateway.policy.problems import Diagnostic, KeyPath, suggestion
from gateway.policy.rules.subject import Draft, Findings, Valid
from gateway.policy.schema import EngineBackend, FakeBackend, OpenAIBackend, Replicated

_LAUNCH_KEYS = ("model", "args", "env", "golden", "stop_first")
_RESERVED_OPTIONS = {
    "--model": "model",
    "--host": "base_url",
    "--port": "base_url",
    "--share-port": "launch",
    "--standby-port": "launch",
}

_OF_ONE_ENGINE = ("--handover-address", "--nodes")
"""Addresses that are taken while the engine before it is there."""


def engine_launched_elsewhere(draft: Draft) -> Findings:
    for name, backend in _launched(draft.content):
        url = urlsplit(backend.base_url)
        if url.scheme != "http" or not is_loopback(url.hostname or ""):
            message = "with 'launch: true' the engine runs on this machine; write http://127.0.0.1:PORT"
            yield Diagnostic(("backends", name, "base_url"), message)


def engines_of_one_port(draft: Draft) -> Findings:
    ports: dict[int, KeyPath] = {}
    for name, backend in _launched(draft.content):
        port, path = urlsplit(backend.base_url).port or 80, ("backends", name, "base_url")
        if (first := ports.setdefault(port, path)) != path:
            yield Diagnostic(path, f"two launched engines have port {port}; give each its own", first)


def reserved_engine_option(draft: Draft) -> Findings:
    for name, backend in _launched(draft.content):
        for index, option in enumerate(_options(backend)):
            if option in _RESERVED_OPTIONS:
                message = f"'{option}' is set by '{_RESERVED_OPTIONS[option]}'; write it there"
                yield Diagnostic(("backends", name, "args", index), message)


def engine_that_would_not_start(draft: Draft) -> Findings:
    for name, backend in _launched(draft.content):
        if draft.folder is not None and (why := start_error(backend)):
            key = _faulty_key(why, _options(backend), draft.content["backends"][name])
            yield Diagnostic(("backends", name, *key), why)


def engine_beside_which_none_starts(draft: Draft) -> Findings:
    for name, backend in _launched(draft.content):
        for index, option in enumerate(_options(backend)):
            if option in _OF_ONE_ENGINE and not backend.stop_first:
                message = (
                    f"'{option}' is one engine's at a time, and after an edit its successor starts beside it"
                )
                yield Diagnostic(("backends", name, "args", index), f"{message}; add 'stop_first: true'")


def golden_set_that_is_missing(draft: Draft) -> Findings:
    for name, backend in _launched(draft.content):
        golden = backend.golden
        if golden is not None and draft.folder is not None and not (draft.folder / golden.set).is_file():
            message = f"there is no file '{golden.set}' in the policy folder"
            yield Diagnostic(("backends", name, "golden", "set"), message)


def prefill_by_no_engine(draft: Draft) -> Findings:
    backends = mappings_at(draft.content, "backends")
    for name, backend in backends.items():
        named = backend.get("prefill")
        for index, other in enumerate(named if isinstance(named, list | tuple) else ()):
            there = backends.get(str(other))
            path = ("backends", name, "prefill", index)
            if there is None:
                yield Diagnostic(
                    path, f"there is no backend '{other}'{suggestion(str(other), tuple(backends))}"
                )
            elif there.get("kind") != "engine" or other == name:
                message = f"'{other}' is no other engine; name one that has '--role prefill' or '--role both'"
                yield Diagnostic(path, message)
            elif (there.get("region"), there.get("local", True)) != (
                backend.get("region"),
                backend.get("local", True),
            ):
                message = f"'{other}' gets prompts of '{name}', and has another 'region' or 'local'; give both the same"
                yield Diagnostic(path, message)


def _options(backend: EngineBackend) -> list[str]:
    return [argument.partition("=")[0] for argument in backend.args]


def _faulty_key(why: str, options: Sequence[str], written: Mapping[str, Any]) -> KeyPath:
    """The key that the engine's error message names."""
    for index, option in enumerate(options):
        if option.startswith("-") and re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", why):
            return ("args", index)
    return ("model",) if "model" in written else ()


def _launched(content: Mapping[str, Any]) -> Iterator[tuple[str, EngineBackend]]:
    for name, backend in mapping_at(content, "backends").items():
        with suppress(ValidationError):
            engine = EngineBackend.model_validate(backend)
            if engine.launch:
                yield name, engine


def kv_events_that_nobody_reads(valid: Valid) -> Findings:
    """What a server holds is of use to ``select: score`` alone."""
    policy = valid.policy
    read = {
        target.backend
        for model in policy.models.values()
        if model.select == "score"
        for target in model.targets
    }
    for name, backend in policy.backends.items():
        if isinstance(backend, OpenAIBackend) and backend.kv_events is not None and name not in read:
            message = (
                "nobody reads its events: no model with 'select: score' has this backend among its targets"
            )
            yield Diagnostic(("backends", name, "kv_events"), message)


def truncated_embeddings(draft: Draft) -> Findings:
    """``matryoshka`` is not set for the built-in embedder, which does not support it."""
    if mapping_at(draft.content, "sidecar").get("embedder", "builtin") != "builtin":
        return
    for name, backend in mapping_at(draft.content, "backends").items():
        if (
            isinstance(backend, dict)
            and backend.get("kind") == "sidecar"
            and backend.get("matryoshka") is True
        ):
            message = (
                "the built-in all-MiniLM-L6-v2 cannot be truncated; name another model in sidecar.embedder"
            )
            yield Diagnostic(("backends", name, "matryoshka"), message)


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def launch_options_without_launch(valid: Valid) -> Findings:
    """Launch options without ``launch``; an explicit ``launch: false`` may come from a variable."""
    policy = valid.policy
    for name, backend in policy.backends.items():
        if isinstance(backend, EngineBackend) and "launch" not in backend.model_fields_set:
            for key in _LAUNCH_KEYS:
                if valid.written["backends"][name].get(key) is not None:
                    message = "has no effect without 'launch: true'; write that, or remove this key"
                    yield Diagnostic(("backends", name, key), message)


def unreachable_reply(valid: Valid) -> Findings:
    """A script's first entry whose ``match`` occurs answers, so that another which holds that text is never reached."""
    for name, backend in valid.policy.backends.items():
        if not isinstance(backend, FakeBackend):
            continue
        for index, entry in enumerate(backend.script):
            earlier = next(
                (i for i, one in enumerate(backend.script[:index]) if one.match in entry.match), None
            )
            if earlier is None:
                continue
            first = backend.script[earlier].match
            message = (
                f"is never reached: entry {earlier} matches all that this one does"
                + (f", as '{first}' occurs in its 'match'" if first else ", as it has no 'match'")
                + "; write this one before it"
            )
            yield Diagnostic(("backends", name, "script", index), message)


def drained_nothing(valid: Valid) -> Findings:
    for index, name in enumerate(valid.policy.drained):
        parent = valid.policy.backends.get(name.rpartition("@")[0])
        of_replica = isinstance(parent, Replicated) and parent.replicas is not None
        if name not in valid.policy.backends and not of_replica:
            yield Diagnostic(("drained", index), f"no backend is named '{name}'; nothing is drained by it")


def embedder_of_no_engine(draft: Draft) -> Findings:
    embedder = mapping_at(draft.content, "sidecar").get("embedder")
    if not isinstance(embedder, dict) or "backend" not in embedder:
        return
    name, backends = str(embedder["backend"]), mappings_at(draft.content, "backends")
    path = ("sidecar", "embedder", "backend")
    if name not in backends:
        yield Diagnostic(path, f"no backend is named '{name}'{suggestion(name, tuple(backends))}")
    elif (kind := backends[name].get("kind")) != "engine":
        yield Diagnostic(path, f"'{name}' is of kind '{kind}'; embeddings come from one of kind 'engine'")
