"""What the schema cannot check: references between sections, and values that must be unique.

The checks read a policy's plain content, valid or not, so that one mistake does not hide the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from gateway.policy.content import list_at, mapping_at, mappings_at
from gateway.policy.engine_options import start_error
from gateway.policy.guard_checks import guard_diagnostics
from gateway.policy.problems import Diagnostic, KeyPath, suggestion
from gateway.policy.schema import EngineBackend, Model
from gateway.policy.schema.access import DEFAULT_TIER

_GLOB = frozenset("*?[")
_RESERVED_OPTIONS = {"--model": "model", "--host": "base_url", "--port": "base_url"}


def check(content: Mapping[str, Any], folder: Path | None = None) -> Iterator[Diagnostic]:
    """Everything that is wrong between the sections of a policy; given its folder, also whether the files that it names
    exist and the engines that it launches would start."""
    yield from _targets(content)
    yield from _names_of_models(content)
    yield from _models_named(content)
    yield from _cascades(content)
    yield from _regions(content)
    yield from _tiers_named(content)
    yield from _keys(content)
    yield from _issuers(content, folder)
    yield from _launches(content, folder)
    yield from _embedders(content)
    yield from _prices(content)
    yield from guard_diagnostics(content)


def is_pattern(name: str) -> bool:
    """Whether it may match several models, some of which may be added later."""
    return not _GLOB.isdisjoint(name)


def aliases_of(models: Mapping[str, Any]) -> Iterator[str]:
    """Every alias in a policy's ``models``, valid or not."""
    for model in models.values():
        yield from (alias for alias in list_at(model, "aliases") if isinstance(alias, str))


def _targets(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    backends = tuple(mapping_at(content, "backends"))
    for name, model in mapping_at(content, "models").items():
        for index, target in enumerate(list_at(model, "targets")):
            backend = target.get("backend") if isinstance(target, dict) else None
            if isinstance(backend, str) and backend not in backends:
                yield Diagnostic(
                    ("models", name, "targets", index, "backend"),
                    f"no backend is named '{backend}'{suggestion(backend, backends)}",
                )


def _names_of_models(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """A name or alias belongs to one model."""
    models = mapping_at(content, "models")
    taken: dict[str, KeyPath] = {name: ("models", name) for name in models}
    for name, model in models.items():
        for index, alias in enumerate(list_at(model, "aliases")):
            path: KeyPath = ("models", name, "aliases", index)
            if isinstance(alias, str) and (first := taken.setdefault(alias, path)) != path:
                yield Diagnostic(path, f"'{alias}' is the name of another model, or given twice", first)


def _models_named(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Models that others refer to exist, are not the model itself, and have targets where a cascade cannot be used."""
    models = mapping_at(content, "models")
    names = tuple(models)
    for path, word in _references(content):
        if word not in models:
            aliased = next(
                (name for name, model in models.items() if word in list_at(model, "aliases")), None
            )
            hint = f"; write '{aliased}', of which it is an alias" if aliased else suggestion(word, names)
            yield Diagnostic(path, f"no model is named '{word}'{hint}")
        elif path[0] == "models" and word == path[1]:
            yield Diagnostic(path, "is the model itself; name another one")
        elif path[2] == "cascade" and list_at(models[word], "cascade"):
            yield Diagnostic(path, f"'{word}' is a cascade itself; a step should be a model with targets")
        elif path[2] in ("fallbacks", "larger_context") and list_at(models[word], "cascade"):
            message = f"'{word}' is a cascade, which cannot replace another model; name models with targets"
            yield Diagnostic(path, f"{message}, such as its last step's")
        elif path[0] == "guards" and list_at(models[word], "cascade"):
            yield Diagnostic(path, f"'{word}' is a cascade; name a model with targets")
        elif path[0] == "tiers" and list_at(models[word], "cascade"):
            yield Diagnostic(
                path, f"'{word}' is a cascade; name one model with targets, such as its first step's"
            )


_CASCADE_KEYS = ("cascade", "aliases")


def _cascades(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Keys that have no effect on a cascade."""
    for name, model in mapping_at(content, "models").items():
        steps = list_at(model, "cascade")
        if not steps or list_at(model, "targets"):
            continue
        for key in model:
            if key in Model.model_fields and key not in _CASCADE_KEYS:
                message = "has no effect on a cascade; write it at the models that its steps name"
                yield Diagnostic(("models", name, key), message)
        for key in ("when", "escalate"):
            if isinstance(steps[-1], dict) and key in steps[-1]:
                message = "has no effect on the last step, which takes whatever is left"
                yield Diagnostic(("models", name, "cascade", len(steps) - 1, key), message)


def _regions(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """A preferred region has a backend, though perhaps none that serves the model yet."""
    backends = mapping_at(content, "backends").values()
    known = tuple(dict.fromkeys(str(b["region"]) for b in backends if isinstance(b, dict) and "region" in b))
    for name, model in mapping_at(content, "models").items():
        for index, region in enumerate(list_at(model, "regions")):
            if isinstance(region, str) and region not in known:
                message = f"no backend is in region '{region}'{suggestion(region, known)}"
                yield Diagnostic(("models", name, "regions", index), message)


def _references(content: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    found: list[tuple[KeyPath, Any]] = []
    for name, model in mapping_at(content, "models").items():
        at = ("models", name)
        found += [((*at, "fallbacks", i), word) for i, word in enumerate(list_at(model, "fallbacks"))]
        found += [
            ((*at, "cascade", i, "model"), step.get("model"))
            for i, step in enumerate(list_at(model, "cascade"))
            if isinstance(step, dict)
        ]
        if isinstance(model, dict):
            found.append(((*at, "larger_context"), model.get("larger_context")))
        found.append(((*at, "shadow", "model"), mapping_at(model, "shadow").get("model")))
    for name, tier in mapping_at(content, "tiers").items():
        path = ("tiers", name, "on_saturation", "to")
        found.append((path, mapping_at(tier, "on_saturation").get("to")))
    found += [
        (("guards", name, "judge"), guard.get("judge"))
        for name, guard in mappings_at(content, "guards").items()
    ]
    found += [
        (("guards", name, "judge", "model"), mapping_at(guard, "judge").get("model"))
        for name, guard in mappings_at(content, "guards").items()
    ]
    yield from ((path, word) for path, word in found if isinstance(word, str))


def _tiers_named(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """A policy without a ``tiers`` section may name any tier: all of them have the defaults."""
    tiers = tuple(mapping_at(content, "tiers"))
    owners: Iterable[tuple[KeyPath, Any]] = (
        *((("tenants", name), tenant) for name, tenant in mapping_at(content, "tenants").items()),
        *((("keys", index), key) for index, key in enumerate(list_at(content, "keys"))),
    )
    for path, owner in owners:
        tier = owner.get("tier") if isinstance(owner, dict) else None
        if tiers and isinstance(tier, str) and tier not in (*tiers, DEFAULT_TIER):
            yield Diagnostic((*path, "tier"), f"no tier is named '{tier}'{suggestion(tier, tiers)}")


def _issuers(content: Mapping[str, Any], folder: Path | None) -> Iterator[Diagnostic]:
    seen: dict[str, KeyPath] = {}
    for index, entry in enumerate(list_at(content, "jwt")):
        issuer, jwks = (entry.get("issuer"), entry.get("jwks")) if isinstance(entry, dict) else (None, None)
        path: KeyPath = ("jwt", index, "issuer")
        if isinstance(issuer, str) and (first := seen.setdefault(issuer, path)) != path:
            yield Diagnostic(path, "two entries have this issuer; each needs its own", first)
        if isinstance(jwks, str) and "://" in jwks:
            if not _fetchable(jwks):
                yield Diagnostic(
                    ("jwt", index, "jwks"), "should be an http(s) URL, or a file beside the policy"
                )
        elif isinstance(jwks, str) and folder is not None and not (folder / jwks).is_file():
            yield Diagnostic(("jwt", index, "jwks"), f"there is no file '{folder / jwks}'")


def _fetchable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _keys(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    models = (*mapping_at(content, "models"), *aliases_of(mapping_at(content, "models")))
    seen: dict[tuple[str, str], KeyPath] = {}
    for index, key in enumerate(list_at(content, "keys")):
        if not isinstance(key, dict):
            continue
        for what, message in (("id", "two keys have this id"), ("sha256", "two keys have this hash")):
            path: KeyPath = ("keys", index, what)
            value = key.get(what)
            if isinstance(value, str) and (first := seen.setdefault((what, value.lower()), path)) != path:
                yield Diagnostic(path, f"{message}; each needs its own", first)
        for position, pattern in enumerate(list_at(key, "models")):
            # A pattern may match models that are added later; a plain name that matches none is a mistake.
            if isinstance(pattern, str) and not is_pattern(pattern) and pattern not in models:
                yield Diagnostic(
                    ("keys", index, "models", position),
                    f"no model is named '{pattern}'{suggestion(pattern, models)}",
                )


def _launches(content: Mapping[str, Any], folder: Path | None) -> Iterator[Diagnostic]:
    ports: dict[int, KeyPath] = {}
    for name, backend in _launched(content):
        url = urlsplit(backend.base_url)
        path: KeyPath = ("backends", name, "base_url")
        if url.scheme != "http" or not _loopback(url.hostname or ""):
            message = "with 'launch: true' the engine runs on this machine; write http://127.0.0.1:PORT"
            yield Diagnostic(path, message)
        port = url.port or 80
        if (first := ports.setdefault(port, path)) != path:
            yield Diagnostic(path, f"two launched engines have port {port}; give each its own", first)
        options = [argument.partition("=")[0] for argument in backend.args]
        for index, option in enumerate(options):
            if option in _RESERVED_OPTIONS:
                message = f"'{option}' is set by '{_RESERVED_OPTIONS[option]}'; write it there"
                yield Diagnostic(("backends", name, "args", index), message)
        if folder is not None and (why := start_error(backend)):
            yield Diagnostic(("backends", name, *_faulty_key(why, options, content["backends"][name])), why)


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


def _embedders(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """``matryoshka`` is not set for the built-in embedder, which does not support it."""
    if mapping_at(content, "sidecar").get("embedder", "builtin") != "builtin":
        return
    for name, backend in mapping_at(content, "backends").items():
        if (
            isinstance(backend, dict)
            and backend.get("kind") == "sidecar"
            and backend.get("matryoshka") is True
        ):
            message = (
                "the built-in all-MiniLM-L6-v2 cannot be truncated; name another model in sidecar.embedder"
            )
            yield Diagnostic(("backends", name, "matryoshka"), message)


def _prices(content: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """A price that matches no target is a mistake: the target that was meant would have none."""
    names: dict[str, None] = {}
    for model in mapping_at(content, "models").values():
        for target in list_at(model, "targets"):
            if isinstance(target, dict) and "backend" in target and "model" in target:
                backend, name = target["backend"], target["model"]
                names |= dict.fromkeys((str(name), f"{backend}/{name}", f"{backend}/*"))
    if not names:
        return
    for name in mapping_at(content, "prices"):
        if name not in names:
            known = [one for one in names if not one.endswith("/*")]
            message = f"no target has this model{suggestion(str(name), known)}"
            yield Diagnostic(("prices", name), message)


def _loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
