"""``batches``: what ``/v1/batches`` takes, and what its lines may use."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.policy.schema.values import Frozen, Share, Timeout


class BatchSettings(Frozen):
    """Their state is where the ledger is, their files where ``files`` says."""

    enabled: bool = True
    """``false`` takes no new batch, and runs none: they wait until it is on again."""
    price_factor: Share = 0.5
    """Of what tokens cost by the price table."""
    max_utilization: Share = 0.5
    """Lines use a backend up to this share of it, what others use included; one may always run where nobody else
    does."""
    max_concurrency: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 64
    """Lines of one batch and model that run at once, of each worker, whatever room there is."""
    max_lines: Annotated[int, Field(strict=True, ge=1, le=50_000)] = 50_000
    """Of one batch."""
    keep: Timeout = 30 * 86_400.0
    """For how long a batch can be looked up, from when it was made."""
