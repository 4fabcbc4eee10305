"""One attack, and what came of it."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from benchmarks.attacks.frame.rig import Rig
from benchmarks.attacks.frame.verdict import Skipped, Succeeded

TIME_LIMIT = 180.0
"""Seconds after which an attack counts as one that could not be run: each says itself what is too slow."""

Verdict = Literal["held", "SUCCEEDED", "BROKEN", "skipped"]


@dataclass(frozen=True, slots=True)
class Outcome:
    attack: Attack
    verdict: Verdict
    """BROKEN is an attack that failed by itself, so that nothing is known."""
    happened: str
    seconds: float

    @property
    def is_bad(self) -> bool:
        return self.verdict in ("SUCCEEDED", "BROKEN")


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    point: str
    """Which fault it belongs to: a letter for the kind, and a number."""
    tried: str
    holds: str
    run: Callable[[Rig], Awaitable[str]]

    @classmethod
    def of(cls, module: ModuleType) -> Attack:
        """Raises ``AttributeError`` for a file that lacks one of the names."""
        name = module.__name__.rpartition(".")[2]
        return cls(name, module.POINT, module.TRIED, module.HOLDS, module.attack)

    async def outcome(self, time_limit: float = TIME_LIMIT) -> Outcome:
        """Try it once, on a rig of its own."""
        began = time.monotonic()
        verdict: Verdict
        try:
            async with asyncio.timeout(time_limit), Rig() as rig:
                verdict, happened = "held", await self.run(rig)
        except Succeeded as success:
            verdict, happened = "SUCCEEDED", str(success)
        except Skipped as skipped:
            verdict, happened = "skipped", str(skipped)
        except Exception as error:
            traceback.print_exception(error)
            verdict, happened = "BROKEN", f"{type(error).__name__}: {error}".partition("\n")[0]
        return Outcome(self, verdict, happened, time.monotonic() - began)


def found(package: ModuleType) -> Iterator[Attack]:
    """The attacks of a package, in the order of their points."""
    names = [info.name for info in pkgutil.iter_modules(package.__path__) if not info.ispkg]
    modules = [
        importlib.import_module(f"{package.__name__}.{name}") for name in names if not name.startswith("_")
    ]
    yield from sorted(map(Attack.of, modules), key=lambda one: (_order(one.point), one.name))


def _order(point: str) -> tuple[str, int]:
    letter, _, number = point.partition(".")
    return letter, int(number)
