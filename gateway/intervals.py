"""Within what bounds a share lies of which so many cases tell."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(mean: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval (1927), two-sided, of a share or of a mean of values from 0 to 1, which scatter no more."""
    if count == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    # What is rounded leaves neither the mean nor what a share may be.
    return max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half))
