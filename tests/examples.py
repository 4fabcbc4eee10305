"""How many examples property tests try: a sample by default, all with ``--hypothesis-profile=thorough``."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

SAMPLE, THOROUGH = "sample", "thorough"
FULL = 100
"""Examples of a test that names no number, in the thorough profile."""


def register_profiles() -> None:
    """The same examples every time, and no deadline: a busy machine must not turn a good test red."""
    for name, count in ((SAMPLE, FULL // 4), (THOROUGH, FULL)):
        settings.register_profile(
            name,
            max_examples=count,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        )


def examples(thorough: int) -> int:
    """The loaded profile's share of ``thorough`` examples, for ``settings(max_examples=...)``."""
    return max(1, thorough * settings().max_examples // FULL)
