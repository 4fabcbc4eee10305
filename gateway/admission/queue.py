"""A place at the backend, in fair order: what the receipt and the metrics have of it, and what its caller hears."""

from __future__ import annotations

from contextlib import aclosing

from gateway.admission.gate import Admission, admit
from gateway.admission.pools import Pools
from gateway.admission.shedding import TierRules
from gateway.errors import Overloaded
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunks


class Queue:
    """A streaming client that waits gets its position when its tier's patience is over, or after ``quiet`` seconds if
    it asked for that, and then every ``interval``.

    A position begins the answer, with the status 200. Until then a refusal has a status and a Retry-After header,
    which clients heed.
    """

    def __init__(self, pools: Pools, metrics: Metrics, *, quiet: float = 0.5, interval: float = 1.0) -> None:
        self._pools = pools
        self._metrics = metrics
        self._quiet = quiet
        self._interval = interval
        self._rules = TierRules()

    def admit(self, call: Call) -> Admission:
        """A place for ``call`` at its candidate, or one in the queue, to be awaited by ``waiting``. Raises
        ``Overloaded`` and ``TooManyAnswers``.
        """
        if call.trace is not None:
            call.enters("queue")
        try:
            admission = admit(call, self._pools, self._rules)
        except Overloaded as error:
            self._refused(call, error)
            raise
        if admission.lease.is_granted:
            self._note(call, admission)
        return admission

    async def wait(self, call: Call, admission: Admission) -> None:
        """``waiting`` for who is not told how it goes."""
        async with aclosing(self.waiting(call, admission)) as positions:
            async for _ in positions:
                pass

    async def waiting(self, call: Call, admission: Admission) -> Chunks:
        """Comments for who waits, until there is a place. Raises ``Overloaded`` when the time is up."""
        gauge = self._metrics.pool_waiting[(admission.pool.name,)]
        gauge.inc()
        silence = self._quiet if call.positions else call.policy.tier(call.principal.tier).patience
        try:
            async with aclosing(admission.wait(call, quiet=silence, interval=self._interval)) as positions:
                async for position in positions:
                    yield position
        except Overloaded as error:
            self._refused(call, error)
            raise
        finally:
            gauge.dec()
            self._note(call, admission)

    def _note(self, call: Call, admission: Admission) -> None:
        waited = admission.waited
        if call.line is not None:
            if admission.lease.is_granted:
                call.line.admitted(waited)
        elif not call.shadow:
            self._metrics.queue_seconds[admission.pool.name, call.principal.tier].observe(waited)
        call.receipt.note(
            "queue",
            pool=admission.pool.name,
            began=round(admission.arrived - call.started, 6),
            waited=round(waited, 6),
            position=admission.position,
            saturation=round(admission.saturation, 3),
        )

    def _refused(self, call: Call, error: Overloaded) -> None:
        if not call.shadow and call.line is None:
            self._metrics.shed[call.principal.tier, error.code or ""].inc()
        call.receipt.note("queue", refused=error.code, retry_after=error.retry_after)
