"""One request on its way, and what it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.policy.schema import Policy, Target, Timeouts
from gateway.spans import Trace
from gateway.types.chat_request import ChatRequest
from gateway.types.chunk import Chunk, Chunks
from gateway.types.principal import Principal
from gateway.types.receipt import Receipt
from gateway.types.sink import Sink
from gateway.types.usage import Purpose, TokenEstimate, UpstreamUsage


class Arm(NamedTuple):
    """Of an experiment, as one of which a candidate is asked."""

    experiment: str
    name: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A target that a call may be sent to."""

    model: str
    """The public model whose target it is."""
    target: Target
    timeouts: Timeouts
    why: str = "primary"
    """``primary``, ``spill_over``, ``fallback``, ``larger_context`` …, for the receipt."""
    arm: Arm | None = None


class EstimatesTokens(Protocol):
    def estimate(self, call: Call) -> TokenEstimate: ...


class Allowance(Protocol):
    """What a request holds of its caller's limits: whoever sends it upstream asks here first.

    One for a request and all that is sent upstream on its account; attempts may run side by side.
    """

    async def hold(self, call: Call) -> int | None:
        """Hold what ``call`` may use at its target at most, besides what was spent and what others hold.

        Returns the cap, of tokens an answer, that must be sent upstream; None where its own is enough, or none is
        needed. Raises ``RateLimited`` or ``BudgetSpent`` where not even a short answer fits.
        """
        ...

    def most(self, call: Call) -> int | None:
        """Tokens of all answers to ``call`` that dollars are held for; None where none are."""
        ...

    def bounds(self, call: Call) -> tuple[int, int] | None:
        """Tokens of the prompts of ``call``, and of all answers, that are held: the most that there can be.

        None where what limits hold is an estimate.
        """
        ...

    def release(self, call: Call, spent: UpstreamUsage | None = None) -> None:
        """What ``call`` used replaces what ``hold`` held for it; None for what was never computed.

        What is not released stays held until the request is settled.
        """
        ...


class BatchLine(Protocol):
    """What a call that is a line of a batch runs under: only on capacity that nobody else wants, at another price."""

    @property
    def price_factor(self) -> float:
        """Of what its tokens cost otherwise; 0 for what was paid before."""
        ...

    @property
    def max_utilization(self) -> float:
        """It takes a place only while less than this share of a backend would be in use with it."""
        ...

    def is_final(self, error: BaseException | None) -> bool:
        """Whether what ended it so is its result. If not it runs again, and its caller is not charged for this time."""
        ...

    def admitted(self, waited: float) -> None:
        """It has a place at a backend, for which it waited so many seconds."""
        ...

    def reclaim(self) -> None:
        """Its place is wanted: it ends at once, to run again later."""
        ...


@dataclass(slots=True, weakref_slot=True)
class Call:
    """One request on its way through the stages. The policy is the generation it started with, to the end.

    A stage that sends it on more than once, or elsewhere, passes on a copy (``dataclasses.replace``): receipt,
    ``reply_headers`` and ``upstream_usage`` are shared by all copies.
    """

    request_id: str
    principal: Principal
    request: ChatRequest
    policy: Policy
    receipt: Receipt
    started: float
    """``time.perf_counter()`` when the request arrived."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Trace context and the like, to be sent along upstream."""
    provider_headers: Mapping[str, str] = field(default_factory=dict)
    """The caller's own that are meant for the model's provider, such as ``anthropic-beta``."""
    route: str = ""
    """The path that was asked: ``/v1/chat/completions``."""
    query: str = ""
    """The request's query string, for a provider that knows it."""
    user_agent: str = ""
    """The product that the caller's program says it is, for the ledger."""
    tags: str = ""
    """The caller's own (``x-tollgate-tags``), for the ledger: each between commas."""
    model: str = ""
    """The public model to be asked: what the request's name means, until routing or a fallback puts another there."""
    deadline: float | None = None
    """On ``started``'s clock: past it the caller has no use for an answer."""
    cache_control: str = ""
    """The caller's own header."""
    positions: bool = False
    """The caller wants queue positions at once while its request waits."""
    cached: str | None = None
    """``exact`` or ``semantic``: the answer is given again, and nothing was spent on it. Set by ``cache``."""
    local_only: bool = False
    """Only backends marked local may see the content."""
    residency: frozenset[str] | None = None
    """Regions in which the content stays on account of another request, of which this one is a part."""
    arm: str = ""
    """Of the experiment that it is part of: a name for all in which its answer may differ from others'. Set by
    ``experiment``."""
    shadow: bool = False
    """A copy, whose answer nobody waits for: it gets only idle capacity."""
    purpose: Purpose = "answer"
    """Under which its attempts are entered in ``upstream_usage``."""
    payer: Principal | None = None
    """Whose limits and account it falls on, where it is sent beside a request: a copy, or a question to a judge."""
    line: BatchLine | None = None
    """Set where it is a line of a batch, which nobody waits for."""
    optional_params: frozenset[str] = frozenset()
    """Parameters of the request that the gateway added for itself: a server that does not know them is asked without.
    Set by ``cascade``."""
    estimate: TokenEstimate | None = None
    """Set by ``Quotas.reserve`` where there are limits, else by ``estimated`` at the first need."""
    estimator: EstimatesTokens | None = None
    """Set by ``Quotas.reserve``."""
    allowance: Allowance | None = None
    """Set by ``Quotas.reserve``, where there is a limit on tokens or dollars."""
    cap: int | None = None
    """The longest answer, in tokens, that ``allowance`` covers. Set by ``upstream_loop``, kept by backends."""
    candidates: tuple[Candidate, ...] = ()
    """Set by ``upstream_loop``: where to try, in this order."""
    candidate: Candidate | None = None
    """Where it is being sent now, or who answered. Set by ``upstream_loop``."""
    sent: bool = False
    """Whether the attempt in flight has been sent to its server, which may charge for it from then on."""
    sent_at: float = 0.0
    """When, on ``started``'s clock."""
    trace: Trace | None = None
    """Its spans, where it is sampled. Set by ``record``."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """Headers that the bundled engine understands: priority, weight, deadline. Set by ``upstream_loop``."""
    reply_headers: dict[str, str] = field(default_factory=dict)
    """For the caller, with the answer or the error."""
    upstream_usage: list[UpstreamUsage] = field(default_factory=list)
    """What each attempt used that left for its server. Added to by ``upstream_loop``, billed by ``record``."""
    sink: Sink | None = field(default=None, init=False)
    """Of a stream that goes to a client as it comes. No copy has it."""
    discard: Callable[[], bool] | None = field(default=None, init=False)
    """Forgets what has come of the answer, so that another can be given from its beginning; False where the caller has
    been given something of it. None where nothing holds answers back. No copy has it."""

    def __post_init__(self) -> None:
        self.model = self.model or self.request.model

    def estimated(self) -> TokenEstimate | None:
        """What it is thought to need; None where nobody estimates it."""
        if self.estimate is None and self.estimator is not None:
            self.estimate = self.estimator.estimate(self)
        return self.estimate

    @property
    def expected_prompt(self) -> int:
        """Tokens of the prompt, as far as anybody estimates them."""
        estimate = self.estimated()
        return estimate.prompt if estimate is not None else 0

    def enters(self, stage: str) -> None:
        """It comes as far as ``stage``, where it is traced. Copies and judges pass stages beside it."""
        if self.trace is not None and self.purpose in ("answer", "step"):
            self.trace.enter(stage, self.receipt.notes)

    def leaves(self) -> None:
        """A backend is about to send it: from here on it may cost something, however it ends."""
        self.sent = True
        self.sent_at = time.perf_counter()

    def on_discard(self, forget: Callable[[], None]) -> None:
        """``forget`` is called as well where the answer is discarded."""
        discard = self.discard
        if discard is None:
            return

        def both() -> bool:
            discarded = discard()
            if discarded:
                forget()
            return discarded

        self.discard = both

    def relays(self, chunks: Chunks) -> None:
        """Past ``chunks`` its pieces may go to the sink."""
        if self.sink is not None:
            self.sink.source = chunks

    def looks_on(self, chunks: Chunks, look: Callable[[Chunk, Sequence[str]], object] | None = None) -> None:
        """Who reads ``chunks`` passes each piece on as it is; ``look`` is told of those that go past.

        Where pieces would go past another stream, some stage changes or keeps what comes: then none do."""
        sink = self.sink
        if sink is None:
            return
        if sink.source is not chunks:
            self.sink = None
        elif look is not None:
            sink.looking.append(look)

    @property
    def target(self) -> Target | None:
        return self.candidate.target if self.candidate else None

    @property
    def clips(self) -> bool:
        """Whether fewer tokens of an answer than were asked for will do, for want of context.

        Not where a model with a larger context is still to be tried, nor where the policy says so.
        """
        here = self.candidate
        if here is not None:
            later = iter(self.candidates)
            if here in later and any(one.why == "larger_context" for one in later):
                return False
        models = self.policy.models
        asked = self.policy.resolve(self.model)
        if (
            here is not None
            and here.why == "larger_context"
            and asked
            and models[asked].over_context != "clip"
        ):
            return False
        return models[here.model if here else self.model].over_context == "clip"

    @property
    def timeouts(self) -> Timeouts:
        """Those of the candidate it is being sent to."""
        return self.candidate.timeouts if self.candidate else self.policy.models[self.model].timeouts
