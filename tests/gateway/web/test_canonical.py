"""The paths that clients make of a base URL that is not quite right, and Azure's."""

from __future__ import annotations

import pytest

from gateway.children.process_pool import ProcessPool
from gateway.observe.metrics import Metrics
from gateway.runtime.background_requests import BackgroundRequests
from gateway.web import routes
from gateway.web.canonical import UNVERSIONED, canonical
from gateway.web.operator_token import OperatorToken
from gateway.web.router import EndpointRouter
from gateway.web.unsupported_paths import INSTEAD, explanation
from gateway.wire.responses.sealed import SummarySeal


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/models", "/v1/models"),
        ("/models/org/name", "/v1/models/org/name"),
        ("/v1/models/org/name/", "/v1/models/org/name"),
        ("/v1/models/v1/v1/x", "/v1/models/v1/v1/x"),
        ("/openai/v1/chat/completions", "/v1/chat/completions"),
        ("/openai/models", "/v1/models"),
        ("/healthz/", "/healthz"),
        ("/", "/"),
        ("//", "/"),
        ("/v1/", "/v1"),
        ("/no/such//path", "/no/such/path"),
        ("/metrics/../v1/models", "/metrics/../v1/models"),
        ("/openai/healthz", "/openai/healthz"),
    ],
)
def test_what_is_meant(path: str, expected: str) -> None:
    assert canonical(path) == (expected, None)
    assert canonical(expected) == (expected, None)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/openai/deployments/gpt/chat/completions", ("/v1/chat/completions", "gpt")),
        ("/openai/deployments/gpt/completions/", ("/v1/completions", "gpt")),
        ("/openai/deployments/org/gpt/embeddings", ("/v1/embeddings", "org/gpt")),
        ("//openai//deployments/gpt/chat/completions", ("/v1/chat/completions", "gpt")),
        (
            "/openai/deployments/chat/completions",
            ("/v1/completions", "chat"),
        ),
        ("/openai/deployments/gpt/images/generations", ("/v1/images/generations", "gpt")),
        ("/openai/deployments/tts/audio/speech", ("/v1/audio/speech", "tts")),
        (
            "/openai/deployments/gpt/videos/generations",
            ("/openai/deployments/gpt/videos/generations", None),
        ),
    ],
)
def test_azures_paths_name_the_model(path: str, expected: tuple[str, str | None]) -> None:
    assert canonical(path) == expected


def served() -> list[str]:
    return [
        route.path
        for route in routes.build(
            Metrics(),
            ProcessPool(),
            OperatorToken(None),
            BackgroundRequests(),
            SummarySeal("secret"),
            max_body=1,
            heartbeat=1,
        )
    ]


def test_every_path_under_v1_may_come_without_it() -> None:
    assert {path.split("/")[2] for path in served() if path.startswith("/v1/")} == UNVERSIONED


def test_nothing_that_is_served_is_said_not_to_be() -> None:
    assert not [p for p in served() for start in INSTEAD if p == start or p.startswith(start + "/")]


@pytest.mark.parametrize("start", INSTEAD)
def test_what_is_not_served_names_what_is(start: str) -> None:
    paths = EndpointRouter(
        routes.build(
            Metrics(),
            ProcessPool(),
            OperatorToken(None),
            BackgroundRequests(),
            SummarySeal("secret"),
            max_body=1,
            heartbeat=1,
        ),
        lambda router: None,
    )  # type: ignore[arg-type,return-value]
    for path in (start, f"{start}/more"):
        said = explanation(path, paths._served)
        assert f"'{path}'" in said
        assert " is not served. Instead, " in said
    assert "POST /v1/chat/completions" in explanation("/v1/nonsense", paths._served)
    assert "GET /v1/models" in explanation(start + "less", paths._served)
