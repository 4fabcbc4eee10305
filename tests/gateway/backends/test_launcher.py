from __future__ import annotations

import sys
from pathlib import Path

from gateway.backends.launcher import launch, launches
from gateway.policy.loader import Loaded
from gateway.policy.schema import EngineBackend, Policy


def test_the_command_comes_from_the_policy() -> None:
    backend = EngineBackend(
        kind="engine",
        base_url="http://127.0.0.1:8123",
        launch=True,
        model="my/model",
        args=("--threads", "2"),
    )
    found = launch("bundled", backend)
    assert found.argv == (
        *(sys.executable, "-m", "engine", "serve", "--model", "my/model"),
        *("--served-model-name", "my/model"),
        *("--host", "127.0.0.1", "--port", "8123", "--threads", "2"),
    )


def test_an_address_of_ipv6_and_a_url_without_port() -> None:
    argv = launch("e", EngineBackend(kind="engine", base_url="http://[::1]", launch=True)).argv
    assert argv[argv.index("--host") + 1 :][:1] == ("::1",)
    assert argv[argv.index("--port") + 1] == "80"


def test_only_enabled_engines_that_are_to_be_launched_are() -> None:
    policy = Policy.model_validate(
        {
            "version": 1,
            "backends": {
                "yes": {"kind": "engine", "launch": True},
                "no": {"kind": "engine"},
                "off": {"kind": "engine", "launch": True, "base_url": "http://127.0.0.1:1"},
                "far": {"kind": "openai", "base_url": "http://far/v1"},
            },
            "models": {"m": {"targets": [{"backend": "yes", "model": "m"}]}},
        }
    )
    loaded = Loaded(policy, {"off": "for a reason"}, "", (Path("gateway.yaml"),))
    assert list(launches(loaded)) == ["yes"]
