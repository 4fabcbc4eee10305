"""The adapters that clients may ask for by name, and vLLM's two paths that load and unload them
(https://docs.vllm.ai/en/latest/features/lora.html).

A name can be used again for another adapter. The engine therefore knows each by a key that is used once, and cached
prefixes of the old one are not taken for the new one's.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from engine.client import EngineClient
from engine.errors import InvalidRequest, ModelNotFound, StartupError
from engine.server.requests import StrictBody, read

_NAME = re.compile(r"[\w.:/@-]+")
"""``#`` is reserved for keys."""


class UnloadBody(StrictBody):
    lora_name: Annotated[str, Field(min_length=1, max_length=200)]

    def check(self) -> None:
        if not _NAME.fullmatch(self.lora_name):
            raise InvalidRequest(
                "'lora_name' may have letters, digits and . : / @ - _ only.", param="lora_name"
            )


class LoadBody(UnloadBody):
    lora_path: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Served:
    """An adapter that requests can use."""

    name: str
    key: str
    folder: Path
    created: int = field(default_factory=lambda: int(time.time()))


def name_of(key: str) -> str:
    """The name that an adapter of this key was loaded by."""
    return key.partition("#")[0]


class Adapters:
    """By name. ``base`` is the base model's."""

    def __init__(
        self,
        client: EngineClient,
        base: str,
        started: Sequence[tuple[str, Path]] = (),
        also: Collection[str] | None = (),
    ) -> None:
        """``started``: those that the engine has loaded already. ``also``: further names of the base model; ``None``:
        whatever is no adapter's. Raises ``StartupError`` for an invalid or duplicate
        name."""
        self._client = client
        self._base = base
        self._also = also
        self._served: dict[str, Served] = {}
        self._numbers = itertools.count(1)
        self._loading: set[str] = set()
        for name, folder in started:
            if not _NAME.fullmatch(name) or name == base or name in self._served:
                raise StartupError(f"--adapter {name}: the name is taken or cannot be one. Choose another.")
            self._served[name] = Served(name, name, folder)

    def list(self) -> list[Served]:
        return list(self._served.values())

    def find(self, name: str) -> Served | None:
        return self._served.get(name)

    def key(self, model: str) -> str | None:
        """The adapter of a request for ``model``; ``None`` for the base model. Raises ``ModelNotFound``."""
        if model == self._base:
            return None
        if model not in self._served:
            if self._also is None or model in self._also:
                return None
            names = ", ".join(f"'{name}'" for name in (self._base, *self._served))
            verb = "do" if self._served else "does"
            raise ModelNotFound(f"The model '{model}' does not exist here; {names} {verb}.", param="model")
        return self._served[model].key

    async def load(self, data: bytes) -> str:
        """``LoadBody`` as JSON → the response. Raises ``EngineError``."""
        body = read(LoadBody, data)
        name, folder = body.lora_name, Path(body.lora_path)
        if name == self._base or name in self._served or name in self._loading:
            raise InvalidRequest(
                f"The name '{name}' is taken: unload what has it, or choose another.", param="lora_name"
            )
        key = f"{name}#{next(self._numbers)}"
        self._loading.add(name)
        try:
            await self._client.load_adapter(key, folder)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param="lora_path") from error
        finally:
            self._loading.remove(name)
        self._served[name] = Served(name, key, folder)
        return f"Success: LoRA adapter '{name}' added successfully."

    async def unload(self, data: bytes) -> str:
        """``UnloadBody`` as JSON → the response, when the last request that uses it has ended.

        New requests no longer find it from the first moment. Raises ``EngineError``.
        """
        name = read(UnloadBody, data).lora_name
        served = self._served.pop(name, None)
        if served is None:
            raise ModelNotFound(f"There is no adapter '{name}' here.", param="lora_name")
        await self._client.unload_adapter(served.key)
        return f"Success: LoRA adapter '{name}' removed successfully."
