"""The flags of an engine of several models, and what is left of a command line for each model's process."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.config import parse_bytes
from engine.errors import StartupError
from engine.fleet.roster import LEVELS, FleetConfig, read_roster, seconds

OF_FLEET = ("models", "pin", "memory", "min", "sleep_after", "sleep_level", "unload_after", "max_load_wait")
"""Flags, as parsed, each of which makes an engine of several models."""
_OF_ALL = (
    "host",
    "port",
    "share_port",
    "standby_port",
    "any_model_name",
    "max_body_bytes",
    "drain_timeout",
    "write_timeout",
)
"""Flags of the process in front of the models."""
_OF_ONE = {"handover_address": "--handover-address", "nodes": "--nodes"}
"""Addresses, which no two models can have."""


def add_fleet(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--models",
        type=Path,
        metavar="FILE",
        help="serve the models that a YAML file lists, beside those of --model",
    )
    add(
        "--memory",
        type=_checked(parse_bytes),
        metavar="SIZE",
        help="what the processes of several models may take together, such as 12GiB (default: most of what is free)",
    )
    add(
        "--pin",
        action="append",
        metavar="NAME",
        help="of several models, one that stays loaded; may be given several times",
    )
    add(
        "--min",
        type=int,
        choices=[0, 1],
        help="1: models are loaded at the start, and while nobody asks for them (default: 0)",
    )
    add(
        "--sleep-after",
        type=_checked(seconds),
        metavar="TIME",
        help="how long nobody asks for a model before it sleeps: 90s, 5m, off (default: 5m)",
    )
    add(
        "--sleep-level",
        type=int,
        choices=list(LEVELS),
        help="0: it is unloaded instead; 1: its weights go back to the page cache; 2: they are dropped (default: 1)",
    )
    add(
        "--unload-after",
        type=_checked(seconds),
        metavar="TIME",
        help="how long nobody asks for a model before its processes end (default: 1h)",
    )
    add(
        "--max-load-wait",
        type=_checked(seconds),
        metavar="TIME",
        help="a request that would wait longer for its model gets a 503 at once (default: 2m)",
    )


def is_fleet(options: Mapping[str, Any]) -> bool:
    models = options.get("model", ())
    return len(models) > 1 or any(map(_is_file, models)) or any(name in options for name in OF_FLEET)


def _is_file(model: str) -> bool:
    """Whether ``--model`` has a file of models: so a policy's backend names one by its key ``model``."""
    return model.endswith((".yaml", ".yml"))


def read_fleet(options: Mapping[str, Any], arguments: Sequence[str]) -> FleetConfig:
    """``options`` as parsed from ``arguments``, those behind ``serve``. Raises ``StartupError``."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    add_fleet(own)
    for flag in (
        "--model",
        "--host",
        "--port",
        "--standby-port",
        "--max-body-bytes",
        "--drain-timeout",
        "--write-timeout",
    ):
        own.add_argument(flag, action="append")
    own.add_argument("--any-model-name", action="store_true")
    own.add_argument("--share-port", action="store_true")
    own.add_argument("--check", action="store_true")
    for name, flag in _OF_ONE.items():
        if name in options:
            raise StartupError(
                f"{flag} is one model's, not for each of several: give it in that model's args."
            )
    _, shared = own.parse_known_args(list(arguments))
    given = {name: options[name] for name in OF_FLEET if name in options and name not in ("models", "pin")}
    models = [model for model in options.get("model", ()) if not _is_file(model)]
    files = [Path(model) for model in options.get("model", ()) if _is_file(model)]
    files += [options["models"]] if "models" in options else []
    if len(files) > 1:
        raise StartupError(f"There are {len(files)} files of models, {', '.join(map(str, files))}: give one.")
    file = files[0] if files else None
    roster = read_roster(file, models, pinned=options.get("pin", ()), shared=shared, **given)
    return FleetConfig(roster, **{name: options[name] for name in _OF_ALL if options.get(name) is not None})


def _checked(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked
