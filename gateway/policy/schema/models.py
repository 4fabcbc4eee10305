"""``models``: what callers can ask for, and how it is routed, retried and replaced."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from gateway.policy.schema.values import Count, Frozen, Name, Share, Text, Timeout, Weight


class Timeouts(Frozen):
    """Seconds to connect, to the first token, between signs of life, and for the whole answer.

    The defaults fit models that think before they speak: OpenAI's say nothing for minutes, and OpenAI's and
    Anthropic's own clients wait 10 minutes for a word. The gateway is not to be the first to give up.
    """

    connect: Timeout = 2.0
    first_token: Timeout = 600.0
    idle: Timeout = 300.0
    total: Timeout = 1800.0

    @property
    def bounds_silence(self) -> bool:
        """Whether the operator has set how long a silence may be."""
        return not self.model_fields_set.isdisjoint(("first_token", "idle"))


class Target(Frozen):
    """A backend, and the name by which it knows the model."""

    backend: Name
    model: Text
    weight: Weight = 1.0
    timeouts: Timeouts | None = None
    """Instead of the model's own."""


class Retry(Frozen):
    """``attempts`` at one target, the first included, with full jitter over a doubling ``backoff``."""

    attempts: Annotated[int, Field(strict=True, ge=1, le=10)] = 2
    backoff: Timeout = 0.25
    budget: Share = 0.2
    """Retries as a share of requests, over all of the model's traffic: retries must not become the load."""


class Shadow(Frozen):
    """A share of the traffic is sent to another model as well; ``evaluation`` compares its answers."""

    model: Name
    share: Share = 1.0


class Complexity(Frozen):
    below: Share


class When(Frozen):
    complexity: Complexity


class Escalate(Frozen):
    """What makes a step's answer not good enough, so that the next step is asked."""

    mean_logprob_below: Annotated[float, Field(strict=True, le=0, allow_inf_nan=False)] | None = None
    on_refusal: bool = True
    on_invalid_schema: bool = True


class Step(Frozen):
    """One model of a cascade."""

    model: Name
    when: When | None = None
    """Start here only then; without it, always."""
    escalate: Escalate = Escalate()


SplitBy = Literal["user", "conversation", "tenant", "request"]
"""What stays at one target. ``user`` is the end user that a request names, else its conversation."""


Tolerated = Annotated[float, Field(strict=True, ge=1, le=100, allow_inf_nan=False)]
"""How many times the present targets' figure."""


class RolloutGuard(Frozen):
    """What brings a roll-out back: the new target's figure is above so many times that of the present ones."""

    errors: Tolerated | None = 1.0
    """Requests whose first attempt fails by the server's fault."""
    refusals: Tolerated | None = None
    """Answers in which the model, or its provider's filter, declines."""
    ttft_p95: Tolerated | None = None
    """Seconds to the first token that 95 % of requests stay below."""
    cost: Tolerated | None = None
    """Dollars of a usual request: the median."""
    score: Tolerated | None = None
    """Low scores, by a judge (``evaluation``) or by callers (feedback): below the present targets' median."""

    @property
    def tolerated(self) -> Mapping[str, float]:
        """Those in use."""
        found = {name: getattr(self, name) for name in RolloutGuard.model_fields}
        return {name: value for name, value in found.items() if value is not None}


Percent = Annotated[float, Field(strict=True, gt=0, le=100, allow_inf_nan=False)]


class Destination(Frozen):
    """What is rolled out: a backend, and the name by which it knows the model."""

    backend: Name
    model: Text


class Rollout(Frozen):
    """The way of a model's traffic, by steps and under watch, from its targets to another one."""

    to: Destination
    steps: Annotated[tuple[Percent, ...], Field(min_length=1)] = (1, 5, 25, 100)
    """Per cent of keys that go to the new target."""
    hold: Timeout = 1800.0
    """How long a step lasts at least."""
    key: Literal["user", "conversation", "tenant"] = "user"
    guard: RolloutGuard = RolloutGuard()

    @model_validator(mode="after")
    def _grows(self) -> Rollout:
        steps = self.steps
        if steps[-1] != 100 or any(one >= other for one, other in pairwise(steps)):
            raise ValueError(
                "'steps' should grow from one to the next and end at 100, such as [1, 5, 25, 100]"
            )
        return self

    @property
    def target(self) -> Target:
        return Target(backend=self.to.backend, model=self.to.model)

    def experiment(self, model: str) -> str:
        """The name of the roll-out of ``model``. With another target it is another one."""
        return f"{model} to {self.to.backend}/{self.to.model}"


Select = Literal["weighted", "least_loaded", "prefix_affinity", "score"]


Sharing = Literal["none", "system", "all"]


Input = Literal["text", "image", "audio", "video", "file"]


def _with_text(kinds: tuple[Input, ...]) -> tuple[Input, ...]:
    if "text" not in kinds:
        raise ValueError("should have 'text', and what the model takes beside it: image, audio, video, file")
    return kinds


class Model(Frozen):
    """A public model name: ``targets`` that serve it, or a ``cascade`` of other models."""

    targets: tuple[Target, ...] = ()
    cascade: tuple[Step, ...] = ()
    aliases: tuple[Name, ...] = ()
    select: Select = "weighted"
    regions: tuple[Name, ...] = ()
    """Regions of backends, the preferred first; backends of no region listed come last."""
    residency: tuple[Name, ...] = ()
    """Regions in which what is asked of it stays, whichever model answers; empty: anywhere."""
    fallbacks: tuple[Name, ...] = ()
    """Models that are asked, in this order, when every target has failed."""
    spill_over: bool = False
    """Ask a fallback, rather than wait, when every target's backend is full."""
    context: Count | None = None
    """Tokens of prompt and answer that the model takes."""
    input: Annotated[tuple[Input, ...], AfterValidator(_with_text)] | None = None
    """What it takes beside text; None is what the APIs of its backends take."""
    max_output: Count | None = None
    """Tokens that an answer of it has at most. A higher cap is lowered to that, and where a budget or quota affords as
    much, a request without a cap is sent without."""
    larger_context: Name | None = None
    """The model for what does not fit."""
    over_context: Literal["clip", "refuse"] = "clip"
    """What becomes of a ``max_tokens`` beyond what the prompt leaves of the context, where no larger one is left."""
    prefix_sharing: Sharing = "none"
    """What of their prompts' beginnings tenants may find computed by another: see ``gateway/prefix_sharing.py``."""
    shadow: Shadow | None = None
    split_by: SplitBy | None = None
    """What keeps the target that ``weighted`` drew for it. None is ``user`` where the targets name different models,
    and ``request`` where all are replicas of one."""
    rollout: Rollout | None = None
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()

    @model_validator(mode="after")
    def _one_way(self) -> Model:
        if bool(self.targets) == bool(self.cascade):
            raise ValueError("should have either 'targets' or 'cascade', with at least one entry")
        return self

    @property
    def places(self) -> tuple[Target, ...]:
        """The targets, and the one that is rolled out."""
        return self.targets if self.rollout is None else (*self.targets, self.rollout.target)

    @property
    def splits_by(self) -> SplitBy:
        if self.split_by is not None:
            return self.split_by
        return "user" if len({target.model for target in self.targets}) > 1 else "request"


Dollars = Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)]


class Price(Frozen):
    """US dollars for a million tokens. ``cached_input`` is as ``input`` when left out, ``reasoning`` as ``output``.

    ``cache_write`` is for what is put into the provider's prompt cache, ``cache_write_1h`` where it stays for an hour;
    left out, they are 1.25 and 2 times ``input``, as Anthropic bills. What is not, or not only, billed by tokens has a
    price for its own unit.
    """

    input: Dollars = 0.0
    output: Dollars = 0.0
    cached_input: Dollars | None = None
    reasoning: Dollars | None = None
    cache_write: Dollars | None = None
    cache_write_1h: Dollars | None = None
    audio_input: Dollars | None = None
    """Of what is sound in a prompt; left out, a budget refuses sound."""
    minute: Dollars | None = None
    """Of sound that is transcribed or translated."""
    million_characters: Dollars | None = None
    """Of text that is spoken."""
    image: Dollars | dict[Text, Dollars] | None = None
    """A picture; by quality and size (``high 1024x1024``), by quality, by size, or ``*`` for all others."""
    thousand_searches: Dollars | None = None
    """Of ranking documents: a query with up to a hundred short ones."""
    only_tokens: Annotated[bool, Field(strict=True)] = False
    """Speech, sound, pictures and ranks are billed by tokens too, and have no unit of their own."""

    @model_validator(mode="after")
    def _of_something(self) -> Price:
        given = self.model_fields_set
        if {"input", "output"} & given != {"input", "output"} and (self.by_tokens or not given & BY_UNIT):
            missing = "output" if "input" in given else "input"
            raise ValueError(f"'{missing}' is missing")
        if self.only_tokens and given & BY_UNIT:
            unit = min(given & BY_UNIT)
            raise ValueError(f"'{unit}' is a price of a unit, where 'only_tokens' says that there is none")
        return self

    @property
    def by_tokens(self) -> bool:
        return not self.model_fields_set.isdisjoint(BY_TOKENS)


BY_TOKENS = frozenset(
    {"input", "output", "cached_input", "reasoning", "cache_write", "cache_write_1h", "audio_input"}
)
BY_UNIT = frozenset({"minute", "million_characters", "image", "thousand_searches"})
