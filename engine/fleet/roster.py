"""Which models an engine has, and what may become of each: ``models.yaml`` and flags, read once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from engine.config import parse_bytes
from engine.errors import StartupError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_OFF = float("inf")
_OWN = ("--host", "--port", "--model", "--models", "--served-model-name", "--uds", "--any-model-name")
"""Flags of the whole, or that follow from a model's entry."""
LEVELS = {0: "unload", 1: "keep the process, give the weights back to the page cache", 2: "drop the weights"}


@dataclass(frozen=True, slots=True)
class Terms:
    """When a model that nobody asks gives its memory back."""

    pinned: bool = False
    """Loaded at the start and never put out, neither for others nor because nobody asks."""
    min: int = 0
    """1: loaded at the start, and while nobody asks; others may still displace it."""
    sleep_after: float = 300.0
    """Seconds without a request after which it sleeps; infinite: never."""
    sleep_level: int = 1
    """What sleeping is: see ``LEVELS``."""
    unload_after: float = 3600.0
    """Seconds without a request after which its processes end."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    name: str
    """In the API."""
    model: str
    """As ``--model`` has it."""
    terms: Terms = Terms()
    args: tuple[str, ...] = ()
    """Further flags of its process."""


@dataclass(frozen=True, slots=True)
class Roster:
    """All models, in the order in which they were given."""

    models: tuple[ModelEntry, ...]
    memory: int | None = None
    """Bytes that all processes may take together; ``None``: most of what is free."""
    max_load_wait: float = 120.0
    """Seconds: a request that would wait longer for its model is refused at once."""

    def __post_init__(self) -> None:
        if not self.models:
            raise StartupError("There is no model to serve: give --model, or entries under 'models'.")
        seen: set[str] = set()
        for entry in self.models:
            if entry.name in seen:
                raise StartupError(f"Two models are called '{entry.name}': give one of them another name.")
            seen.add(entry.name)


@dataclass(frozen=True, slots=True)
class FleetConfig:
    roster: Roster
    host: str = "127.0.0.1"
    port: int = 8100
    share_port: bool = False
    """As of one model: see ``ServerConfig``."""
    standby_port: int | None = None
    any_model_name: bool = False
    max_body_bytes: int = 8 * 2**20
    drain_timeout: float = 30.0
    write_timeout: float = 30.0


def read_roster(
    file: Path | None,
    models: Sequence[str] = (),
    *,
    pinned: Sequence[str] = (),
    shared: Sequence[str] = (),
    **given: Any,
) -> Roster:
    """``models`` are those of ``--model``, ``pinned`` names of ``--pin``, ``shared`` flags of every model's process.
    ``given`` are flags' values by the names of ``Terms`` and ``Roster``; a model's own entry goes before them.

    Raises ``StartupError``, which names file and key.
    """
    top = _load(file) if file is not None else {}
    where = str(file)
    terms_given = {key: value for key, value in given.items() if key in _TERMS}
    defaults = {**_terms(where, top), **terms_given}
    entries = [
        ModelEntry(_name_of(model), model, Terms(**defaults), _member_args("--model", shared))
        for model in models
    ]
    listed = top.get("models", {})
    if not isinstance(listed, Mapping):
        raise StartupError(
            f"{where}: 'models' must map names to models, such as 'small: {{model: /models/a.gguf}}'."
        )
    for name, entry in listed.items():
        entries.append(_entry(where, str(name), entry, defaults, shared))
    unknown = top.keys() - {"models", "memory", "max_load_wait", *_TERMS}
    if unknown:
        raise StartupError(
            f"{where}: '{sorted(map(str, unknown))[0]}' is not a key here; there are models, memory, max_load_wait, "
            f"{', '.join(_TERMS)}."
        )
    if wrong := set(pinned) - {entry.name for entry in entries}:
        raise StartupError(
            f"--pin {sorted(wrong)[0]}: no model is called that; there are "
            f"{', '.join(entry.name for entry in entries)}."
        )
    memory = given.get("memory", top.get("memory"))
    return Roster(
        tuple(
            ModelEntry(one.name, one.model, _pinned(one.terms), one.args) if one.name in pinned else one
            for one in entries
        ),
        memory=None if memory is None else _bytes(f"{where}: memory", memory),
        max_load_wait=_seconds(
            f"{where}: max_load_wait", given.get("max_load_wait", top.get("max_load_wait", 120.0))
        ),
    )


_TERMS = tuple(field.name for field in fields(Terms))


def _load(file: Path) -> Mapping[str, Any]:
    import yaml  # a tenth of a second, which an engine of one model does without

    try:
        found = yaml.safe_load(file.read_text())
    except OSError as error:
        raise StartupError(f"{file} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise StartupError(f"{file}{line}: this is no YAML: {getattr(error, 'problem', error)}.") from None
    if not isinstance(found, Mapping) or "models" not in found:
        raise StartupError(
            f"{file} must have a key 'models' that maps names to models, such as 'small: {{model: /models/a.gguf}}'."
        )
    return found


def _entry(
    where: str, name: str, entry: object, defaults: Mapping[str, Any], shared: Sequence[str]
) -> ModelEntry:
    where = f"{where}: models.{name}"
    if not _NAME.fullmatch(name):
        raise StartupError(f"{where}: a name has letters, digits and . _ : / @ + -, 128 at most.")
    if isinstance(entry, str):
        entry = {"model": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("model"), str) or not entry["model"]:
        raise StartupError(
            f"{where} needs 'model': a folder, a .gguf file, s3://BUCKET/PREFIX, a hub id or 'demo'."
        )
    if unknown := entry.keys() - {"model", "args", *_TERMS}:
        raise StartupError(
            f"{where}: '{sorted(map(str, unknown))[0]}' is not a key of a model; there are model, args, "
            f"{', '.join(_TERMS)}."
        )
    args = entry.get("args", ())
    if not isinstance(args, list | tuple) or not all(isinstance(arg, str) for arg in args):
        raise StartupError(f"{where}.args must be a list of flags, such as [--max-model-len=4096].")
    return ModelEntry(
        name,
        entry["model"],
        Terms(**{**defaults, **_terms(where, entry)}),
        _member_args(f"{where}.args", (*shared, *args)),
    )


def _terms(where: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """What is there of ``Terms``, checked."""
    terms: dict[str, Any] = {}
    for key in ("sleep_after", "unload_after"):
        if key in found:
            terms[key] = _seconds(f"{where}.{key}", found[key])
    if "pinned" in found:
        if not isinstance(found["pinned"], bool):
            raise StartupError(f"{where}.pinned must be true or false, not {found['pinned']!r}.")
        terms["pinned"] = found["pinned"]
    for key, allowed in (("min", (0, 1)), ("sleep_level", tuple(LEVELS))):
        if key in found:
            value = found[key]
            if isinstance(value, bool) or value not in allowed:
                raise StartupError(
                    f"{where}.{key} must be one of {', '.join(map(str, allowed))}, not {value!r}."
                )
            terms[key] = value
    return terms


def _pinned(terms: Terms) -> Terms:
    return Terms(True, terms.min, terms.sleep_after, terms.sleep_level, terms.unload_after)


def _member_args(where: str, args: Sequence[str]) -> tuple[str, ...]:
    for arg in args:
        if arg.partition("=")[0] in _OWN:
            raise StartupError(
                f"{where}: {arg.partition('=')[0]} is not a model's own; it follows from its entry, or is a flag of "
                "the whole engine."
            )
    return tuple(args)


def _name_of(model: str) -> str:
    path = Path(model.rstrip("/"))
    return path.name.removesuffix(".gguf") if "://" in model or path.exists() else model


def seconds(text: str) -> float:
    """``"90"``, ``"90s"``, ``"5m"``, ``"1h"``, or ``"off"`` (infinite). Raises ``ValueError``."""
    text = text.strip().lower()
    if text in ("off", "never"):
        return _OFF
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text)
    if found is None:
        raise ValueError(f"{text!r} is not a time such as 90s, 5m, 1h or off")
    return float(found[1]) * _SECONDS[found[2]]


def _seconds(where: str, value: object) -> float:
    # YAML reads a bare ``off`` as false.
    if value is False:
        return _OFF
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    try:
        if not isinstance(value, str):
            raise ValueError(f"{value!r} is not a time such as 90s, 5m, 1h or off")
        return seconds(value)
    except ValueError as error:
        raise StartupError(f"{where}: {error}.") from None


def _bytes(where: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    try:
        return parse_bytes(str(value))
    except ValueError as error:
        raise StartupError(f"{where}: {error}.") from None
