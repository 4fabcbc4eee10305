"""``evaluation``: answers that a judge model scores after they were given."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.policy.schema.access import Budget
from gateway.policy.schema.values import Count, Frozen, Name, Share, Text

RUBRIC = (
    "The answer does what the request asks, is correct as far as can be told from the request and from general "
    "knowledge, claims nothing that it cannot know, and is as long as it needs to be."
)


class Evaluation(Frozen):
    """Who judges which answers, by what, and for how much. The house pays."""

    judge: Name
    """A public model, which is asked on idle capacity only."""
    rubric: Text | None = None
    share: Share = 0.01
    """Of the answers, by the requests' ids."""
    shadows: Share = 1.0
    """Of the answers that a shadow model gave, too, by the requests' ids: both are scored and compared."""
    models: Annotated[tuple[Text, ...], Field(min_length=1)] = ("*",)
    """Public models whose answers are judged, as patterns."""
    excluded_tenants: tuple[Text, ...] = ()
    """Whose requests no judge sees, as patterns."""
    budget: Budget = Budget(usd_per_day=1.0)
    """Of all gateways of one ``store`` together."""
    max_tokens: Count = 1024
    """Of one reply of the judge."""
    queue: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 200
    """Answers that wait to be judged, in each worker. Further ones are not judged."""
    texts: Literal["none", "masked"] = "none"
    """``masked``: of what shadows answered, question and both answers are kept, to be read."""

    @property
    def asked_for(self) -> str:
        """The rubric, or the one that stands in for it."""
        return self.rubric or RUBRIC

    @model_validator(mode="after")
    def _ends(self) -> Evaluation:
        if self.budget == Budget():
            raise ValueError("'budget' should have 'usd_per_day' or 'usd_per_month': nobody else bounds it")
        return self
