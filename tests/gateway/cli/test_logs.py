from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gateway.cli import logs
from gateway.settings import LogFormat, LogLevel


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def written(level: LogLevel, form: LogFormat) -> list[str]:
    stream = io.StringIO()
    logs.set_up(level, form, stream)
    log = logging.getLogger("gateway.some")
    log.debug("not for everyone")
    log.info("took %d ms", 3, extra={"model": "m"})
    try:
        raise ValueError("over\ntwo lines")
    except ValueError:
        log.exception("failed")
    logging.getLogger("httpx").info("chatter")
    return stream.getvalue().splitlines()


def test_text_has_one_record_a_line_and_the_rest_indented() -> None:
    first, second, *rest = written("info", "text")
    assert first.endswith(" INFO    gateway.some: took 3 ms")
    assert second.endswith(" ERROR   gateway.some: failed")
    assert rest and all(line.startswith("    ") for line in rest)


def test_json_has_one_object_a_line_with_the_extra_fields() -> None:
    debug, first, second = map(json.loads, written("debug", "json"))
    assert debug["level"] == "debug"
    assert (first["level"], first["logger"], first["message"], first["model"]) == (
        "info",
        "gateway.some",
        "took 3 ms",
        "m",
    )
    assert first["time"].endswith("+00:00")
    assert "ValueError: over\ntwo lines" in second["exception"]


def test_below_the_level_nothing_is_written() -> None:
    assert len([line for line in written("error", "text") if not line.startswith("    ")]) == 1
