"""One policy generation's judge: asked through the gateway's own backends, at the house's expense, on idle capacity.

A question is to a backend what a line of a batch is: it takes a place that nobody else wants, waits beside the queue
while there is none, and gives its place back at once where somebody comes to wait. The budget is that of a key of the
house: what a question may cost at most is held before it is sent, in the store that all replicas share.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from hashlib import blake2b
from itertools import count

from gateway.errors import BudgetSpent, GatewayError, Overloaded, RateLimited
from gateway.evaluation.judge import Messages
from gateway.evaluation.work import Asked
from gateway.policy.schema import Evaluation, Policy
from gateway.types import EVALUATION, HOUSE, Call, ChatRequest, Handler, Principal, Receipt

MOST_CHARACTERS = 200_000
"""Of a question to the judge; longer ones are not asked."""
MAX_UTILIZATION = 0.5
"""Of a backend, what others use included: from there on the judge is not asked."""
_OPTIONAL = frozenset({"temperature"})


class Unjudged(Exception):
    """``outcome`` is what the metric calls it."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Busy(Exception):
    """There is no idle capacity, or questions in flight hold what is left of the budget; nothing was sent."""


def series_of(policy: Policy, config: Evaluation) -> str:
    """Of the scores that can be compared: one judge's, by one rubric."""
    model = policy.resolve(config.judge) or config.judge
    return blake2b(f"{model}\0{config.asked_for}".encode(), digest_size=6).hexdigest()


def payer_of(config: Evaluation) -> Principal:
    """Whose budget it is."""
    return Principal(EVALUATION, HOUSE, tier=HOUSE, budget=config.budget)


class Judge:
    """``handler`` begins behind guards and caches, and bills ``call.payer``."""

    def __init__(self, config: Evaluation, policy: Policy, handler: Handler) -> None:
        self.config = config
        self.model = policy.resolve(config.judge) or config.judge
        self.is_house = _is_house(policy, self.model)
        """It runs on local backends, and is never asked elsewhere: it is shown what the answering model was."""
        self.series = series_of(policy, config)
        self._policy = policy
        self._handler = handler
        self._numbers = count(1)
        self._payer = payer_of(config)

    async def ask(self, asked: Asked, messages: Messages) -> str:
        """What it says. Raises ``Unjudged``, and ``Busy``."""
        if sum(len(message["content"]) for message in messages) > MOST_CHARACTERS:
            raise Unjudged("too_long")
        question = _Question()
        question.task = asyncio.create_task(self._read(self._call(asked, messages, question)))
        try:
            await asyncio.wait([question.task])
        finally:
            question.task.cancel()
        if question.task.cancelled():
            raise Unjudged("gave_way")
        try:
            return question.task.result()
        except Overloaded as error:
            raise Unjudged("gave_way") if question.begun else Busy from error
        except BudgetSpent as error:
            raise Unjudged("over_budget") from error
        except RateLimited as error:
            # Of our own limits: what is missing is held by questions in flight.
            raise Unjudged("failed") if error.limit is None else Busy from error
        except (GatewayError, TimeoutError) as error:
            raise Unjudged("failed") from error

    async def _read(self, call: Call) -> str:
        parts: list[str] = []
        async with asyncio.timeout(call.timeouts.total), aclosing(self._handler(call)) as chunks:
            async for chunk in chunks:
                content = chunk.delta.get("content") if chunk.delta is not None else None
                if isinstance(content, str) and not chunk.index:
                    parts.append(content)
        return "".join(parts)

    def _call(self, asked: Asked, messages: Messages, question: _Question) -> Call:
        request_id = f"{asked.request_id}-evaluation{next(self._numbers)}"
        params = {"temperature": 0, "max_tokens": self.config.max_tokens}
        return Call(
            request_id=request_id,
            principal=Principal(EVALUATION, HOUSE, tier=HOUSE),
            payer=self._payer,
            request=ChatRequest(self.model, messages=tuple(messages), params=params),
            policy=self._policy,
            receipt=Receipt(request_id, time.time()),
            started=time.perf_counter(),
            headers={"x-request-id": request_id},
            optional_params=_OPTIONAL,
            local_only=self.is_house or asked.local_only,
            residency=asked.residency,
            purpose="evaluation",
            line=question,
        )


class _Question:
    """A ``BatchLine``."""

    price_factor = 1.0
    max_utilization = MAX_UTILIZATION

    def __init__(self) -> None:
        self.task: asyncio.Task[str] | None = None
        self.begun = False

    def is_final(self, error: BaseException | None) -> bool:
        """However it ends, the house pays for what it took; it is not asked again."""
        return True

    def admitted(self, waited: float) -> None:
        self.begun = True

    def reclaim(self) -> None:
        if self.task is not None:
            self.task.cancel()


def _is_house(policy: Policy, model: str) -> bool:
    """Whether all of its targets are on local backends."""
    known = policy.models.get(model)
    return (
        known is not None
        and bool(known.places)
        and all(policy.backends[target.backend].local for target in known.places)
    )
