"""The system in one file: what flows through the gateway, and the one shape every part of it has.

A ``Handler`` turns a ``Call`` into an async stream of ``Chunk``; a ``Stage`` makes a handler out of the next one, and
``pipeline.dispatch`` one out of all backends. An answer that is not streamed is the same stream, read to its end before
anything is sent, or, where no stage needs a stream, a list of chunks (``WholeHandler``).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, runtime_checkable

from gateway.apis import Api, Form, Units
from gateway.policy.schema import Budget, Policy, QuotaSettings, Scope, Target, Timeouts
from gateway.spans import Trace
from gateway.value import value

Json = Any
"""A value that came out of, or can go into, a JSON document."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is calling: the key that proved it, its tenant and tier, the models it may name (glob patterns)."""

    key_id: str
    tenant: str
    models: tuple[str, ...] = ("*",)
    tier: str = "default"
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    """The key's own; its tenant's and tier's are in the policy."""
    budget: Budget = field(default_factory=Budget)
    scopes: tuple[Scope, ...] = ("inference",)
    residency: tuple[str, ...] = ()
    """The key's own regions, in which its requests stay; its tenant's and model's are in the policy."""

    def may_use(self, model: str) -> bool:
        return "*" in self.models or any(fnmatchcase(model, pattern) for pattern in self.models)


HOUSE = "tollgate"
"""The tenant that pays for what the gateway asks for itself; a policy may set it limits like any other."""


@dataclass(frozen=True, slots=True)
class Native:
    """A request as its caller wrote it, for backends that speak the caller's own dialect.

    They send ``body``, which may hold more than the canonical form. All others send the canonical form. Whoever changes
    the content changes both: ``body``, and by ``read`` the canonical form.
    """

    dialect: str
    body: Mapping[str, Json]
    read: Callable[[Mapping[str, Json]], ChatRequest]
    """The canonical form of a body of this kind. Raises ``BadRequest``."""
    beyond: tuple[str, str] | None = None
    """The first thing the answer depends on that the canonical form cannot express: its path, and what it is."""
    client: str = ""
    """What the caller's program says of itself within the prompt, which the canonical form is without."""


@value
class ChatRequest:
    """A question to a model, in one canonical form for every inbound dialect.

    Exactly one of ``messages`` (a conversation) and ``prompt`` (raw text or token ids to continue) is set.
    ``params`` holds every other parameter under its OpenAI name, forwarded as the caller wrote it.
    """

    model: str
    messages: tuple[Mapping[str, Json], ...] | None = None
    prompt: Json = None
    stream: bool = False
    include_usage: bool = False
    n: int = 1
    params: Mapping[str, Json] = field(default_factory=dict)
    continues: bool = False
    """The last message, or the prompt's end, is a partial answer: go on from there without repeating it."""
    embeds: bool = False
    """The prompts' embeddings are wanted. The answer has one chunk a prompt: ``{"embedding": …}`` as its delta."""
    native: Native | None = field(default=None, compare=False)
    """The request as its caller wrote it, where the canonical form holds less."""
    truncates: bool = False
    """Where the conversation is too long for the model, its oldest part may be left out."""
    api: Api | None = None
    """The API that is asked in place of one that generates text; its answer is passed on as it comes: chunks with
    ``{"bytes": …}`` as their delta, or one with ``{"json": …}``, the content type in the first one's envelope."""
    form: Form | None = field(default=None, compare=False)
    """The upload that is sent, where that API takes no JSON."""

    @property
    def generates(self) -> bool:
        """Text is wanted, token by token: no vectors, and nothing that is passed on as it comes."""
        return not self.embeds and self.api is None

    @property
    def is_whole(self) -> bool:
        """Text is wanted, and nobody is to see a part of it before all of it has come."""
        return not (self.stream or self.embeds or self.truncates) and self.api is None

    @property
    def prompt_count(self) -> int:
        """Prompts to answer: several only where ``prompt`` is a list of texts, or of lists of token ids."""
        prompt = self.prompt
        return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1

    @property
    def answers_per_prompt(self) -> int:
        """Answers generated for each prompt, more than ``n`` where ``best_of`` says so; 1 for an embedding."""
        if not self.params:
            return self.n
        best_of = self.params.get("best_of")
        return max(self.n, best_of) if type(best_of) is int and self.generates else self.n

    @property
    def answers(self) -> int:
        """Answers generated side by side, for all prompts."""
        each = self.answers_per_prompt
        return each if self.prompt is None else each * self.prompt_count

    @property
    def slots(self) -> int:
        """Of a backend's concurrency: one for each answer, one for all embeddings and for what is passed on."""
        return self.answers if self.generates else 1

    @property
    def choices(self) -> int:
        """Choices in the response: ``n`` for each prompt; of embeddings, one for each text."""
        return self.n if self.prompt is None else self.n * self.prompt_count

    def having(self, params: Mapping[str, Json]) -> ChatRequest:
        """The same with other parameters, in a third of the time that ``dataclasses.replace`` takes."""
        return ChatRequest(
            *(self.model, self.messages, self.prompt, self.stream, self.include_usage, self.n, params),
            *(self.continues, self.embeds, self.native, self.truncates, self.api, self.form),
        )

    def speaks(self, dialect: str) -> bool:
        """Whether the caller wrote in ``dialect``, and is to be answered in it."""
        return self.native is not None and self.native.dialect == dialect


MOST_TOKENS = 10**8
"""Of one kind in one answer: more than any model takes or gives. What claims more is not believed."""


@value
class Usage:
    """Tokens counted by whoever ran the model.

    ``cached`` (read from the provider's prompt cache) and ``cache_write`` (put into it) are parts of ``prompt``,
    ``reasoning`` is one of ``completion``. ``cache_write_1h`` is the part of ``cache_write`` that is kept for an hour.
    """

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    more: Mapping[str, Json] | None = field(default=None, compare=False)
    """What else a server with OpenAI's API reports of it, for callers who speak that dialect: figures of other kinds,
    costs, times. Nothing is billed by it but sound (``audio``)."""
    units: Units | None = None
    """What an API counts that does not, or not only, count tokens."""

    @property
    def audio(self) -> int:
        """Tokens of the prompt that are sound, where the server tells them."""
        details = None if self.more is None else self.more.get("prompt_tokens_details")
        tokens = details.get("audio_tokens") if isinstance(details, Mapping) else None
        return min(tokens, self.prompt) if type(tokens) is int and tokens > 0 else 0

    @property
    def believable(self) -> bool:
        counts = (
            self.prompt,
            self.completion,
            self.cached,
            self.reasoning,
            self.cache_write,
            self.cache_write_1h,
            0 if self.units is None else self.units.amount,
        )
        return max(counts) <= MOST_TOKENS

    @property
    def possible(self) -> Usage | None:
        """As a server claims it, but no part is more than its whole; None where nobody can believe it."""
        if not self.believable:
            return None
        if (
            self.cached + self.cache_write > self.prompt
            or self.cache_write_1h > self.cache_write
            or self.reasoning > self.completion
        ):
            cached = min(self.cached, self.prompt)
            written = min(self.cache_write, self.prompt - cached)
            return replace(
                self,
                cached=cached,
                cache_write=written,
                cache_write_1h=min(self.cache_write_1h, written),
                reasoning=min(self.reasoning, self.completion),
            )
        return self


@dataclass(slots=True)
class Chunk:
    """One step of an answer: a delta to one choice, or, with ``delta`` None, only envelope or usage.

    ``envelope`` holds the upstream response's own top-level fields (``id``, ``created``, ``system_fingerprint`` …).
    """

    index: int = 0
    delta: Mapping[str, Json] | None = None
    finish_reason: str | None = None
    stop: str | int | None = None
    """With ``finish_reason``: the stop string or token of the caller's that ended it, where the server reports it."""
    logprobs: Json = None
    usage: Usage | None = None
    envelope: Mapping[str, Json] = field(default_factory=dict)
    comment: str | None = None
    """For a client that waits, such as its position in the queue; no part of the answer."""
    more: bool = False
    """Another chunk follows at once: both may leave in one write."""
    revocation: Mapping[str, Json] | None = None
    """On the last chunk of an answer that a guard cut: sent to the caller as ``tollgate``."""
    choice: Mapping[str, Json] | None = None
    """Further fields of the choice, beside its delta, such as a provider's filter verdicts."""

    def with_text(self, text: str) -> Chunk:
        """Another piece of the text of which this is one, and nothing else."""
        (name,) = self.delta or ("content",)
        return Chunk(self.index, {name: text}, envelope=self.envelope, choice=self.choice)


class Notes(Protocol):
    """What a request's end adds to its receipt."""

    def notes(self) -> Mapping[str, Mapping[str, Json]]: ...


@dataclass(slots=True)
class Receipt:
    """What happened to one request, noted by the stages; ``/v1/requests/{id}`` serves it.

    ``created`` is Unix time; all other times are seconds since the request arrived.
    """

    request_id: str
    created: float
    noted: dict[str, dict[str, Json]] = field(default_factory=dict)
    """By stage, without what its end adds until somebody reads that."""
    _end: Notes | None = None

    def note(self, stage: str, **facts: Json) -> None:
        """Add what ``stage`` decided and why; later facts join the earlier ones."""
        self.noted.setdefault(stage, {}).update(facts)

    def close(self, end: Notes) -> None:
        """The request has ended. What that adds is rendered when the notes are read: mostly in a writer's thread."""
        if self._end is not None:
            self._render(self._end)
        self._end = end

    @property
    def notes(self) -> dict[str, dict[str, Json]]:
        """All of them, by stage."""
        if (end := self._end) is not None:
            self._render(end)
            # Only now: another thread that reads them meanwhile renders the same facts, and misses none.
            self._end = None
        return self.noted

    def _render(self, end: Notes) -> None:
        for stage, facts in end.notes().items():
            self.noted.setdefault(stage, {}).update(facts)

    @property
    def attempts(self) -> int:
        """How often a backend was asked, failed tries included; one that our own queue refused was not asked."""
        return self.attempts_in(self.noted)

    @staticmethod
    def attempts_in(noted: Mapping[str, Mapping[str, Json]]) -> int:
        attempts = noted.get("fallback", {}).get("attempts", ())
        return sum(attempt.get("admitted", True) for attempt in attempts)


@dataclass(slots=True)
class TokenEstimate:
    """How many tokens a request is thought to need. Not frozen, which would double the cost of making one."""

    prompt: int
    expected: int
    """Tokens of the answer, all ``n`` choices together, as learned."""
    reserved: int
    """Tokens of the answer to hold in reserve: the declared cap times ``n``, or the expectation where none is."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A target that a call may be sent to."""

    model: str
    """The public model whose target it is."""
    target: Target
    timeouts: Timeouts
    why: str = "primary"
    """``primary``, ``spill_over``, ``fallback``, ``larger_context`` …, for the receipt."""


Purpose = Literal["answer", "step", "attempt", "shadow", "judge", "verifier"]
"""What something was asked for: the answer; a cascade's step whose answer was discarded; an attempt that failed or was
broken off; a copy for a shadow model; a guard's judge; a check of an answer."""


@value
class UpstreamUsage:
    """Tokens used up by one attempt, whether or not its answer reached the caller."""

    target: Target
    usage: Usage
    estimated: bool = False
    """Counted by the gateway, as the backend did not report it."""
    purpose: Purpose = "answer"
    model: str = ""
    """The public model whose target it is."""


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


@dataclass(slots=True)
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


class Sink(Protocol):
    """Where pieces of a streamed answer go past all generators that neither change nor keep them: the client's end, or
    before that the guards', who write what they release to the client's.

    On its way: ``web.answering`` gives it to the call; ``upstream_loop`` says past which stream pieces would go; a
    stage that looks on puts its own there; ``record`` takes it from the call where some stage gives it another; then
    the backend hands it to its ``Exchange``, whose ``StreamRelay`` writes to it once it is open.
    """

    source: object
    """The stream past which pieces go: made by the loop over candidates, the guards, or one that looks on."""
    looking: list[Callable[[Chunk, Sequence[str]], object]]
    """They are told of what was passed on, as ``pass_on`` is: who counts, or keeps what may have to be continued."""
    is_open: bool
    """The answer has begun for the client."""

    def pass_on(self, like: Chunk, texts: Sequence[str]) -> bool:
        """Write the chunks that ``like.with_text`` makes of ``texts``; False, and nothing is done, where the client is
        to be waited for."""
        ...


Chunks = AsyncGenerator[Chunk, None]
"""An answer in flight. Whoever stops reading early closes it, and so stops the work behind it."""

Handler = Callable[[Call], Chunks]
Stage = Callable[[Handler], Handler]
WholeHandler = Callable[[Call], Awaitable[Sequence[Chunk]]]
"""The same for a call whose request ``is_whole``: all of its answer at once."""


@runtime_checkable
class CountsTokens(Protocol):
    """A backend whose provider counts a prompt's tokens when asked to."""

    async def count_tokens(self, call: Call, target: Target) -> dict[str, Json]:
        """Its answer, with ``input_tokens``. Raises ``gateway.errors.GatewayError`` only."""
        ...


@runtime_checkable
class AnswersWhole(Protocol):
    """A backend that has a shorter way for what is not streamed."""

    def whole(self, call: Call, target: Target) -> Awaitable[Sequence[Chunk]]:
        """The answer to a call whose request ``is_whole``. Raises as ``stream``."""
        ...


@runtime_checkable
class PassesOn(Protocol):
    """A backend whose server has other APIs than those that generate text."""

    def pass_on(self, call: Call, target: Target) -> Chunks:
        """The answer of the API that the request names, as it comes. Raises ``BadRequest`` where there is none such;
        otherwise as ``stream``."""
        ...


class Backend(Protocol):
    """Answers calls. Implementations never import each other, and know nothing of stages."""

    name: str

    def stream(self, call: Call, target: Target) -> Chunks:
        """Answer ``call`` with ``target``'s model. Raises ``gateway.errors.GatewayError`` only."""
        ...

    async def probe(self) -> None:
        """Prove that the backend can serve; raise ``gateway.errors.GatewayError`` if it cannot."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...
