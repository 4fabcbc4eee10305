"""What the keeper knows of one model: where it is, what it takes, who waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from engine.errors import EngineDied, EngineError
from engine.fleet.member import Member
from engine.fleet.roster import ModelEntry

SURVIVES = 1
"""Failed loads, and deaths before anything was answered, that a request lives through."""
_GUESSED_SPEED = 400e6
"""Bytes a second, and"""
_GUESSED_IMPORTS = 3.0
"""seconds before them, by which a load is guessed that was never measured."""


class State(Enum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    SLEEPING = "sleeping"
    WAKING = "waking"
    LEAVING = "leaving"
    """It is being put to sleep, or its processes end."""


class Ticket:
    """One request's place at its model: it waits, is granted, and ends."""

    def __init__(self, model: Model, arrived: float, deadline: float | None) -> None:
        """Both as ``time.monotonic()`` has it."""
        self.model = model
        self.arrived = arrived
        self.deadline = deadline
        self.failures = 0
        """Loads that have failed while it waited, and deaths while it was served."""
        self.cold = False
        """Whether it had to wait for its model."""
        self.member: Member | None = None
        self.generation = 0
        """Of the model's processes that serve it."""
        self._changed: asyncio.Future[None] | None = None
        self.error: EngineError | None = None

    async def change(self, within: float) -> None:
        """Waits until it is granted or refused, ``within`` seconds at most."""
        if self.member is not None or self.error is not None:
            return
        self._changed = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._changed], timeout=within)

    def grant(self, member: Member, generation: int) -> None:
        self.member, self.generation = member, generation
        self._wake()

    def refuse(self, error: EngineError) -> None:
        self.error = error
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


@dataclass(eq=False)
class Model:
    entry: ModelEntry
    need: int
    """Bytes that it takes loaded, its KV cache filled: predicted, then measured."""
    state: State = State.UNLOADED
    member: Member | None = None
    generation: int = 0
    """How often its processes were started. A death is told from the next by it."""
    loads: int = 0
    """How often it became loaded, from wherever."""
    deaths: int = 0
    death: tuple[int, EngineDied] | None = None
    """The last one that ended answers: of which ``generation``, and the error of all of them."""
    failed_loads: int = 0
    """In a row."""
    retry_at: float = 0.0
    """``time.monotonic()`` before which it is not loaded again, after a load that failed."""
    last_error: str = ""
    held: int = 0
    """Bytes of its processes, as last measured."""
    in_flight: int = 0
    waiting: list[Ticket] = field(default_factory=list)
    """The first first."""
    last_used: float = 0.0
    loaded_at: float = 0.0
    yielding: bool = False
    """Others wait for its memory, and its turn is over: what comes now waits for its next one."""
    ordered: int = 0
    """An operator's orders that it leaves, not yet carried out: what comes now waits until they are."""
    asleep_bytes: int | None = None
    """That it takes asleep, as far as is known."""
    max_model_len: int | None = None
    """Of its longest context; ``None``: it was never loaded."""
    stopped: bool = False
    """By an operator's order: unloaded, and not loaded while nobody asks, whatever ``min`` says."""
    seconds: dict[str, float] = field(default_factory=dict)
    """That loads took, by how: ``cold``, ``waking``."""

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def grants(self) -> bool:
        return self.state is State.LOADED and self.member is not None and not (self.yielding or self.ordered)

    @property
    def counted(self) -> int:
        """Bytes of the budget that it counts with."""
        if self.state is State.UNLOADED:
            return self.held
        if self.state is State.SLEEPING:
            return self.held
        return max(self.need, self.held)

    @property
    def expected_load(self) -> float:
        """Seconds that it takes from where it is until it serves."""
        if self.state is State.LOADED:
            return 0.0
        how = "waking" if self.state in (State.SLEEPING, State.WAKING) else "cold"
        return self.seconds.get(how, self.need / _GUESSED_SPEED + _GUESSED_IMPORTS)

    def grant(self, ticket: Ticket, now: float) -> None:
        """``now``: a ``time.monotonic()``. The model is loaded."""
        if self.member is None:
            raise ValueError(f"{self.name} has no process")
        self.in_flight += 1
        self.last_used = now
        ticket.grant(self.member, self.generation)

    def refuse(self, error: EngineError) -> None:
        """Those who wait for it."""
        waiting, self.waiting = self.waiting, []
        for ticket in waiting:
            ticket.refuse(error)

    def took(self, how: str, seconds: float) -> None:
        before = self.seconds.get(how)
        self.seconds[how] = seconds if before is None else before + 0.5 * (seconds - before)
