from __future__ import annotations

import pytest

from gateway.caching.cache_control import CacheControl, read_cache_control


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", CacheControl()),
        ("no-cache", CacheControl(no_cache=True)),
        ("No-Store", CacheControl(no_store=True)),
        ("max-age=30", CacheControl(max_age=30.0)),
        ('max-age="30"', CacheControl(max_age=30.0)),
        ("max-age=0, no-cache", CacheControl(no_cache=True, max_age=0.0)),
        ("max-age", CacheControl(max_age=0.0)),
        ("max-age=soon", CacheControl(max_age=0.0)),
        ("max-age=-1", CacheControl(max_age=0.0)),
        ("only-if-cached , max-stale=5,,no-transform", CacheControl(only_if_cached=True)),
        ("no-cache=x, private", CacheControl(no_cache=True)),
        ("???, no-store", CacheControl(no_store=True)),
    ],
)
def test_directives(header: str, found: CacheControl) -> None:
    assert read_cache_control(header) == found
