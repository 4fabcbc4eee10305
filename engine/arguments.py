"""The flags of ``python -m engine serve``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from engine.config import parse_bytes
from engine.handover.address import parse_address


def add_serve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--model",
        action="append",
        help="'demo', a folder, a .gguf file, s3://BUCKET/PREFIX or a .gguf there, or a Hugging Face hub id; given "
        "several times, as many models are served, in processes of their own",
    )
    add("--served-model-name", help="the model's name in the API (default: --model, or its folder's name)")
    add(
        "--task",
        choices=["auto", "generate", "embed", "score"],
        help="what the model is for, where its files do not tell (default: auto, as they say)",
    )
    add(
        "--matryoshka",
        action="store_const",
        const=True,
        help="let requests cut an embedding model's vectors by 'dimensions', where its files do not say that it was "
        "trained for that",
    )
    add(
        "--any-model-name",
        action="store_const",
        const=True,
        help="take any name in 'model' for the model's, unless there may be adapters, whose names are told apart",
    )
    add("--host", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, help="port to listen on; 0 picks a free one (default: 8100)")
    add("--uds", type=Path, metavar="PATH", help="listen on a Unix socket, and at no address")
    add(
        "--leave-with-stdin",
        action="store_true",
        help="leave when standard input ends: for whoever starts the engine as a child",
    )
    add(
        "--sleep-mode",
        action="store_true",
        help="serve /sleep, /wake_up and /is_sleeping, by which any client can have the model give memory back",
    )
    add("--device", help="auto, cpu or cuda (default: auto)")
    add("--dtype", choices=["auto", "float32", "bfloat16", "float16"], help="compute dtype (default: auto)")
    add(
        "--quantization",
        choices=["int8", "w8a8", "int4", "int4-64", "int4-128", "fp8"],
        help="quantize the weights to 8 or 4 bits (default: as the checkpoint has them); fp8 needs a GPU that "
        "supports it",
    )
    add(
        "--weights-cache",
        metavar="auto|off|FOLDER",
        help="where weights that had to be converted are kept for the next start; auto: beside the model, or in the "
        "user's cache where that cannot be written (default: auto)",
    )
    add(
        "--digest",
        dest="digests",
        action="append",
        type=_digest,
        metavar="[NAME=]SHA256",
        help="refuse a model whose weights, or whose file NAME, have another SHA-256; may be given several times",
    )
    add(
        "--kv-cache-dtype",
        choices=["auto", "int8", "fp8", "int4"],
        help="quantize keys and values to 8 or 4 bits (default: auto, the compute dtype)",
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
        "--host-kv-memory",
        type=_bytes,
        help="host memory for copies of KV blocks, from which they come back where the KV cache has evicted them, such "
        "as 8GiB (default: none)",
    )
    add(
        "--disk-kv",
        metavar="DIR",
        type=_folder,
        help="where further copies are kept in a file, which the next start finds again (default: none)",
    )
    add("--disk-kv-size", type=_bytes, help="largest size of that file (default: 10GiB)")
    add(
        "--disk-kv-unused",
        type=_bytes,
        help="what such files that no engine uses any more may take in the folder (default: 4 times --disk-kv-size)",
    )
    add(
        "--role",
        choices=["prefill", "decode", "both"],
        help="prefill: compute prompts for other engines; decode: have prompts computed by others; both (default: "
        "everything by itself)",
    )
    add(
        "--handover-address",
        metavar="ADDRESS",
        type=_address,
        help="where other engines ask for the KV blocks of their prompts: tcp://HOST:PORT or unix:///PATH",
    )
    add(
        "--handover-secret-file",
        metavar="FILE",
        type=_folder,
        help="with what all these engines know, 16 bytes or more (default: what TOLLGATE_HANDOVER_SECRET has)",
    )
    add(
        "--prefill-from",
        metavar="ADDRESS",
        action="append",
        type=_address,
        help="an engine to have prompts computed by, where a request names none; may be given several times",
    )
    add(
        "--handover-min-tokens",
        type=int,
        help="tokens of a prompt that must be missing here for another engine to be asked (default: 256)",
    )
    add(
        "--handover-transport",
        choices=["auto", "nixl"],
        help="auto: KV blocks go through shared memory on one host, else through the connection; nixl: by NIXL, where "
        "both engines have it (default: auto)",
    )
    add(
        "--handover-timeout",
        type=float,
        help="seconds in which the other engine does not say a word, after which the rest of a prompt is computed here "
        "(default: 10)",
    )
    add(
        "--pinned-share",
        type=float,
        help="most of the KV blocks that prompts may ask to be kept for a time (default: 0.25)",
    )
    add(
        "--context-cap",
        dest="context_caps",
        action="append",
        type=_cap,
        metavar="PRIORITY=TOKENS",
        help="the longest context of requests up to this priority; may be given several times",
    )
    add(
        "--state-checkpoints",
        type=int,
        help="of models whose layers keep a state: states kept of cached prefixes, 0: no prefix caching for them "
        "(default: half of --max-num-seqs)",
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
        "--overlap",
        choices=["auto", "on", "off"],
        help="plan and launch a step while the one before it runs; on a CPU it gains nothing (default: auto, on a GPU "
        "without --pipeline-parallel)",
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
        help="never preempt a request: only as many sequences as have blocks at full length",
    )
    add(
        "--speculation",
        choices=["off", "ngram", "draft", "eagle", "medusa"],
        help="where draft tokens come from: nowhere, the text so far, or --draft-model, which is a small model, an "
        "EAGLE-3 head or Medusa heads (default: off, or as --draft-model's config.json says)",
    )
    add(
        "--draft-model",
        help="what proposes draft tokens: a small model ('demo', a folder, a .gguf file, or a hub id), or the folder "
        "of heads",
    )
    add(
        "--draft-quantization",
        choices=["int8", "w8a8", "int4", "int4-64", "int4-128", "fp8"],
        help="quantize the weights of a --draft-model, small model or head, to 8 or 4 bits "
        "(default: as its checkpoint has them, a head as --quantization says)",
    )
    add(
        "--deterministic",
        action="store_true",
        help="the same tokens and logprobs to the bit, however requests are batched, chunked, preempted or speculated",
    )
    add("--max-drafts", type=int, help="most draft tokens a step and request (default: 4)")
    add(
        "--draft-tree",
        type=int,
        help="heads propose trees of at most so many tokens, --max-drafts deep, which one step verifies (default: "
        "chains)",
    )
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
        help="adapter slots on the device: most LoRA adapters of a step; there may be more, which take turns (default: "
        "those given by --adapter)",
    )
    add(
        "--max-cpu-adapters",
        type=int,
        help="LoRA adapters kept in host memory, from which slots are filled; others are read from the disk when they "
        "are asked for (default: four times --max-adapters)",
    )
    add(
        "--adapter-token-file",
        type=_folder,
        metavar="FILE",
        help="with the bearer token that changing adapters at run time takes; without one they cannot be changed "
        "(default: what TOLLGATE_ADAPTER_TOKEN has)",
    )
    add(
        "--adapter-folder",
        dest="adapter_folders",
        action="append",
        type=_folder,
        metavar="FOLDER",
        help="a folder that adapters may be loaded from at run time; the first one gets those that are uploaded; may "
        "be given several times",
    )
    add("--max-adapter-bytes", type=_bytes, help="largest adapter that may be uploaded (default: 1GiB)")
    add("--max-adapter-rank", type=int, help="highest rank of a LoRA adapter (default: 64)")
    add(
        "--tensor-parallel",
        type=int,
        help="processes that share each layer, each on a GPU of its own (default: 1)",
    )
    add(
        "--pipeline-parallel",
        type=int,
        help="stages with some of the layers each, of --tensor-parallel processes (default: 1)",
    )
    add(
        "--expert-parallel",
        type=int,
        help="as --tensor-parallel: its processes have some experts each, whole, and not a shard of each (default: 1)",
    )
    add(
        "--nodes",
        metavar="HOST:PORT,…",
        help="where the last ranks are, each a python -m engine rank that listens there (default: all are here)",
    )
    add("--nodes-secret", type=Path, metavar="FILE", help="with the secret that the nodes are given, too")
    add(
        "--over-context",
        choices=["clip", "refuse"],
        help="whether a max_tokens beyond what the prompt leaves of the context is clipped or refused (default: clip)",
    )
    add(
        "--max-string-length",
        type=int,
        help="characters of a string in a forced tool call whose schema does not bound it; 0: no bound (default: half "
        "as many as the context has tokens)",
    )
    add(
        "--share-port",
        action="store_true",
        help="let another engine of the same user listen at the same port, so that it can take over",
    )
    add(
        "--standby-port",
        type=int,
        help="listen here until SIGUSR1, and from then on in place of an engine that shares its port",
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
        help="seconds without a step, though requests are open, after which the engine exits with an error, to be "
        "restarted; 0: never (default: 300)",
    )
    add(
        "--write-timeout",
        type=float,
        help="seconds that a client may read next to nothing of its answer before it is disconnected; 0: for ever "
        "(default: 30)",
    )
    add(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="where to send a trace of each request by OTLP, such as http://localhost:4318/v1/traces (default: none, "
        "or as OTEL_EXPORTER_OTLP_TRACES_ENDPOINT says)",
    )
    add(
        "--otlp-traces-protocol",
        choices=["http", "grpc"],
        help="(default: http, or as OTEL_EXPORTER_OTLP_TRACES_PROTOCOL says)",
    )
    add("--log-level", choices=["debug", "info", "warning", "error"], help="(default: info)")
    add("--check", action="store_true", help="only check whether these options are valid, and exit")


def _adapter(text: str) -> tuple[str, Path]:
    name, separator, folder = text.partition("=")
    if not (name and separator and folder):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER")
    return name, Path(folder).expanduser().absolute()


def _folder(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _address(text: str) -> str:
    try:
        return str(parse_address(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _digest(text: str) -> tuple[str, str]:
    name, _, digest = text.rpartition("=")
    digest = digest.lower().removeprefix("sha256:")
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise argparse.ArgumentTypeError(f"{text!r} is not a SHA-256 in hexadecimal, or NAME=SHA256")
    return name, digest


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
