"""``select: score``: the replica that is expected to begin its answer first, at the least cost to those that follow.

Of each request two replicas are drawn, and beside them the one that holds most of its prompt; the best of these is
asked. Looking at two is nearly as good as looking at all (Mitzenmacher 2001, https://doi.org/10.1109/71.963420), costs
less, and keeps workers and gateways that know the same old figures from all choosing the same one. Where nobody is
known to hold much of it one of the two is drawn by a hash of its beginning, and so the same at all gateways.

What is compared is the time to the first token (``outlook.py``), and beside it the time that the prompt itself takes
once more: so long it keeps others waiting, and a replica that has it cached is worth some waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Protocol

from gateway.engine_load import EngineLoad
from gateway.routing.held import Asked, Holding, Holdings, RoutedHoldings
from gateway.routing.outlook import FASTEST, UNKNOWN_SPEED, Outlook

DRAWN = 2
ALIKE = 1.1
"""Who costs at most so many times the least, or ``SOON``, is as good: the least loaded of them is asked."""
SOON = 0.005
"""Seconds."""
MUCH = 0.5
"""The share of a prompt from which on who holds it is asked rather than who would by a hash."""
SLOWEST = 1.0
"""Tokens a second that a replica may say it computes; fewer are taken for so many."""
USUAL = 1000.0
"""Tokens of a prompt that are computed, before any was."""


class Figures(Protocol):
    """What is known of the load of replicas."""

    def load(self, backend: str, /) -> int:
        """Requests of this process in flight there, and waiting for it."""
        ...

    def told(self, backend: str, /) -> EngineLoad | None:
        """What it says of itself; None where it says nothing, or has not for a while."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """What is expected of one replica. Seconds are to the first token."""

    name: str
    seconds: float
    cost: float
    """Seconds, and those that others wait for this prompt."""
    tokens: int
    """Of the whole prompt."""
    held: int
    """And those of them that it has cached."""
    ahead: float
    """Tokens to be computed before it, of prompts that were sent from here."""
    told: float
    """Seconds to wait by the replica's own figures, if they are true; ``seconds`` has what is believed of them."""
    prompt: float
    """Of the seconds, all others."""


@dataclass(frozen=True, slots=True)
class Ranking:
    names: list[str]
    """All, the best first."""
    looks: tuple[Look, ...]
    """Of those that were looked at, the best first."""

    def look(self, name: str) -> Look | None:
        return next((look for look in self.looks if look.name == name), None)


class Sent:
    """One request on its way at one replica."""

    __slots__ = ("_asked", "_at", "_look", "_outlook", "_prompt", "_scores", "_work")

    def __init__(self, scores: Scores, outlook: Outlook, asked: Asked, look: Look, *, seen: bool) -> None:
        tokens = float(look.tokens - look.held)
        self._scores = scores
        self._outlook = outlook
        self._asked = asked
        self._look = look
        self._at = scores.clock()
        self._work = outlook.ahead + tokens
        self._prompt = outlook.sent(tokens, None if seen else look.seconds)

    def began(self) -> None:
        """Its first token has come."""
        outlook, look = self._outlook, self._look
        seconds = self._scores.clock() - self._at
        outlook.computed(self._prompt)
        outlook.judge(look.told, seconds - look.prompt)
        outlook.learn(self._work, seconds)

    def ended(self, cached: float | None = None) -> None:
        """``cached``: the share of the prompt that the replica had, where it told. Those that never tell say 0."""
        self._outlook.computed(self._prompt)
        self._outlook.ended(self._scores.clock() - self._at)
        look = self._look
        if cached is not None and self._scores.tells(look.name, cached):
            self._scores.holdings.answered(self._asked, look.name, look.held, round(cached * look.tokens))
        self._scores.holdings.ended(self._asked, look.name)


class Scores:
    """One per process; it outlives policies."""

    def __init__(
        self,
        holdings: Holdings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        drawn: int = DRAWN,
    ) -> None:
        """``drawn``: how many are looked at beside the one that holds most; 0 is all."""
        self.holdings: Holdings = holdings or RoutedHoldings()
        self.clock = clock
        self._drawn = drawn
        self._outlooks: dict[str, Outlook] = {}
        self._usual = USUAL
        self._telling: set[str] = set()
        """Backends whose servers tell how much of a prompt was cached. What one replica tells all of them do: one that
        never had anything is known by the others."""

    def rank(self, asked: Asked, weights: Mapping[str, float], figures: Figures, random: Random) -> Ranking:
        """The replicas of ``weights``, by name; there is at least one. A replica's weight is how often it is looked
        at, for the heaviest one's always: one that comes into service has little of it."""
        names = sorted(weights)
        holding = self.holdings.of(asked, names)
        chosen, by_hash = self._draw(asked, weights, names, holding, random)
        looks = self._looks(asked, chosen, holding, figures)
        load = {name: figures.load(name) / weights[name] for name in names}
        enough = max(SOON, min(look.cost for look in looks)) * ALIKE

        def rank(look: Look) -> tuple[float, float, int, float]:
            if look.cost > enough:
                return look.cost, 0.0, 0, 0.0
            return 0.0, load[look.name], -look.held, -1.0 if look.name == by_hash else random.random()

        looks.sort(key=rank)
        first = [look.name for look in looks]
        others = sorted((name for name in names if name not in first), key=load.__getitem__)
        return Ranking(first + others, tuple(looks))

    def sent(self, asked: Asked, look: Look, *, seen: bool = True) -> Sent:
        """``asked`` goes to the replica of ``look``. ``seen``: its first token will be."""
        sent = Sent(self, self._of(look.name), asked, look, seen=seen)
        self._usual += (look.tokens - look.held - self._usual) * 0.02
        self.holdings.sent(asked, look.name)
        return sent

    def look(self, asked: Asked, name: str, figures: Figures) -> Look:
        """At one replica, whoever chose it."""
        return self._looks(asked, [name], self.holdings.of(asked, [name]), figures)[0]

    def told(self, name: str, load: EngineLoad) -> None:
        """What a replica says of itself. One whose counters fall was started again."""
        if (outlook := self._outlooks.get(name)) is None:
            return
        if outlook.fell(load):
            self.restarted(name)
        self.holdings.resize(name, load.kv_tokens)

    def tells(self, name: str, cached: float) -> bool:
        """Whether the replica means it when it says that it had this share of a prompt."""
        backend = name.rpartition("@")[0] or name
        if cached:
            self._telling.add(backend)
        return backend in self._telling

    def restarted(self, name: str) -> None:
        """It has nothing of what it had."""
        self.holdings.emptied(name)
        if name in self._outlooks:
            self._outlooks[name].restarted()

    def keep(self, names: Collection[str]) -> None:
        """Forget all other replicas."""
        self._outlooks = {name: one for name, one in self._outlooks.items() if name in names or one.running}
        self.holdings.keep(names)

    def known(self) -> Mapping[str, Outlook]:
        """All replicas that were ever looked at, and are still there."""
        return self._outlooks

    def _draw(
        self,
        asked: Asked,
        weights: Mapping[str, float],
        names: list[str],
        holding: Holding,
        random: Random,
    ) -> tuple[Sequence[str], str | None]:
        """Those that are looked at, and which of them is there by its hash."""
        tokens, held = holding.tokens, holding.held
        heaviest = max(weights.values())
        if min(weights.values()) < heaviest:
            names = [name for name in names if random.random() * heaviest < weights[name]]
        most = max(held.get(name, 0) for name in names)
        by_hash = _by_hash(asked.prefix.key, names) if most < tokens * MUCH else None
        if len(names) <= self._drawn or not self._drawn:
            return names, by_hash
        drawn = random.sample(names, self._drawn)
        if most:
            holders = [name for name in names if held.get(name, 0) == most]
            if not any(name in holders for name in drawn):
                drawn.append(random.choice(holders))
        if by_hash is not None and by_hash not in drawn:
            drawn.append(by_hash)
        return drawn, by_hash

    def _looks(self, asked: Asked, names: Sequence[str], holding: Holding, figures: Figures) -> list[Look]:
        found = [(name, self._of(name), figures.told(name)) for name in names]
        speeds = [outlook.speed for _, outlook, _ in found]
        if all(speed is None for speed in speeds):
            # What is told is no more than what each had to do until now: of use where nothing was measured.
            speeds = [_told_speed(load) for _, _, load in found]
        best = min((speed for speed in speeds if speed is not None), default=UNKNOWN_SPEED)
        looks = []
        for (name, outlook, load), own in zip(found, speeds, strict=True):
            belief, held = outlook.belief, min(holding.tokens, holding.held.get(name, 0))
            speed = best if own is None else float(best * (own / best) ** belief)
            ahead = outlook.ahead + max(0, figures.load(name) - outlook.running) * self._usual
            alone = (holding.tokens - held) * speed
            prompt = outlook.base(speed) * belief + ahead * speed + alone
            told = 0.0
            if load is not None:
                told = outlook.waiting(load, self._usual) * speed
                told += outlook.for_memory(load, holding.tokens + asked.answer)
            seconds = prompt + told * belief * outlook.trust
            looks.append(Look(name, seconds, seconds + alone, holding.tokens, held, ahead, told, prompt))
        return looks

    def _of(self, name: str) -> Outlook:
        outlook = self._outlooks.get(name)
        if outlook is None:
            outlook = self._outlooks[name] = Outlook(self.clock)
        return outlook


def _told_speed(told: EngineLoad | None) -> float | None:
    """Seconds a token."""
    if told is None or told.prefill <= 0:
        return None
    return 1 / min(max(SLOWEST, told.prefill), 1 / FASTEST)


def _by_hash(key: bytes, names: Sequence[str]) -> str:
    """The same for a key while the same are there, and for most keys when one comes or goes (rendezvous hashing)."""
    return max(names, key=lambda name: blake2b(key + name.encode(), digest_size=8).digest())
