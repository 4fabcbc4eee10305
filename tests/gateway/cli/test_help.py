"""Each command tells what it takes: argparse formats help when it is asked for, and then raises at a stray ``%``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from gateway.__main__ import main


class Built(Exception):
    """Carries the parser out before it reads anything."""


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def test_every_command_has_help(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(parser: argparse.ArgumentParser, *_: object) -> None:
        raise Built(parser)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    with pytest.raises(Built) as built:
        main([])
    found = {parser.prog: parser.format_help() for parser in parsers(built.value.args[0])}
    assert {"tollgate", "tollgate evaluate", "tollgate keys create", "tollgate record export"} <= found.keys()
    assert all("--help" in text for text in found.values())
