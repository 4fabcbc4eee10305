"""``tollgate serve`` as a process, for tests that need several, or a policy of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.conftest import METRICS_TOKEN, stop
from tests.ports import free_port


@contextmanager
def serving(folder: Path, policy: dict[str, Any], *, workers: int = 1, **env: str) -> Iterator[str]:
    """The URL of a gateway that is ready. Its process id is in the folder's file ``pid``, its output in ``log``."""
    policies = folder / "policies"
    policies.mkdir(parents=True)
    (policies / "gateway.yaml").write_text(yaml.safe_dump(policy, sort_keys=False))
    port = free_port()
    argv = [sys.executable, "-m", "gateway", "serve", "--policies", str(policies)]
    log = (folder / "log").open("w+")
    process = subprocess.Popen(
        [*argv, "--port", str(port), "--workers", str(workers)],
        stdout=log,
        stderr=subprocess.STDOUT,
        env={
            **os.environ,
            "TOLLGATE_STATE_DIR": str(folder / "state"),
            "TOLLGATE_SHUTDOWN_DELAY": "0",
            "TOLLGATE_METRICS_TOKEN": METRICS_TOKEN,
            **env,
        },
        start_new_session=True,
        text=True,
    )
    (folder / "pid").write_text(str(process.pid))
    url = f"http://127.0.0.1:{port}"
    # One for all questions, and without certificates, which take longer to load than an answer.
    http = httpx.Client(timeout=300, verify=False)
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if http.get(f"{url}/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        else:
            log.seek(0)
            raise AssertionError("the gateway is not ready:\n" + log.read())
        yield url
    finally:
        http.close()
        stop(process)
        log.close()
