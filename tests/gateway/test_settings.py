from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings import Settings, SettingsError


def test_defaults() -> None:
    settings = Settings.from_env({})
    assert settings == Settings()
    assert (settings.policies, settings.host, settings.port, settings.workers) == (
        Path("policies"),
        "127.0.0.1",
        8000,
        1,
    )


def test_a_variable_set_to_nothing_counts_as_unset() -> None:
    assert Settings.from_env(dict.fromkeys(Settings().to_env(), "")) == Settings()


@given(
    st.builds(
        Settings,
        policies=st.just(Path("/etc/tollgate")),
        host=st.sampled_from(["::", "0.0.0.0"]),
        port=st.integers(0, 65535),
        workers=st.integers(1, 64),
        log_level=st.sampled_from(["debug", "error"]),
        log_format=st.sampled_from(["text", "json"]),
        shutdown_delay=st.floats(0, 3600),
        drain_timeout=st.floats(0, 3600),
        max_body_bytes=st.integers(1, 2**30),
        heartbeat=st.floats(0, 3600),
        read_timeout=st.floats(1, 3600),
        write_timeout=st.floats(1, 3600),
        max_connections=st.integers(0, 2**20),
        max_unauthenticated=st.integers(0, 2**20),
        max_unauthenticated_per_address=st.integers(0, 2**20),
        watchdog=st.floats(0, 3600),
        metrics_token=st.sampled_from([None, "t"]),
        session_secret=st.sampled_from([None, "s" * 32]),
        metrics_tenants=st.booleans(),
        metrics_age=st.floats(0, 3600),
        state_dir=st.just(Path("/var/lib/tollgate")),
        dev_key_sha256=st.sampled_from([None, "a" * 64]),
        last_good=st.sampled_from([None, Path("/tmp/x")]),
        worker=st.integers(1, 64),
        draining=st.sampled_from([None, Path("/tmp/l")]),
        slots=st.sampled_from([None, Path("/tmp/slots")]),
        in_force=st.sampled_from([None, Path("/tmp/t")]),
        sidecar=st.sampled_from([None, Path("/tmp/s")]),
    )
)
def test_settings_survive_the_environment(settings: Settings) -> None:
    assert Settings.from_env(settings.to_env()) == settings
    assert len(settings.to_env()) == len(fields(Settings))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TOLLGATE_PORT", "eighty", "TOLLGATE_PORT must be a whole number from 0 to 65535, not 'eighty'"),
        ("TOLLGATE_PORT", "65536", "TOLLGATE_PORT must be a whole number"),
        ("TOLLGATE_WORKERS", "0", "TOLLGATE_WORKERS must be a whole number from 1 to 1024, or 'auto', not"),
        ("TOLLGATE_WORKERS", "٣", "TOLLGATE_WORKERS must be a whole number from 1 to 1024, or 'auto', not"),
        ("TOLLGATE_LOG_LEVEL", "loud", "TOLLGATE_LOG_LEVEL must be one of debug, info, warning, error, not 'loud'"),
        ("TOLLGATE_LOG_FORMAT", "xml", "TOLLGATE_LOG_FORMAT must be one of text, json"),
        ("TOLLGATE_DRAIN_TIMEOUT", "nan", "TOLLGATE_DRAIN_TIMEOUT must be a number of seconds"),
        ("TOLLGATE_DRAIN_TIMEOUT", "-1", "TOLLGATE_DRAIN_TIMEOUT must be a number of seconds"),
        ("TOLLGATE_WRITE_TIMEOUT", "0", "TOLLGATE_WRITE_TIMEOUT must be a number of seconds from 1"),
        ("TOLLGATE_MAX_CONNECTIONS", "-1", "TOLLGATE_MAX_CONNECTIONS must be a whole number from 0"),
        ("TOLLGATE_DEV_KEY_SHA256", "abc", "TOLLGATE_DEV_KEY_SHA256 must be a SHA-256"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_names_its_variable(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.from_env({name: value})
