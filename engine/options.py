"""Parsed flags to a ``ServerConfig``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from engine.config import EngineConfig, ServerConfig


def read_options(options: dict[str, object], *, find: Callable[[str], Path] | None = None) -> ServerConfig:
    """``find`` takes the place of ``engine.weights.source.locate``.

    Raises ``StartupError`` for a value that makes no sense, or a model that cannot be found.
    """
    from engine.weights.source import DEMO, DEMO_DRAFT, locate

    find = find or locate
    rest = dict(options)
    model = str(rest.pop("model")).rstrip("/")
    name = str(
        rest.pop("served_model_name", "")
        or (Path(model).name.removesuffix(".gguf") if Path(model).exists() else model)
    )
    server = {
        key: rest.pop(key)
        for key in (
            "host",
            "port",
            "max_body_bytes",
            "drain_timeout",
            "step_timeout",
            "write_timeout",
            "over_context",
            "max_string_length",
        )
        if key in rest
    }
    if "adapters" in rest:
        rest["adapters"] = tuple(cast(list[tuple[str, Path]], rest["adapters"]))
    if "context_caps" in rest:
        rest["context_caps"] = tuple(cast(list[tuple[int, int]], rest["context_caps"]))
    if "draft_model" in rest:
        draft = str(rest["draft_model"])
        rest["draft_model"] = find(DEMO_DRAFT if draft == DEMO else draft)
        rest.setdefault("speculation", "draft")
    return ServerConfig(engine=EngineConfig(model=find(model), **rest), served_model_name=name, **server)  # type: ignore[arg-type]
