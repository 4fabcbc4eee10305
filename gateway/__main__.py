"""The command ``tollgate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from gateway.cli import (
    backup,
    bench,
    check,
    drift,
    epp,
    evaluate,
    experiments,
    explain,
    imports,
    init,
    keys,
    operate,
    plan,
    record,
    replay,
    scaler,
    schema,
    serve,
    test,
    usage,
)
from gateway.settings import SettingsError
from gateway.version import version


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 it could not be done, 2 the arguments are wrong."""
    parser = argparse.ArgumentParser(
        prog="tollgate", description="An LLM API gateway with its own inference engine.", allow_abbrev=False
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        default=argparse.SUPPRESS,
        help="say which Tollgate this is, and leave",
    )
    commands = parser.add_subparsers(
        metavar="init|import|serve|check|test|evaluate|explain|record|replay|plan|schema|keys|usage|experiments|drift|backends|caches"
        "|policy|backup|restore|bench|scaler|epp",
        required=True,
    )
    for command in (
        init,
        imports,
        serve,
        check,
        test,
        evaluate,
        explain,
        record,
        replay,
        plan,
        schema,
        keys,
        usage,
        experiments,
        drift,
        operate,
        backup,
        bench,
        scaler,
        epp,
    ):
        command.add_parser(commands)
    arguments = parser.parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what a terminal cannot show must not stop us
            stream.reconfigure(errors="backslashreplace")
    try:
        return int(arguments.run(arguments))
    except SettingsError as error:
        sys.stderr.write(f"tollgate: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1


class _Version(argparse.Action):
    """Asks git only when it is asked itself."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"tollgate {version()}\n")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
