"""What children of the gateway find in their environment."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from gateway.backends.launcher import Launch, launch
from gateway.children.environment import INSTALLERS, inherited
from gateway.policy.schema import EngineBackend
from gateway.process.supervisor import Supervisor
from gateway.settings import Settings
from gateway.sidecar.config import SidecarConfig

NEEDED = (
    *(
        "PATH",
        "HOME",
        "LANG",
        "LC_ALL",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "VIRTUAL_ENV",
        "XDG_CACHE_HOME",
    ),
    *("https_proxy", "HTTPS_PROXY", "no_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
    *(
        "CUDA_VISIBLE_DEVICES",
        "CUDA_HOME",
        "CUDA_MPS_PIPE_DIRECTORY",
        "NVIDIA_VISIBLE_DEVICES",
        "NCCL_SOCKET_IFNAME",
    ),
    *(
        "TORCHINDUCTOR_CACHE_DIR",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TRITON_CACHE_DIR",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
    ),
    *(
        "HF_HOME",
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_CACHE",
        "TOKENIZERS_PARALLELISM",
        "CC",
        "TOLLGATE_KERNELS",
    ),
)
SECRET = (
    *(
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "REDIS_URL",
        "DATABASE_URL",
        "POSTGRES_PASSWORD",
        "AWS_SECRET_ACCESS_KEY",
    ),
    *(
        "AWS_SESSION_TOKEN",
        "GITHUB_TOKEN",
        "TOLLGATE_DEV_KEY_SHA256",
        "SOME_NEW_PROVIDER",
        "CONDA_TOKEN",
        "HF_API_KEY",
    ),
    *("PIP_INDEX_URL", "MY_VLLM", "PROMETHEUS_MULTIPROC_DIR"),
)


def test_what_is_needed_is_let_through_and_nothing_else() -> None:
    found = inherited({name: name for name in (*NEEDED, *SECRET)})
    assert found == {name: name for name in NEEDED}


def test_more_is_let_through_by_pattern() -> None:
    env = {"MY_MIRROR_URL": "a", "MY_MIRROR_TOKEN": "b", "OTHER": "c", "PIP_INDEX_URL": "d"}
    assert inherited(env, ("MY_MIRROR_*",)).keys() == {"MY_MIRROR_URL", "MY_MIRROR_TOKEN"}
    assert inherited(env, INSTALLERS).keys() == {"PIP_INDEX_URL"}


def test_a_policy_names_more_for_its_engine() -> None:
    backend = EngineBackend(kind="engine", launch=True, env=("MY_*",))
    assert launch("e", backend).env == ("MY_*",)
    assert launch("e", backend) != launch("e", EngineBackend(kind="engine", launch=True)), "it is restarted"


@pytest.mark.anyio
async def test_neither_engine_nor_sidecar_finds_a_key(tmp_path: Path) -> None:
    """The whole process groups, with the guards beside them."""
    secrets = {"OPENAI_API_KEY": "sk-provider-secret", "REDIS_URL": "redis://:hunter2@cache"}
    supervisor = Supervisor(
        env={**os.environ, **secrets, "MY_MIRROR": "there", "CUDA_VISIBLE_DEVICES": "0"},
        on_line=lambda name, line: None,
        drain_timeout=1,
    )
    sleeping = (sys.executable, "-c", "import time; time.sleep(600)")
    settings = Settings(dev_key_sha256="0" * 64)
    try:
        await supervisor.run_engines({"e": Launch(sleeping, env=("MY_*",), variables={"OTEL_X": "set"})})
        wanted = SidecarConfig(socket=str(tmp_path / "s"), embedder=None)
        await supervisor.run_sidecar(wanted, settings.log_env())
        assert supervisor.sidecar is not None
        for child in (supervisor.engines["e"], supervisor.sidecar):
            async with asyncio.timeout(300):
                while child.pid is None or not (env := environment(child.pid)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not env.keys() & {*secrets, "TOLLGATE_DEV_KEY_SHA256"}
            assert env["CUDA_VISIBLE_DEVICES"] == "0" and env["PATH"] == os.environ["PATH"]
            assert env.get("MY_MIRROR") == ("there" if child is supervisor.engines["e"] else None)
            assert env.get("OTEL_X") == ("set" if child is supervisor.engines["e"] else None)
    finally:
        supervisor.kill()
        await supervisor.shut_down()


def environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
