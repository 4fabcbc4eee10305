"""The command ``python -m engine``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from engine.config import EngineConfig, ServerConfig, parse_bytes
from engine.errors import StartupError
from engine.version import version


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m engine", description="Tollgate's bundled inference engine.")
    top.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        default=argparse.SUPPRESS,
        help="say which engine this is, and leave",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a model with OpenAI's API",
        argument_default=argparse.SUPPRESS,
    )
    # What is not given is left to the configuration classes: --help only repeats their defaults in words.
    add = serve.add_argument
    add("--model", required=True, help="'demo', a folder, a .gguf file, or a Hugging Face hub id")
    add("--served-model-name", help="the model's name in the API (default: --model, or its folder's name)")
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, help="port to listen on; 0 picks a free one (default: 8100)")
    add("--device", help="auto, cpu or cuda (default: auto)")
    add("--dtype", choices=["auto", "float32", "bfloat16", "float16"], help="compute dtype (default: auto)")
    add(
        "--quantization",
        choices=["int8", "int4", "int4-64", "int4-128", "fp8"],
        help="keep the weights in fewer bits (default: as the checkpoint has them); fp8 needs a GPU that has it",
    )
    add(
        "--kv-cache-dtype",
        choices=["auto", "int8", "fp8"],
        help="keep keys and values in fewer bits (default: auto, the compute dtype)",
    )
    add(
        "--threads",
        type=int,
        help="CPU threads of the matrix products (default: 1 for a small model, else all cores)",
    )
    add("--max-num-seqs", type=int, help="sequences computed together (default: 64, on a GPU 256)")
    add("--max-batched-tokens", type=int, help="token budget of one step (default: 512, on a GPU 2048)")
    add(
        "--prefill-stretch",  # the name up to 0.2, kept for one release
        "--max-itl-ratio",
        dest="max_itl_ratio",
        type=float,
        help="how many times as long a step may take that computes prompts beside running streams; 0: no bound "
        "(default: 2)",
    )
    add("--max-waiting", type=int, help="requests that may wait before new ones get a 503 (default: 512)")
    add(
        "--priority-ageing",
        type=float,
        help="seconds of waiting that count as much as one more of priority (default: 10)",
    )
    add("--max-model-len", type=int, help="longest context in tokens (default: the model's)")
    add("--block-size", type=int, help="tokens a KV block (default: 16)")
    add("--kv-cache-blocks", type=int, help="size of the KV cache in blocks")
    add("--kv-cache-memory", type=_bytes, help="size of the KV cache, such as 512MiB (default: what fits)")
    add(
        "--context-cap",
        dest="context_caps",
        action="append",
        type=_cap,
        metavar="PRIORITY=TOKENS",
        help="the longest context of requests up to this priority; may be given several times",
    )
    add(
        "--no-prefix-caching",
        dest="prefix_caching",
        action="store_false",
        help="compute every prompt anew",
    )
    add(
        "--enforce-eager",
        dest="cuda_graphs",
        action="store_false",
        help="do not record decode steps as CUDA graphs",
    )
    add(
        "--kernels",
        choices=["auto", "triton", "reference"],
        help="which kernels compute: reference is plain torch, on any device (default: as TOLLGATE_KERNELS says, else "
        "auto)",
    )
    add(
        "--no-chunked-prefill",
        dest="chunked_prefill",
        action="store_false",
        help="compute each prompt in one step, which --max-batched-tokens has to hold",
    )
    add(
        "--no-preemption",
        dest="preemption",
        action="store_false",
        help="take no seat or block from a request: as many sequences as have blocks at full length",
    )
    add(
        "--speculation",
        choices=["off", "ngram", "draft"],
        help="who guesses tokens ahead: nobody, the text so far, or --draft-model (default: off)",
    )
    add("--draft-model", help="the small model that guesses: 'demo', a folder, a .gguf file, or a hub id")
    add(
        "--deterministic",
        action="store_true",
        help="the same tokens and logprobs to the bit, however requests are batched, chunked, preempted or guessed at",
    )
    add("--max-drafts", type=int, help="most guesses a step and request (default: 4)")
    add(
        "--check-integrity",
        action="store_true",
        help="prove after every step that no KV block is lost; for debugging",
    )
    add(
        "--adapter",
        dest="adapters",
        action="append",
        type=_adapter,
        metavar="NAME=FOLDER",
        help="a LoRA adapter to load and to serve under NAME; may be given several times",
    )
    add(
        "--max-adapters",
        type=int,
        help="LoRA adapters loaded at a time; lets clients load them (default: those given by --adapter)",
    )
    add("--max-adapter-rank", type=int, help="highest rank of a LoRA adapter (default: 64)")
    add(
        "--tensor-parallel",
        type=int,
        help="processes that share the model, each on a GPU of its own (default: 1)",
    )
    add(
        "--over-context",
        choices=["clip", "refuse"],
        help="what becomes of a max_tokens beyond what the prompt leaves of the context (default: clip)",
    )
    add(
        "--max-string-length",
        type=int,
        help="characters of a string in a forced tool call whose schema does not bound it; 0: no bound (default: half "
        "as many as the context has tokens)",
    )
    add("--max-body-bytes", type=_bytes, help="largest request body (default: 8MiB)")
    add(
        "--drain-timeout",
        type=float,
        help="seconds for running requests to finish after SIGTERM (default: 30)",
    )
    add(
        "--step-timeout",
        type=float,
        help="seconds without a step, though requests are open, after which the engine ends with an error, to be "
        "started anew; 0: never (default: 300)",
    )
    add(
        "--write-timeout",
        type=float,
        help="seconds that a client may take next to nothing of its answer before it is let go; 0: for ever "
        "(default: 30)",
    )
    add("--log-level", choices=["debug", "info", "warning", "error"], help="(default: info)")
    add("--check", action="store_true", help="only say whether these options are sound, and leave")
    serve.set_defaults(run=run_serve)
    add_evaluation(commands.add_parser("eval", help="what weights and caches in fewer bits cost"))
    add_verification(
        commands.add_parser(
            "verify",
            help="whether each feature says here what plain torch says",
            description="Exits 1 where one does not; the last line then has the flags to serve without it.",
        )
    )
    add_bench(
        commands.add_parser(
            "bench",
            help="how fast models of known shapes run here, beside vLLM or transformers where they are installed",
            description="Exits 1 where a row could not be measured.",
        )
    )
    return top


class _Version(argparse.Action):
    """Asks git only when it is asked itself."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(f"engine {version()}\n")
        parser.exit()


def main(arguments: list[str] | None = None) -> int:
    options = vars(parser().parse_args(arguments))
    run = options.pop("run")
    try:
        check_packages()
        return int(run(options))
    except StartupError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("engine", "kernels"):
            raise
        print(
            f"error: {error}. The engine's packages come with: pip install 'tollgate[engine]'",
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
            "one of the same name. Uninstall it (pip uninstall kernels) and install tollgate again, or give each "
            "an environment of its own."
        )


def add_evaluation(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model",
        default="demo",
        help="'demo' (the default), a folder, a .gguf file, or a Hugging Face hub id",
    )
    add("--text", type=Path, help="a text to predict (needed for all but the demo model)")
    add("--count", type=int, default=300, help="held-out conversations of the demo model (default: 300)")
    add("--quantization", help="measure this alone: int8, int4, int4-64 or int4-128 (default: all)")
    add("--kv-cache-dtype", choices=["int8", "fp8"], help="measure this alone (default: all)")
    add("--json", action="store_true", help="print JSON instead of a table")
    parser.set_defaults(run=run_evaluation)


def add_bench(parser: argparse.ArgumentParser) -> None:
    models = ["qwen3-0.6b", "qwen3-1.7b", "llama-3-8b"]
    add = parser.add_argument
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add(
        "--models",
        nargs="+",
        choices=models,
        default=models,
        help="shapes, with random weights (default: all)",
    )
    add("--batches", nargs="+", type=int, help="answers at once (default: 1 8 64 256)")
    add("--prompt", type=int, help="tokens of a prompt (default: 256)")
    add("--answer", type=int, help="tokens of an answer (default: 128)")
    add("--rivals", nargs="+", choices=["vllm", "transformers", "none"], default=["vllm", "transformers"])
    add(
        "--variants",
        nargs="+",
        choices=["eager", "int4", "int8", "fp8", "none"],
        default=["eager", "int4", "int8", "fp8"],
        help="what is measured of the engine besides, with few answers",
    )
    add("--layers", type=int, help="fewer than the shape has")
    add("--seconds", type=float, default=540, help="begin no row after these (default: 540)")
    add("--folder", type=Path, help="keeps the weights for the next run (20 GB)")
    add(
        "--json",
        type=Path,
        help="write the rows there, as they come; those that stand there are not measured again",
    )
    add("--markdown", type=Path, help="write the table there, as it comes")
    add("--dry-run", action="store_true", help="with --device cpu: tiny shapes, to try the command")
    parser.set_defaults(run=run_bench)


def run_bench(options: dict[str, Any]) -> int:
    from engine.bench.run import run

    return run(options)


def add_verification(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="demo", help="'demo' (the default), a folder, or a Hugging Face hub id")
    add("--device", default="auto", help="auto, cpu or cuda (default: auto)")
    add("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"], help="(default: auto)")
    add("--only", nargs="+", metavar="WORD", help="features whose names have one of these")
    add("--tokens", type=int, default=24, help="of each answer (default: 24)")
    add("--jobs", type=int, help="processes at a time (default: half the cores, 6 at most)")
    add("--seconds", type=float, default=280, help="begin nothing after these (default: 280)")
    add("--json", type=Path, help="write the rows there, as they come")
    add("--markdown", type=Path, help="write the table there, as it comes")
    parser.set_defaults(run=run_verification)


def run_verification(options: dict[str, Any]) -> int:
    from engine.verify.run import run

    return run(options)


def run_evaluation(options: dict[str, object]) -> int:
    from engine.evaluate import run

    return run(options)


def run_serve(options: dict[str, object]) -> int:
    if options.pop("check", False):
        from engine.weights.source import on_this_machine

        read_options(options, find=on_this_machine)
        return 0
    logging.basicConfig(
        level=str(options.get("log_level", "info")).upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config = read_options(options)
    from engine.server.serve import serve

    return serve(config, lambda url: print(f"engine ready on {url}", flush=True))


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


def _adapter(text: str) -> tuple[str, Path]:
    name, separator, folder = text.partition("=")
    if not (name and separator and folder):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER")
    return name, Path(folder).expanduser().absolute()


def _cap(text: str) -> tuple[int, int]:
    priority, found, tokens = text.partition("=")
    try:
        if not found:
            raise ValueError
        return int(priority), int(tokens)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not PRIORITY=TOKENS such as 0=4096") from None


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
