"""One model of the sidecar's: that it is loading, ready, or could not be loaded, and why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from gateway import packages
from gateway.sidecar.api import SidecarBusy, SidecarDown, SidecarError, SidecarLoading

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_PACKAGES = 2.0
"""Seconds between two checks whether missing packages have been installed,"""
_RETRY_ENGINE = 1.0
"""and whether a model's engine is there."""


class ModelHandle(Generic[T]):
    """A model that is loading, is ready, or could not be loaded."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = "loading"
        self._value: T | None = None

    def fill(self, value: T) -> None:
        self._value = value
        self.state = "ready"

    def fail(self, why: str) -> None:
        self.state = f"failed: {why}"

    def get(self) -> T:
        """Raises ``SidecarLoading``."""
        if self._value is None:
            what = "is still being loaded" if self.state == "loading" else self.state
            raise SidecarLoading(f"'{self.name}' {what}")
        return self._value


async def fill(
    slot: ModelHandle[T], needed: tuple[str, ...], load: Callable[[], T], *, turn: asyncio.Lock
) -> None:
    """Load ``slot``'s model once its packages are there; ``turn`` is held meanwhile. What fails is in its state."""
    while absent := packages.missing(needed):
        slot.fail(f"{', '.join(absent)} not installed; {packages.no_guards()}")
        await asyncio.sleep(_RETRY_PACKAGES)
    while not await _filled(slot, load, turn):  # noqa: ASYNC110  (nobody tells when an engine is there)
        await asyncio.sleep(_RETRY_ENGINE)


async def _filled(slot: ModelHandle[T], load: Callable[[], T], turn: asyncio.Lock) -> bool:
    """Whether that is all: what runs elsewhere may come yet."""
    async with turn:
        try:
            slot.fill(await asyncio.to_thread(load))
            return True
        except (SidecarDown, SidecarBusy) as error:
            slot.fail(str(error))
            return False
        except ImportError as error:
            slot.fail(f"{error}; {packages.no_guards()}")
        except Exception as error:  # third-party models raise anything
            slot.fail(str(error).strip().partition("\n")[0] or type(error).__name__)
    log.error("'%s' cannot be used: %s", slot.name, slot.state.removeprefix("failed: "))
    return True


def required(slot: ModelHandle[T] | None, what: str) -> ModelHandle[T]:
    if slot is None:
        raise SidecarError(f"this sidecar was started without {what}, as the policy did not need one")
    return slot


@contextmanager
def naming(model: str) -> Iterator[None]:
    """Name the model in the libraries' errors, which often leave it out."""
    if model.startswith(("/", "./", "../", "~")) and not Path(model).is_dir():
        raise ValueError(f"there is no folder '{model}'")
    try:
        yield
    except (OSError, ValueError) as error:
        message = str(error)
        raise ValueError(
            message if model in message.partition("\n")[0] else f"'{model}': {message}"
        ) from error
