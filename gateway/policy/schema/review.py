"""``review``: a sample of what guards have found, for people to read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.policy.schema.values import Count, Frozen, Share, Size, Text


class ReviewSettings(Frozen):
    """A sample of what guards that only flag have found, for people to read: one JSON object a line."""

    enabled: bool = False
    path: Text = "findings.jsonl"
    """A relative path begins at the state folder."""
    share: Share = 1.0
    """Of the requests in which something was found."""
    per_minute: Count = 60
    """Requests and answers of each guard, by each worker, of which something is written."""
    context: Annotated[int, Field(strict=True, ge=0, le=1000)] = 80
    """Characters before and after a finding."""
    max_bytes: Size = 16 * 2**20
    """Of the file and the one before it."""

    def is_sampled(self, fraction: float) -> bool:
        """``fraction`` is a request's own, 0 to 1."""
        return self.enabled and fraction < self.share
