from __future__ import annotations

from typing import Any

import pytest

from gateway.backends.model_readiness import ModelReadiness
from tests.fakes import policy

BACKENDS = {
    "engine": {"kind": "engine", "base_url": "http://127.0.0.1:1"},
    "second": {"kind": "engine", "base_url": "http://127.0.0.1:2"},
    "provider": {"kind": "openai", "base_url": "http://127.0.0.1:3/v1"},
    "script": {"kind": "fake", "script": [{"reply": "Hi"}]},
    "embedder": {"kind": "sidecar"},
}
DOWN = {"engine": "gone", "second": "gone", "provider": "gone", "script": None, "embedder": None}


def standing(enabled: set[str] | None = None, **models: Any) -> ModelReadiness:
    """``m="engine"`` is a model with one target there; a mapping is written as it is."""
    written = {
        name: {"targets": [{"backend": model, "model": "x"}]} if isinstance(model, str) else model
        for name, model in models.items()
    }
    disabled = {name: "it is drained" for name in BACKENDS if enabled is not None and name not in enabled}
    return ModelReadiness(policy(backends=BACKENDS, models=written, drained=[*disabled]), disabled)


def on(backend: str, **more: Any) -> dict[str, Any]:
    return {"targets": [{"backend": backend, "model": "x"}], **more}


@pytest.mark.parametrize(
    ("models", "missing"),
    [
        ({"chat": "engine"}, ("engine",)),
        ({"chat": "engine", "hello": "script"}, ("engine",)),
        ({"chat": "engine", "vectors": "embedder"}, ("engine",)),
        ({"chat": "engine", "more": "second"}, ("engine", "second")),
        ({"chat": on("engine", fallbacks=["hello"]), "hello": "script"}, ("engine",)),
        ({"chat": "engine", "other": "provider"}, ()),
        ({"chat": on("engine", fallbacks=["other"]), "other": "provider"}, ()),
        ({"other": "provider"}, ()),
        ({"hello": "script", "vectors": "embedder"}, ()),
    ],
)
def test_what_a_gateway_cannot_do_without(models: dict[str, Any], missing: tuple[str, ...]) -> None:
    assert standing(**models).missing(DOWN) == missing
    assert standing(**models).missing({**DOWN, "engine": None}) == ()


def test_a_backend_that_no_model_names_is_missed_by_nobody() -> None:
    assert standing(chat="engine", hello="script").missing({**DOWN, "second": None}) == ("engine",)
    assert standing(hello="script").missing(DOWN) == ()


def test_each_model_stands_on_its_targets_fallbacks_and_steps() -> None:
    told = standing(
        alone="engine",
        helped=on("engine", fallbacks=["hello"]),
        row={"cascade": [{"model": "alone"}, {"model": "hello"}]},
        lost={"cascade": [{"model": "alone"}, {"model": "far"}]},
        far="provider",
        hello="script",
    ).models(DOWN)
    assert told == {
        "alone": "engine: gone",
        "helped": None,
        "row": None,
        "lost": "engine: gone; provider: gone",
        "far": "provider: gone",
        "hello": None,
    }


def test_a_ring_of_fallbacks_ends() -> None:
    ring = standing(a=on("engine", fallbacks=["b"]), b=on("second", fallbacks=["a"]))
    assert ring.models(DOWN) == {"a": "engine: gone; second: gone", "b": "second: gone; engine: gone"}


def test_a_disabled_backend_holds_nothing() -> None:
    told = standing({"script"}, far="provider", hello="script").models({"script": None})
    assert told == {"far": "provider: it is drained", "hello": None}


@pytest.mark.parametrize(
    ("enabled", "missing"),
    [
        ({"script", "second"}, ()),
        ({"script", "embedder"}, ("engine", "provider")),
        (set(), ("engine", "provider")),
    ],
    ids=["one answers", "scripts", "nothing"],
)
def test_what_is_drained_is_missed_where_nothing_else_answers(
    enabled: set[str], missing: tuple[str, ...]
) -> None:
    models = {"chat": "engine", "far": "provider", "hello": "script"}
    if "second" in enabled:
        models["more"] = "second"
    assert standing(enabled, **models).missing({"script": None, "second": None}) == missing


def test_what_was_never_set_up_is_not_missed() -> None:
    rules = policy(backends=BACKENDS, models={"far": on("provider"), "hello": on("script")})
    assert ModelReadiness(rules, {"provider": "KEY is not set"}).missing({"script": None}) == ()
