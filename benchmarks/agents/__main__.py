"""Let agent frameworks do ten tasks with a real model behind a gateway, over chat completions and responses.

    python -m benchmarks.agents qwen2.5-coder-1.5b-instruct-q4_k_m.gguf [--set small] [TASK ...] [--wire FILE]

There are two sets: ``hard``, tasks as one would give them to a large model, and ``small``, as one writes them for a
small one. TASK is a part of a task's name. Each runs three times at a temperature of 0; what went wrong is on stderr.
The frameworks are installed once, into an environment of their own under ``build/conformance``; the gateway and its
engine run while the tasks do, on free ports. ``run.py`` asks a gateway that runs already. Exits with 0 however many
are wrong.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from benchmarks.conformance import tools
from benchmarks.conformance.stack import ROOT, free_ports, process

PACKAGES = ("openai-agents==0.24.0", "pydantic-ai-slim[openai]==2.68.0")
PLAIN, GUARDED = "model", "guarded"


@contextmanager
def serving(weights: Path) -> Iterator[tuple[str, str]]:
    """A gateway with the models ``PLAIN`` and ``GUARDED``: its base URL, and a key."""
    port, engine = free_ports(2)
    target = {"targets": [{"backend": "bundled", "model": str(weights)}]}
    policy = {
        "version": 1,
        "backends": {
            "bundled": {
                "kind": "engine",
                "launch": True,
                "base_url": f"http://127.0.0.1:{engine}",
                "model": str(weights),
            }
        },
        "models": {PLAIN: target, GUARDED: target},
        "guards": {"pii": {"on": ["input"], "action": "mask", "models": [GUARDED]}},
    }
    with tempfile.TemporaryDirectory(prefix="tollgate-agents-") as folder:
        (Path(folder) / "gateway.yaml").write_text(yaml.safe_dump(policy))
        key = f"tg-{secrets.token_hex(16)}"
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "gateway", "serve", "--policies", folder, "--port", str(port)]
        env = {"TOLLGATE_DEV_KEY": key, "TOLLGATE_STATE_DIR": str(Path(folder) / "state")}
        with process(command, Path(folder) / "log", f"{url}/readyz", **env):
            yield f"{url}/v1", key


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.agents",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("weights", type=Path, help="a GGUF file or a model's folder")
    args, others = parser.parse_known_args()
    if not args.weights.exists():
        parser.error(
            f"{args.weights} is not there: python scripts/models.py lists models, and fetches one by name"
        )
    try:
        python = tools.from_pypi(*PACKAGES)
    except tools.Missing as missing:
        print(missing, file=sys.stderr)
        return 2
    with serving(args.weights.resolve()) as (url, key):
        of = ["--base-url", url, "--model", PLAIN, "--guarded", GUARDED]
        command = [str(python), "-m", "benchmarks.agents.run", *of, *others]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "TOLLGATE_KEY": key}).returncode


if __name__ == "__main__":
    sys.exit(main())
