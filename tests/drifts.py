"""What a gateway knows of a measure once some weeks have been judged, for tests."""

from __future__ import annotations

from gateway.drift.detector import Usual
from gateway.drift.moments import Excess, Moments


def settled() -> Usual:
    """Hours differ by chance alone."""
    return Usual(
        Excess(weeks=2), Moments([1.0, 3.0, 1.0], weeks=1), Excess(weeks=2), Moments([0.0, 1.0, 0.0], weeks=1)
    )
