"""The adapters that clients may ask for by name.

A name can be used again for another adapter. The engine therefore knows each by a key that is used once, and cached
prefixes of the old one are not taken for the new one's.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.client import EngineClient
from engine.errors import InvalidRequest, ModelNotFound, StartupError

_NAME = re.compile(r"[\w.:/@-]+")
"""``#`` is reserved for keys."""
_LONGEST_NAME = 200
_NAMED = 10
"""Models that an error names at most."""


@dataclass(frozen=True, slots=True)
class Served:
    """An adapter that requests can use."""

    name: str
    key: str
    folder: Path
    digest: str
    """Of its files: see ``engine/adapter_files.py``."""
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
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """``started``: those that the engine has loaded already, and the ``digests`` of their files. ``also``: further
        names of the base model; ``None``: whatever is no adapter's. Raises ``StartupError`` for an invalid or duplicate
        name."""
        self._client = client
        self._base = base
        self._also = also
        self._served: dict[str, Served] = {}
        self._numbers = itertools.count(1)
        self._changing: set[str] = set()
        self._leaving: list[Served] = []
        """Those that requests still use, though their names are gone."""
        digests = digests or {}
        for name, folder in started:
            if not _NAME.fullmatch(name) or name == base or name in self._served:
                raise StartupError(f"--adapter {name}: the name is taken or cannot be one. Choose another.")
            self._served[name] = Served(name, name, folder, digests.get(name, ""))

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
            known = [f"'{name}'" for name in (self._base, *self._served)]
            names = ", ".join(known[:_NAMED])
            if len(known) > _NAMED:
                names += f" and {len(known) - _NAMED} others"
            verb = "do" if self._served else "does"
            raise ModelNotFound(f"The model '{model}' does not exist here; {names} {verb}.", param="model")
        return self._served[model].key

    def check_name(self, name: str, *, param: str | None = None) -> None:
        """Raises ``InvalidRequest`` unless an adapter can have this name."""
        if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
            raise InvalidRequest(
                f"{_said(param)} may have {_LONGEST_NAME} letters, digits and . : / @ - _ only.", param=param
            )
        if name == self._base:
            raise InvalidRequest(f"The name '{name}' is taken: choose another.", param=param)

    async def load(self, name: str, folder: Path) -> Served:
        """Under a name that is free. Raises ``EngineError``."""
        self.check_name(name, param="lora_name")
        if name in self._served or name in self._changing:
            raise InvalidRequest(
                f"The name '{name}' is taken: unload what has it, or choose another.", param="lora_name"
            )
        try:
            served = await self._load(name, folder)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param="lora_path") from error
        self._served[name] = served
        return served

    async def put(self, name: str, folder: Path, digest: str) -> tuple[Served, Served | None]:
        """Also under a name that another has, whose requests end with that one: the caller drops it. New requests get
        the new one as soon as it is loaded. Returns what has the name now, and what had it. Raises ``EngineError``."""
        self.check_name(name)
        if name in self._changing:
            raise InvalidRequest(f"The adapter '{name}' is being loaded: try again when it is.")
        before = self._served.get(name)
        if before is not None and before.digest == digest:
            return before, before
        served = await self._load(name, folder)
        before = self._served.get(name)
        self._served[name] = served
        return served, before

    async def unload(self, name: str) -> Served:
        """Waits until the last request that uses it has ended; new ones no longer find it from the first moment.

        Raises ``EngineError``."""
        served = self._served.pop(name, None)
        if served is None:
            raise ModelNotFound(f"There is no adapter '{name}' here.", param="lora_name")
        await self.drop(served)
        return served

    async def drop(self, served: Served) -> None:
        """One that ``put`` replaced: as ``unload``."""
        self._leaving.append(served)
        try:
            await self._client.unload_adapter(served.key)
        finally:
            self._leaving.remove(served)

    def uses(self, folder: Path) -> bool:
        """Whether one is in it."""
        return any(served.folder == folder for served in (*self._served.values(), *self._leaving))

    async def _load(self, name: str, folder: Path) -> Served:
        key = f"{name}#{next(self._numbers)}"
        self._changing.add(name)
        try:
            digest = await self._client.load_adapter(key, folder)
        finally:
            self._changing.remove(name)
        return Served(name, key, folder, digest)


def _said(param: str | None) -> str:
    return f"'{param}'" if param else "An adapter's name"
