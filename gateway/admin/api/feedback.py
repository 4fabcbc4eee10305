"""``/admin/api/feedback``: what callers think of answers, by whom and of which models."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from pydantic import Field

from gateway.admin.api.operation import operation
from gateway.admin.api.usage import MONTH, Moment
from gateway.admin.endpoint import Handle, Request, Strict, Told
from gateway.admin.site import Site
from gateway.databases.database import DatabaseError
from gateway.errors import Overloaded
from gateway.feedback.table import Group
from gateway.web.operation import Operation


class FeedbackQuery(Strict):
    by: Annotated[tuple[Group, ...], Field(max_length=5)] = ("model",)
    since: Moment | None = None
    """30 days ago where it is not given."""
    until: Moment | None = None
    tenant: str | None = None
    model: str | None = None
    comments: Annotated[int, Field(ge=0, le=100)] = 0
    """So many of the newest that have a label or a comment."""


class FeedbackFigures(Told):
    tenant: str | None = None
    key: str | None = None
    model: str | None = None
    backend: str | None = None
    label: str | None = None
    count: int
    scored: int
    """Of these, how many gave a score."""
    mean: float | None = None
    """Of the scores, from 0 to 1."""
    low: float | None = None
    high: float | None = None
    """The mean's interval of 95 %."""


class OneFeedback(Told):
    request_id: str
    created: float
    tenant: str
    key: str
    model: str
    score: float | None = None
    label: str | None = None
    comment: str | None = None


class FoundFeedback(Told):
    rows: list[FeedbackFigures]
    comments: list[OneFeedback]


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> FoundFeedback:
        query = request.query(FeedbackQuery)
        table = request.context.runtime.feedback
        since = time.time() - MONTH if query.since is None else query.since
        asked: tuple[tuple[Group, str | None], ...] = (("tenant", query.tenant), ("model", query.model))
        equal = [(name, value) for name, value in asked if value is not None]
        try:
            found = await asyncio.to_thread(table.figures, query.by, since, query.until, equal)
            newest = (
                await asyncio.to_thread(table.comments, since, query.comments, equal)
                if query.comments
                else []
            )
        except DatabaseError as error:
            raise Overloaded(f"Feedback cannot be read now. {error}", retry_after=1.0) from None
        return FoundFeedback(
            rows=[
                FeedbackFigures(
                    **dict[str, Any](zip(query.by, one.group, strict=True)),
                    count=one.count,
                    scored=one.scored,
                    mean=one.mean,
                    low=one.low,
                    high=one.high,
                )
                for one in found
            ],
            comments=[
                OneFeedback(
                    request_id=one.request_id,
                    created=one.created,
                    tenant=one.tenant,
                    key=one.key_id,
                    model=one.model,
                    score=one.score,
                    label=one.label,
                    comment=one.comment,
                )
                for one in newest
            ],
        )

    about = "What callers think of answers: scores by model, and what they write"
    return [
        (
            operation(
                *("GET", "/feedback", "feedback", about, FoundFeedback), query=FeedbackQuery, errors=(503,)
            ),
            show,
        )
    ]
