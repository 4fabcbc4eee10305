"""Writes ``deploy/grafana/*.json``:

    python -m scripts.grafana

What the dashboards show is in docs/operations.md; a test runs every expression against a real Prometheus.
"""

from __future__ import annotations

import json
from pathlib import Path

from scripts.grafana.cost import COST
from scripts.grafana.engine import ENGINES
from scripts.grafana.guards import GUARDS
from scripts.grafana.overview import OVERVIEW
from scripts.grafana.panels import render
from scripts.grafana.tenant import TENANTS

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
DASHBOARDS = {
    "overview": OVERVIEW,
    "tenant": TENANTS,
    "engine": ENGINES,
    "guards-and-caches": GUARDS,
    "cost": COST,
}


def texts() -> dict[str, str]:
    """Each file's name and content."""
    return {
        f"{name}.json": json.dumps(render(dashboard), indent=2, ensure_ascii=False) + "\n"
        for name, dashboard in DASHBOARDS.items()
    }


def main() -> None:
    for name, text in texts().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
