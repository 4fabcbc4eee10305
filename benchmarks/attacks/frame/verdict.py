"""How an attack says what came of it."""

from __future__ import annotations

from typing import NoReturn


class Succeeded(Exception):
    """The attack did harm; the message says which."""


class Skipped(Exception):
    """The attack cannot be tried on this machine; the message says why."""


def must(holds: bool, otherwise: str) -> None:
    """End the attack as one that succeeded unless ``holds``; ``otherwise`` is what happened then."""
    if not holds:
        raise Succeeded(otherwise)


def skip(why: str) -> NoReturn:
    raise Skipped(why)
