from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gateway.observe import logs
from gateway.observe.events import log_event
from gateway.settings import LogFormat, LogLevel


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    names = ("_srcfile", "logThreads", "logProcesses", "logMultiprocessing")
    switches = {name: getattr(logging, name) for name in names}
    yield
    for name, value in switches.items():
        setattr(logging, name, value)
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


def test_a_text_line_moves_no_cursor() -> None:
    stream = io.StringIO()
    logs.set_up("info", "text", stream)
    try:
        raise ValueError("over\r\x1b[2Jthe\tline \x9bé")
    except ValueError:
        logging.getLogger("gateway.some").exception("failed \x1b[31m")
    assert "failed \\x1b[31m\n    Traceback" in stream.getvalue()
    assert "    ValueError: over\\r\\x1b[2Jthe\tline \\x9bé\n" in stream.getvalue()


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


def test_an_events_fields_stand_beside_the_message() -> None:
    stream = io.StringIO()
    logs.set_up("info", "json", stream)
    log_event(logging.getLogger("gateway.some"), logging.INFO, "credentials_accepted", "fine again", "up")
    told = json.loads(stream.getvalue())
    assert list(told) == ["time", "level", "logger", "message", "event", "backend"]
    assert (told["message"], told["event"], told["backend"]) == ("fine again", "credentials_accepted", "up")


def test_below_the_level_nothing_is_written() -> None:
    assert len([line for line in written("error", "text") if not line.startswith("    ")]) == 1
