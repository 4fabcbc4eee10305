"""What servers hold of a request's prompt: their events, or their digest, and the ids of its tokens, put together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx

from gateway import packages
from gateway.held_prefixes.block_keys import keys_of
from gateway.held_prefixes.digests import Digests
from gateway.held_prefixes.prompt_tokens import PATIENCE, PromptTokens
from gateway.held_prefixes.subscriber import Figures, Subscriber
from gateway.held_prefixes.table_reader import TableReader, places_of
from gateway.held_prefixes.watched import Group, groups_of, publishers_of
from gateway.policy.members import Members
from gateway.policy.schema import Policy, Sharing
from gateway.prefix_sharing import block_salt, sharing
from gateway.types import Call, ChatRequest

log = logging.getLogger(__name__)

FILE = "held-prefixes"
MOST_TOKENS = 2**16
"""Of a prompt; what follows is not looked up: it would hold up the event loop for longer than 5 ms."""


class Told(NamedTuple):
    tokens: int
    """Of the prompt."""
    held: Mapping[str, int]
    """By replica, for those that tell: 0 is told, too."""


class _Prompt:
    __slots__ = ("_ids", "_keys", "_system", "tokens")

    def __init__(self, ids: bytes, system: int) -> None:
        """``system``: tokens of its system prompt, where tenants share that."""
        self.tokens = len(ids) // 4
        self._ids = ids[: 4 * MOST_TOKENS]
        self._system = system
        self._keys: dict[tuple[int, str, bytes], list[int]] = {}

    def keys(self, size: int, adapter: str, salt: bytes) -> list[int]:
        """Of its blocks; replicas are looked at more than once."""
        wanted = (size, adapter, salt)
        found = self._keys.get(wanted)
        if found is None:
            found = self._keys[wanted] = keys_of(self._ids, size, adapter, salt, self._system)
        return found


class HeldPrefixes:
    """One per worker; it outlives policies. The first worker follows the events for all."""

    def __init__(
        self, folder: Path | None, transport: Callable[[], httpx.AsyncBaseTransport], *, worker: int = 1
    ) -> None:
        """``folder``: where workers share the table; None: there are no others."""
        self.digests = Digests()
        self.prompts: PromptTokens | None = None
        self._transport = transport
        self._folder = folder
        self._own: TemporaryDirectory[str] | None = None
        self._first = worker == 1
        self._groups: Mapping[str, tuple[Group, ...]] = {}
        self._subscriber: Subscriber | None = None
        self._reader: TableReader | None = None
        self._looked: dict[int, tuple[ChatRequest, Mapping[str, _Prompt]]] = {}
        """Of requests on their way, by identity: the ids, by model."""
        self._unsaid = True

    @property
    def used(self) -> bool:
        """Whether any model has a use for it."""
        return bool(self._groups)

    @property
    def figures(self) -> Mapping[str, Figures]:
        """By publisher; of the first worker alone."""
        return self._subscriber.figures if self._subscriber is not None else {}

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Of questions for token ids, how many ended so."""
        return self.prompts.outcomes if self.prompts is not None else {}

    @property
    def age(self) -> float | None:
        """Seconds since the table was last said to be kept; None where there is none."""
        return self._reader.age if self._reader is not None else None

    async def update(self, policy: Policy, members: Members, *, among: Collection[str] | None = None) -> None:
        """``policy`` has its replicas as backends. ``among``: the backends of targets that count; None: all."""
        self._groups = groups_of(policy, members, among)
        self.digests.keep({name for its in self._groups.values() for one in its for name in one.names})
        if self._groups and self.prompts is None:
            self.prompts = PromptTokens(self._transport(), patience=PATIENCE)
        publishers = publishers_of(policy, self._groups)
        if publishers and packages.missing(packages.KV_EVENTS):
            if self._unsaid:
                log.error("KV events are not followed: %s", packages.no_kv_events())
            self._unsaid, publishers = False, {}
        if publishers:
            path = self._path()
            self._reader = self._reader or TableReader(path)
            if self._first:
                self._subscriber = self._subscriber or Subscriber(path)
                self._subscriber.follow(publishers)
                self._subscriber.start()
        else:
            await self._stop()

    def tells(self, model: str, request: ChatRequest) -> bool:
        """Whether ``request`` to ``model`` is to be looked up."""
        return model in self._groups and request.generates

    async def look(self, call: Call) -> None:
        """Find out the ids of its prompt, until ``done``: within ``PATIENCE`` seconds, however many are to be asked.
        Raises nothing of its own."""
        found: dict[str, _Prompt] = {}
        until = asyncio.get_running_loop().time() + PATIENCE
        owner = "" if _shared(call) == "all" else call.principal.tenant
        if self.prompts is not None:
            for group in self._groups.get(call.model, ()):
                if group.model not in found:
                    ids = await self.prompts.of(
                        call.request, group.model, group.servers, until=until, owner=owner
                    )
                    if ids is not None:
                        system = 0
                        if not group.lines and _shared(call) == "system":
                            system = await self.prompts.of_beginning(
                                call.request, group.model, group.servers, ids, until=until
                            )
                        found[group.model] = _Prompt(ids, system)
        if found:
            self._looked[id(call.request)] = call.request, found

    def done(self, request: ChatRequest) -> None:
        self._looked.pop(id(request), None)

    def of(self, call: Call, replicas: Sequence[str]) -> Told | None:
        """None where it is not known what the prompt's tokens are, or what anybody holds."""
        looked = self._looked.get(id(call.request))
        if looked is None:
            return None
        held: dict[str, int] = {}
        tokens = 0
        wanted = set(replicas)
        for group in self._groups.get(call.model, ()):
            prompt = looked[1].get(group.model)
            if prompt is not None:
                tokens = max(tokens, prompt.tokens)
                names = [name for name in group.names if name in wanted]
                held |= (
                    self._by_events(call, group, prompt, names)
                    if group.lines
                    else self._by_digests(call, group, prompt, names)
                )
        return Told(tokens, held) if held else None

    async def aclose(self) -> None:
        await self._stop()
        if self.prompts is not None:
            await self.prompts.aclose()
        if self._own is not None:
            with suppress(OSError):
                self._own.cleanup()

    def _by_events(self, call: Call, group: Group, prompt: _Prompt, names: Sequence[str]) -> dict[str, int]:
        reader = self._reader
        if reader is None:
            return {}
        listed = reader.replicas()
        replica_of = {line: name for name in names for line in group.lines[name]}
        places = places_of(listed, list(replica_of))
        adapter = group.model if places and reader.knows(group.model) else ""
        salt = event_salt(call, _shared(call)).encode()
        held: dict[str, int] = {}
        for size in {listed.block_sizes[place] for place in places}:
            its = {place: line for place, line in places.items() if listed.block_sizes[place] == size}
            counts = reader.in_a_row(prompt.keys(size, adapter, salt), its)
            for place, line in its.items():
                name = replica_of[line]
                held[name] = max(held.get(name, 0), counts.get(place, 0) * size)
        return held

    def _by_digests(self, call: Call, group: Group, prompt: _Prompt, names: Sequence[str]) -> dict[str, int]:
        sizes = {name: size for name in names if (size := self.digests.block_size(name)) is not None}
        salt = block_salt(call.principal.tenant, _shared(call), _own_salt(call.request))
        held: dict[str, int] = {}
        for size in set(sizes.values()):
            its = [name for name in names if sizes.get(name) == size]
            # An adapter's blocks have its name in their keys; whether the model is one, only they can tell.
            for adapter in ("", group.model):
                keys = prompt.keys(size, adapter, salt)
                held |= {name: max(held.get(name, 0), self.digests.held(name, keys)) for name in its}
        return held

    async def _stop(self) -> None:
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            await asyncio.to_thread(subscriber.close)
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _path(self) -> Path:
        if self._folder is None:
            self._own = self._own or TemporaryDirectory(prefix="tollgate-held-")
            return Path(self._own.name) / FILE
        return self._folder / FILE


def salt_of(call: Call) -> str:
    """The ``cache_salt`` with which ``call`` is sent to a server with KV events."""
    model = call.candidate.model if call.candidate is not None else call.model
    return event_salt(call, sharing(call.policy, model, call.request))


def event_salt(call: Call, shared: Sharing) -> str:
    """The ``cache_salt`` that servers with KV events are sent, so that tenants do not find each other's blocks.

    These know one salt from the first block on: of a system prompt alone nothing can be shared.
    """
    return block_salt(
        call.principal.tenant, "all" if shared == "all" else "none", _own_salt(call.request)
    ).hex()


def _shared(call: Call) -> Sharing:
    """By the call's own policy, as what it is sent with: the one in force may be another by now, without its model."""
    return sharing(call.policy, call.model, call.request)


def _own_salt(request: ChatRequest) -> str:
    own = request.params.get("cache_salt")
    return own if isinstance(own, str) else ""
