"""The command ``tollgate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata

from gateway.cli import check, keys, serve, usage


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 it could not be done, 2 the arguments are wrong."""
    parser = argparse.ArgumentParser(
        prog="tollgate", description="An LLM API gateway with its own inference engine.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"tollgate {_version()}")
    commands = parser.add_subparsers(metavar="serve|check|keys|usage", required=True)
    for command in (serve, check, keys, usage):
        command.add_parser(commands)
    arguments = parser.parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what a terminal cannot show must not stop us
            stream.reconfigure(errors="backslashreplace")
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1


def _version() -> str:
    try:
        return metadata.version("tollgate")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
