"""What the scripts for Python clients share: how features are told, and what they are asked with.

A script is run with ``TOLLGATE_URL`` (without ``/v1``), ``TOLLGATE_KEY`` and ``TOLLGATE_MODELS``, a list of
``{"model": …, "embedder": …}``. It tries each of its features with each model, and prints a line of JSON for each try.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

QUESTION = "Say hello in exactly 3 words."
WEATHER = "What is the weather in Paris? Use the tool."
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mP8/x8AAwMCAO+ip1sAAAAASUVORK5CYII="
"""A PNG of 68 bytes."""
SEEN = "A picture of 68 bytes."
SOUND = b"".join(
    (
        b"RIFF\x2c\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00",
        b"\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data\x08\x00\x00\x00",
        bytes(8),
    )
)
"""A WAV of four samples."""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
LONG = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 6000}},
    "required": ["text"],
    "additionalProperties": False,
}
"""An answer that takes a model long."""
SLOW = "/slow"
IMPATIENCE_S = 0.1

URL = os.environ["TOLLGATE_URL"]
KEY = os.environ["TOLLGATE_KEY"]


class Lacks(Exception):
    """The model answered, without what the feature is about."""


@dataclass(frozen=True)
class Asked:
    model: str
    embedder: str

    @property
    def busy(self) -> str:
        """A question that a scripted provider answers when it comes for the second time."""
        return f"/busy {uuid.uuid4().hex}"


Feature = Callable[[Asked], str | None]
FEATURES: dict[str, Feature] = {}


def feature(name: str) -> Callable[[Feature], Feature]:
    """Tell of a feature. Its function returns what the model said, where a scripted provider's words are known."""

    def add(run: Feature) -> Feature:
        FEATURES[name] = run
        return run

    return add


def same(wanted: object, found: object, what: str) -> None:
    if wanted != found:
        raise ValueError(f"{what}: {found!r}, not {wanted!r}")


def true(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(what)


def run(*packages: str) -> None:
    """Try all features with all models; ``packages`` are those whose versions count."""
    attempt({name: version(name) for name in packages})


def attempt(versions: dict[str, str]) -> None:
    tell(versions=versions)
    only = set(sys.argv[1:])
    for asked in json.loads(os.environ["TOLLGATE_MODELS"]):
        for name, tried in FEATURES.items():
            if only and name not in only:
                continue
            began = time.monotonic()
            told = {"model": asked["model"], "feature": name}
            try:
                tell(**told, ok=True, said=tried(Asked(**asked)), seconds=round(time.monotonic() - began, 3))
            except Lacks as lack:
                tell(**told, ok=False, lacks=str(lack))
            except Exception as error:  # whatever a client raises is what this is about
                took = round(time.monotonic() - began, 3)
                why = f"{type(error).__name__}: {error}"
                tell(**told, ok=False, status=status(error), error=why, seconds=took)


def status(error: BaseException | None) -> int | None:
    """The HTTP status that a client's error tells of; libraries wrap those of others."""
    while error is not None:
        for name in ("status_code", "code"):
            if isinstance(found := getattr(error, name, None), int):
                return found
        error = error.__cause__
    return None


def tell(**line: object) -> None:
    print(json.dumps(line), flush=True)
