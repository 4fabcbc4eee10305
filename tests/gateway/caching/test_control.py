from __future__ import annotations

import pytest

from gateway.caching.control import Control, control


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", Control()),
        ("no-cache", Control(no_cache=True)),
        ("No-Store", Control(no_store=True)),
        ("max-age=30", Control(max_age=30.0)),
        ('max-age="30"', Control(max_age=30.0)),
        ("max-age=0, no-cache", Control(no_cache=True, max_age=0.0)),
        ("max-age", Control(max_age=0.0)),
        ("max-age=soon", Control(max_age=0.0)),
        ("max-age=-1", Control(max_age=0.0)),
        ("only-if-cached , max-stale=5,,no-transform", Control(only_if_cached=True)),
        ("no-cache=x, private", Control(no_cache=True)),
        ("???, no-store", Control(no_store=True)),
    ],
)
def test_directives(header: str, found: Control) -> None:
    assert control(header) == found
