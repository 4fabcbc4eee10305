"""Models with ``select: score``: whom a call goes to, and what comes of it there.

``order`` is asked where a call is routed; the handlers stand where it is sent, and see when its answer begins. What was
expected of a call is kept between the two, by its id, for as many as may be on their way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from random import Random
from typing import NamedTuple, Self

from gateway.policy.schema import Policy
from gateway.routing.asked import asked_of
from gateway.routing.held import Asked
from gateway.routing.score import Figures, Look, Scores, Sent
from gateway.types import Call, Candidate, Chunk, Chunks, Handler, Json, Usage, WholeHandler

ON_THEIR_WAY = 4096
"""Calls that are routed and not sent yet, or will not be."""


class _Routed(NamedTuple):
    """A call on its way."""

    asked: Asked
    looks: dict[str, Look]


class Scored:
    """One policy's, over what the process knows (``Scores``)."""

    def __init__(self, policy: Policy, scores: Scores, figures: Figures) -> None:
        self._models = frozenset(name for name, model in policy.models.items() if model.select == "score")
        self._scores = scores
        self._figures = figures
        self._routed: OrderedDict[tuple[str, str], _Routed] = OrderedDict()

    @classmethod
    def of(cls, policy: Policy, scores: Scores, figures: Figures) -> Self | None:
        """None where no model of the policy has ``select: score``."""
        found = cls(policy, scores, figures)
        return found if found._models else None

    def order(self, call: Call, group: Sequence[Candidate], random: Random) -> list[Candidate]:
        """``group``, all of one model, the best first."""
        first = group[0]
        routed = self._routed_of(call, first.model, first.target.model)
        weights: dict[str, float] = {}
        for one in group:
            weights[one.target.backend] = max(weights.get(one.target.backend, 0.0), one.target.weight)
        ranking = self._scores.rank(routed.asked, weights, self._figures, random)
        # Replicas of the gateway's own zone are ranked by themselves, and then the others.
        routed.looks.update((look.name, look) for look in ranking.looks)
        call.receipt.note("score", **{first.model: notes(routed)})
        place = {name: number for number, name in enumerate(ranking.names)}
        return sorted(group, key=lambda one: place[one.target.backend])

    def handler(self, send: Handler) -> Handler:
        """``send``, looked on at where the call's model is scored."""

        def handle(call: Call) -> Chunks:
            here = call.candidate
            if here is None or here.model not in self._models:
                return send(call)
            return self._watched(call, here, send)

        return handle

    def whole_handler(self, send: WholeHandler) -> WholeHandler:
        def handle(call: Call) -> Awaitable[Sequence[Chunk]]:
            here = call.candidate
            if here is None or here.model not in self._models:
                return send(call)
            return self._watched_whole(call, here, send)

        return handle

    def covers(self, model: str) -> bool:
        return model in self._models

    def sent(self, call: Call, here: Candidate, *, seen: bool = True) -> Sent:
        """``call`` goes to ``here``, of a model that is scored. ``seen``: its first token will be. Whoever sends it
        says when that comes, and when all has ended."""
        routed = self._routed_of(call, here.model, here.target.model)
        self._routed.pop(
            (call.request_id, here.model), None
        )  # who fails is asked for in vain: others are looked at anew
        look = routed.looks.get(here.target.backend)
        if look is None:
            look = self._scores.look(routed.asked, here.target.backend, self._figures)
        return self._scores.sent(routed.asked, look, seen=seen)

    async def _watched(self, call: Call, here: Candidate, send: Handler) -> Chunks:
        began, cached = not call.request.stream, None
        # Only now: what is never begun is never ended.
        sent = self.sent(call, here, seen=call.request.stream)
        try:
            async with aclosing(send(call)) as chunks:
                async for chunk in chunks:
                    if not began and chunk.delta is not None:
                        began = True
                        sent.began()
                    if chunk.usage is not None:
                        cached = _cached(chunk.usage)
                    yield chunk
        finally:
            sent.ended(cached)

    async def _watched_whole(self, call: Call, here: Candidate, send: WholeHandler) -> Sequence[Chunk]:
        sent, cached = self.sent(call, here, seen=False), None
        try:
            chunks = await send(call)
            for chunk in chunks:
                if chunk.usage is not None:
                    cached = _cached(chunk.usage)
            return chunks
        finally:
            sent.ended(cached)

    def _routed_of(self, call: Call, model: str, target: str) -> _Routed:
        key, known = (call.request_id, model), self._routed
        routed = known.get(key)
        if routed is None or not _is_of(routed, call):
            routed = known[key] = _Routed(asked_of(call, target), {})
            while len(known) > ON_THEIR_WAY:
                known.popitem(last=False)
        return routed


def _is_of(routed: _Routed, call: Call) -> bool:
    """Callers may give two requests one id, and a call may be sent again with another text."""
    its = routed.asked.call() if routed.asked.call is not None else None
    return its is not None and its.request is call.request


def _cached(usage: Usage) -> float | None:
    """The share of the prompt that the server had."""
    return min(1.0, usage.cached / usage.prompt) if usage.prompt > 0 else None


def notes(routed: _Routed) -> Json:
    """For the receipt: what was expected of those that were looked at."""
    return {
        "prompt_tokens": max((look.tokens for look in routed.looks.values()), default=routed.asked.tokens),
        "looked_at": [
            {
                "backend": look.name,
                "first_token_seconds": round(look.seconds, 4),
                "held_tokens": look.held,
                "tokens_ahead": round(look.ahead),
            }
            for look in routed.looks.values()
        ],
    }
