"""The command ``python -m engine``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine import logs
from engine.arguments import add_serve
from engine.errors import StartupError
from engine.extras import install_command
from engine.fleet.flags import add_fleet, is_fleet, read_fleet
from engine.options import read_options
from engine.tool_arguments import (
    add_bench,
    add_draft_training,
    add_evaluation,
    add_quantization,
    add_rank,
    add_verification,
)
from engine.version import version


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m engine", description="Tollgate's bundled inference engine.")
    top.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        default=argparse.SUPPRESS,
        help="print the engine's version and exit",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    # Flags that are not given are left to the configuration classes: --help only repeats their defaults.
    serve = commands.add_parser(
        "serve", help="serve a model with OpenAI's API", argument_default=argparse.SUPPRESS
    )
    add_serve(serve)
    add_fleet(serve)
    serve.set_defaults(run=run_serve)
    rank = commands.add_parser(
        "rank",
        help="a rank on this host, for an engine on another (serve --nodes)",
        description="Listens until it is stopped. Rank 0 has to prove that it knows the secret.",
    )
    add_rank(rank)
    rank.set_defaults(run=run_rank)
    evaluation = commands.add_parser(
        "eval",
        help="what quantized weights and caches cost in quality",
        description="Exits 1 where a model is not shown, with 95 %% confidence, to be within the limits.",
    )
    add_evaluation(evaluation)
    evaluation.set_defaults(run=run_evaluation)
    quantization = commands.add_parser(
        "quantize",
        help="write a model with weights in 4 or 8 bits, by GPTQ, AWQ or SmoothQuant",
        description="Exits 1 where the model cannot be quantized so. python -m engine eval says what it lost.",
    )
    add_quantization(quantization)
    quantization.set_defaults(run=run_quantization)
    training = commands.add_parser(
        "train-draft",
        help="train an EAGLE-3 head or Medusa heads, which draft tokens for a model",
        description="Exits 1 where the model or the texts cannot be used.",
    )
    add_draft_training(training)
    training.set_defaults(run=run_draft_training)
    verification = commands.add_parser(
        "verify",
        help="whether each feature gives the same answers here as plain torch",
        description="Exits 1 where one does not; the last line then has the flags to serve without it.",
    )
    add_verification(verification)
    verification.set_defaults(run=run_verification)
    bench = commands.add_parser(
        "bench",
        help="how fast models of known shapes run here, beside vLLM or transformers where they are installed",
        description="Exits 1 where a row could not be measured.",
    )
    add_bench(bench)
    bench.set_defaults(run=run_bench)
    simulation = commands.add_parser(
        "simulate",
        help="the scheduler on a clock that is given: lines of JSON in and out, for tollgate plan",
        description="Reads lines of JSON from standard input and answers each with one. Needs no torch.",
    )
    simulation.set_defaults(run=run_simulation)
    return top


class _Version(argparse.Action):
    """Runs git only when the flag is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"engine {version()}\n")
        parser.exit()


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = vars(parser().parse_args(arguments))
    run = options.pop("run")
    try:
        if run is run_serve and is_fleet(options):
            check_packages()
            return run_fleet(options, arguments[arguments.index("serve") + 1 :])
        check_packages()
        return int(run(options))
    except StartupError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("engine", "kernels"):
            raise
        print(
            f"error: {error}. The engine's packages come with: {install_command('engine')}",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 130


def check_packages() -> None:
    """Raises ``StartupError`` where Hugging Face's package of that name has taken the place of ``kernels``."""
    import kernels

    if getattr(kernels, "__project__", "") != "tollgate":
        raise StartupError(
            f"The package kernels in {Path(kernels.__file__ or '?').parent} is not the engine's own: Hugging Face has "
            "one of the same name. Uninstall it (pip uninstall kernels) and install Tollgate again, or give each "
            "an environment of its own."
        )


def run_fleet(options: dict[str, Any], arguments: list[str]) -> int:
    config = read_fleet(options, arguments)
    from engine.fleet.serve import check, serve

    if options.get("check"):
        check(config.roster)
        return 0
    logs.set_up(str(options.get("log_level", "info")))
    return serve(config, lambda url: print(f"engine ready on {url}", flush=True))


def run_serve(options: dict[str, Any]) -> int:
    if options.pop("check", False):
        from engine.weights.source import on_this_machine

        read_options(options, find=on_this_machine)
        return 0
    logs.set_up(str(options.get("log_level", "info")))
    if find_spec("torch") is None:
        raise ModuleNotFoundError(
            "No module named 'torch'", name="torch"
        )  # told once, and not by its process, too
    from engine.begun_process import BegunProcess

    begun = BegunProcess()
    try:
        config = read_options(options)
        if config.engine.role is not None:  # told before the model is loaded, for minutes
            from engine.handover.handshake import read_secret

            read_secret(config.engine.handover_secret_file, os.environ)
        from engine.server.serve import serve

        return serve(config, lambda url: print(f"engine ready on {url}", flush=True), begun)
    finally:
        begun.end()


def run_rank(options: dict[str, Any]) -> int:
    logs.set_up(options["log_level"])
    from engine.nodes.address import parse_address
    from engine.nodes.host import serve
    from engine.nodes.proof import read_secret
    from engine.weights.source import locate

    address = parse_address(options["listen"], "--listen")
    secret = read_secret(options["nodes_secret"], "--nodes-secret")
    model = locate(options["model"])
    serve(address, model, secret, options["device"], lambda at: print(f"rank listens on {at}", flush=True))
    return 0


def run_evaluation(options: dict[str, object]) -> int:
    from engine.evaluation.run import run

    return run(options)


def run_quantization(options: dict[str, Any]) -> int:
    from engine.quantizer.run import run

    return run(options)


def run_draft_training(options: dict[str, Any]) -> int:
    from engine.drafts.run import run

    return run(options)


def run_verification(options: dict[str, Any]) -> int:
    from engine.verify.run import run

    return run(options)


def run_bench(options: dict[str, Any]) -> int:
    from engine.bench.run import run

    return run(options)


def run_simulation(_: dict[str, Any]) -> int:
    from engine.simulation.serve import run

    return run()


def leave_in_order(number: int, _: object) -> None:
    """SIGTERM ends a command as Ctrl-C does: what it made for its own use goes with it."""
    signal.signal(number, signal.SIG_IGN)  # one more would end the ending
    raise SystemExit(128 + number)


if __name__ == "__main__":
    if sys.argv[1:2] != ["serve"]:  # which drains at first
        signal.signal(signal.SIGTERM, leave_in_order)
    sys.exit(main())
