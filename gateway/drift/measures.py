"""What is looked at of each model and route, and how it is counted: all of it as counts by bin, which add up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from gateway.experiments.sketch import ERROR
from gateway.sidecar.api import PROJECTED, PROJECTION_STEP

Kind = Literal["number", "position", "share", "kind"]
"""``number``: positive, in bins of ``gateway.experiments.sketch``, to within 2 %. ``position``: of a projection, in
steps of
``gateway.sidecar.api.PROJECTION_STEP``. ``share``: yes (1) or no (0). ``kind``: by name."""

MEASURES: Mapping[str, Kind] = {
    "prompt_tokens": "number",
    "completion_tokens": "number",
    "first_token": "number",
    "inter_token": "number",
    "seconds": "number",
    "cost": "number",
    "refusals": "share",
    "json_failures": "share",
    "languages": "kind",
    **{f"embedding_{number}": "position" for number in range(PROJECTED)},
}
_LOG_GAMMA = math.log((1 + ERROR) / (1 - ERROR))


def value_of(kind: Kind, place: float) -> float:
    """What a (mean) bin stands for, in the measure's own unit."""
    match kind:
        case "number":
            return math.exp((place - 0.5) * _LOG_GAMMA)
        case "position":
            return place * PROJECTION_STEP
        case _:
            return place
